"""`ask` and `tell` as an offline batch uses them: questions to a file, answers from a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from db.settings import Settings
from tests.integration.cli.commands.conftest import Kernelwright
from tests.integration.worker.conftest import broker, configured
from tests.support.outside import CANDIDATE, Outside, file_answer

__all__ = ["broker", "configured"]


@pytest.fixture
def asking(url: str, configured: Settings, sessions: sessionmaker[Session]) -> Iterator[str]:
    """A job with two open questions; its id."""
    with httpx2.Client(base_url=url, timeout=30) as http:
        outside = Outside(http, configured, sessions)
        yield outside.submit()
        outside.here.close()


def test_a_batch_of_questions_goes_out_and_its_answers_come_back(
    kernelwright: Kernelwright, asking: str, tmp_path: Path
) -> None:
    asked, answered = tmp_path / "asked.jsonl", tmp_path / "answered.jsonl"
    taken = kernelwright("ask", asking, "--limit", "6", "--agent", "batch", "--out", asked)
    assert (taken.returncode, taken.stdout) == (0, ""), taken.stderr
    assert taken.stderr.startswith("2 asked; tell before ")
    first, second = (json.loads(line) for line in asked.read_text().splitlines())
    assert [message["role"] for message in first["messages"]] == ["system", "user"]

    empty = kernelwright("ask", asking)
    assert (empty.returncode, empty.stdout) == (0, "")
    assert empty.stderr.startswith("nothing is open now")

    lines = [first | {"answer": file_answer("a")}, second | {"token": first["token"], "source": "class ModelNew: ..."}]
    answered.write_text("\n".join(json.dumps(line) for line in lines))
    told = kernelwright("tell", asking, answered)
    assert (told.returncode, told.stdout) == (1, f"{first['candidate_id']}: accepted, to be judged\n")
    assert told.stderr.startswith(f"line 2: {second['candidate_id']}: Stale token: ")

    answered.write_text(json.dumps(second | {"answer": f"again\n```python\n# too\n{CANDIDATE.format(name='a')}```\n"}))
    told = kernelwright("tell", asking, answered)
    assert told.returncode == 0
    assert told.stdout.startswith(f"{second['candidate_id']}: duplicate: the same source as candidate ")
