"""What a shell offers at <TAB>: names of problems, hardware, languages, and the jobs of late.

A shell waits for each answer, so the service is asked once and given a second; when it does not answer, nothing is
said. The client is imported only then: `kernelwright evaluate` must not need it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from cli.settings import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE
from problems.catalog import bundled

if TYPE_CHECKING:
    from cli.client import Client

T = TypeVar("T")
Offered = list[tuple[str, str]]
"""Values with a word about each, which zsh and fish show."""

_PATIENCE_S: Final = 1.0
_JOBS: Final = 20
LANGUAGES: Final = ("cpp", "triton", "cuda")
_FITTING: Final = {"cpu": ("cpp", "triton")}
_ON_GPUS: Final = ("triton", "cuda")


def problems(context: typer.Context, incomplete: str) -> Offered:
    """Bundled problems: those of the service, or those that came with this command."""
    told = _ask(context, lambda client: [(each["name"], each["summary"]) for each in client.problems()])
    return _starting(told or [(name, outline.summary) for name, outline in bundled().items()], incomplete)


def hardware(context: typer.Context, incomplete: str) -> Offered:
    """What the living workers run on."""
    return _starting([(name, "") for name in _hardware(context)], incomplete)


def languages(incomplete: str) -> Offered:
    """The kernel languages."""
    return _starting([(name, "") for name in LANGUAGES], incomplete)


def sandboxes(incomplete: str) -> Offered:
    """The sandboxes, the strongest first."""
    return _starting([(name, "") for name in ("namespaces", "landlock", "process")], incomplete)


def targets(context: typer.Context, incomplete: str) -> Offered:
    """Hardware with each language that fits it."""
    pairs = [(name, language) for name in _hardware(context) for language in _FITTING.get(name, _ON_GPUS)]
    return _starting([(f"{name}:{language}", "") for name, language in pairs], incomplete)


def jobs(context: typer.Context, incomplete: str) -> Offered:
    """The newest jobs."""

    def newest(client: Client) -> Offered:
        page = client.jobs(limit=_JOBS)
        return [(job["id"], f"{job['problem']['name']}, {job['state']}") for job in page["data"]]

    return _starting(_ask(context, newest) or [], incomplete)


def _hardware(context: typer.Context) -> list[str]:
    told = _ask(context, lambda client: [each["hardware"] for each in client.workers()])
    return sorted({"cpu", *(name for name in told or () if name)})


def _ask(context: typer.Context, question: Callable[[Client], T]) -> T | None:
    url = context.params.get("url") or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    try:
        from cli.client import NO_RETRY, Client, ClientError
    except ImportError:
        return None
    try:
        with Client(url, os.environ.get(KEY_VARIABLE), retry=NO_RETRY, timeout_s=_PATIENCE_S) as client:
            return question(client)
    except (ClientError, ValueError, KeyError, TypeError):
        # Nobody there, no service of ours, or an URL that is none: a shell is not told.
        return None


def _starting(values: Iterable[tuple[str, str]], incomplete: str) -> Offered:
    return [each for each in values if each[0].startswith(incomplete)]
