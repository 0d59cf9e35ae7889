"""The `kernelwright` command as a person runs it: a process of its own, against a real API with its real Postgres."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from cli.client import Client, Job
from db.settings import Settings
from tests.integration.api.history import History
from tests.integration.api.server import serving

ROOT = Path(__file__).resolve().parents[4]
BODY: dict[str, Any] = {"problem": "softmax", "target": {"hardware": "cpu", "language": "cpp"}}

OK = {
    "verdict": "ok",
    "latency_us": 12.34,
    "speedup": 1.834,
    "ci95": [1.80, 1.87],
    "baseline": "compile",
}


class Kernelwright(Protocol):
    """Runs a command to its end, piped, as a script would."""

    def __call__(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]: ...


def environment(**variables: str) -> dict[str, str]:
    """An environment without settings of the reader's own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    return {**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "TZ": "UTC", **variables}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "cli", *map(str, arguments)]


@pytest.fixture
def url(settings: Settings) -> Iterator[str]:
    with serving(create_app(settings, ring=lambda _bells: None)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.fixture
def history(sessions: sessionmaker[Session]) -> History:
    return History(sessions)


@pytest.fixture
def job(client: Client, history: History) -> Job:
    """A job that has started."""
    job = client.submit(BODY)
    history.start(job["id"])
    return job


@pytest.fixture
def kernelwright(url: str) -> Kernelwright:
    def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        env = environment(**{"KERNELWRIGHT_URL": url, **variables})
        return subprocess.run(command(*arguments), env=env, capture_output=True, text=True, check=False, timeout=400)

    return run
