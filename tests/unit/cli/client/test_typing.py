"""The type checker knows the answer of each call, of both clients, and refuses what the service would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
SNIPPET = """
from typing import assert_type

from cli.client import AsyncClient, Client, Event, Job


async def use(later: AsyncClient, now: Client) -> None:
    assert_type(now.job("x"), Job)
    assert_type(await later.job("x"), Job)
    assert_type(await later.wait("x", timeout_s=1.0), Job)
    assert_type(await later.best_source("x"), str)
    assert_type(await later.ready(), bool)
    async for event in later.follow("x"):
        assert_type(event, Event)
    now.job(3)
    now.jobs(state="asleep")
    await later.job("x", wait="3")
"""


@pytest.mark.exhaustive  # mypy reads pydantic and httpx first: 20 s where it has no cache
def test_answers_are_typed_and_arguments_checked(tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line.rpartition("[")[2] for line in checked.stdout.splitlines() if ": error: " in line]
    assert errors == ["arg-type]", "arg-type]", "call-arg]"], checked.stdout
