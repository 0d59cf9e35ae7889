"""What every command that speaks to the API shares: its options, and how a refusal or silence ends the command.

    CliError
    ├── UnusableInput     exit 2   what was typed cannot be sent
    ├── RefusedByService  exit 2   the API said no: which field, and why
    ├── ServiceFailed     exit 4   the API itself is in trouble
    └── NoService         exit 4   nobody answers at that URL

Exit 1 and 3 are kept for what became of a job: see `cli.commands.watch`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

import typer

from cli import completion
from cli.client import ApiError, Client, Retry, Unreachable
from cli.errors import CliError
from cli.options import JsonOption
from cli.settings import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE

__all__ = ["DEFAULT_URL", "KEY_VARIABLE", "JsonOption"]

# A person waits: what does not answer within a second is said, with what to do.
_RETRY = Retry(attempts=3, first_pause_s=0.2)

UrlOption = Annotated[
    str, typer.Option("--url", envvar=URL_VARIABLE, metavar="URL", help="Where the Kernelwright API listens.")
]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="The id of a job, job_… .", autocompletion=completion.jobs)
]


class UnusableInput(CliError):
    """{problem}"""

    exit_code: ClassVar[int] = 2


class RefusedByService(CliError):
    """{problem}"""

    exit_code: ClassVar[int] = 2


class ServiceFailed(CliError):
    """The service at {url} failed: {problem}"""

    exit_code: ClassVar[int] = 4


class NoService(CliError):
    """No Kernelwright answers at {url} ({why}). Start one with `kernelwright up`, or name another with --url or
    KERNELWRIGHT_URL."""

    exit_code: ClassVar[int] = 4


@contextmanager
def service(url: str) -> Iterator[Client]:
    """A client of the API at `url`, for a `with` block.

    Raises UnusableInput, RefusedByService, ServiceFailed or NoService, also for what the block does with the client.
    """
    try:
        with Client(checked_url(url), os.environ.get(KEY_VARIABLE), retry=_RETRY) as client:
            yield client
    except Unreachable as error:
        raise NoService(url=url, why=_why(error)) from error
    except ApiError as error:
        kind = RefusedByService if error.status < 500 else ServiceFailed
        raise kind(url=url, problem=_one_line(error)) from error


def checked_url(url: str) -> str:
    """The URL as given, when it can be one. Raises UnusableInput."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UnusableInput(problem=f"{url!r} is no URL of a service: write it like {DEFAULT_URL}")
    return url


def key_value(label: str) -> tuple[str, str]:
    """A label's two halves, from `KEY=VALUE`. Raises UnusableInput."""
    key, equals, value = label.partition("=")
    if not equals or not key:
        raise UnusableInput(problem=f"--label {label!r} is no KEY=VALUE")
    return key, value


def _why(error: Unreachable) -> str:
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__


def _one_line(error: ApiError) -> str:
    faults = [f"{fault['pointer']}: {fault['detail']}" for fault in error.errors]
    # The API repeats a single fault in its detail.
    return "; ".join([error.detail, *(fault for fault in faults if fault not in error.detail)])
