"""`kernelwright mcp`: an MCP server for coding agents, on stdin and stdout, or with --http on loopback."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cli import show
from cli.mcp.server import make_server
from cli.service import DEFAULT_URL, KEY_VARIABLE, UrlOption, checked_url

LOOPBACK = "127.0.0.1"

Http = Annotated[bool, typer.Option("--http", help="Streamable HTTP on 127.0.0.1 in place of stdin and stdout.")]
Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="With --http: the port.")]


def mcp(http: Http = False, port: Port = 8765, url: UrlOption = DEFAULT_URL) -> None:
    """Serve the service's tools to a coding agent over the Model Context Protocol. An agent starts it; see docs/mcp.md.

    With --http whoever reaches the port on this machine acts with this key.

    Example: KERNELWRIGHT_KEY=... kernelwright mcp
    """
    server = make_server(checked_url(url), os.environ.get(KEY_VARIABLE))
    if http:
        show.note(f"MCP at http://{LOOPBACK}:{port}/mcp, for {url}")
        server.run("streamable-http", host=LOOPBACK, port=port)
    else:
        server.run()
