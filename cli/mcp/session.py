"""The client behind the tools, and how a refusal of the service reads to an agent: what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from cli.client import AsyncClient, ClientError, NotAllowed, TooManyRequests, Unreachable
from cli.service import KEY_VARIABLE

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """What the tools share while the server runs."""

    client: AsyncClient


Tools = Context[Session, object]
"""What a tool is given beside its arguments."""


def client_of(context: Tools) -> AsyncClient:
    """The client of the service."""
    return context.request_context.lifespan_context.client


def explained(tool: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The tool with a refusal turned into an answer that the agent reads."""

    @wraps(tool)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await tool(*args, **kwargs)
        except ClientError as error:
            raise ToolError(said(error)) from error

    return run


def said(error: ClientError) -> str:
    """The error with what to do about it."""
    advice = ""
    if isinstance(error, Unreachable):
        advice = "\nTell the user; nothing can be done from here until the service runs."
    elif isinstance(error, NotAllowed):
        advice = f"\nAsk the user to set {KEY_VARIABLE} in the settings of this MCP server to a key with that scope."
    elif isinstance(error, TooManyRequests) and error.retry_after_s is not None:
        advice = f"\nTry again in {error.retry_after_s:.0f} s."
    return f"{error}{advice}"
