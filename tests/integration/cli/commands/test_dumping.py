"""`kernelwright dump` and `load` on a real database: files there and back, and refusals that say what to do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import jobs
from db.settings import Settings
from db.vocabulary import StopReason
from tests.integration.cli.commands.conftest import Kernelwright
from tests.support.ledger import evaluate, make_candidates, make_job, propose


@pytest.fixture
def job_id(sessions: sessionmaker[Session]) -> str:
    """A job that has ended with a kernel."""
    job = make_job(sessions)
    (candidate,) = make_candidates(sessions, job)
    propose(sessions, candidate, "class ModelNew: pass")
    evaluate(sessions, candidate)
    with sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.BUDGET_CANDIDATES)
    return str(job.id)


def where(settings: Settings) -> dict[str, str]:
    assert settings.database_url is not None
    return {"KERNELWRIGHT_DATABASE_URL": settings.database_url.get_secret_value()}


def count(sessions: sessionmaker[Session], table: str) -> int:
    with sessions() as session:
        return int(session.scalar(text(f"SELECT count(*) FROM {table}")) or 0)


def test_a_job_goes_into_a_file_and_out_of_it_into_another_database(
    kernelwright: Kernelwright, settings: Settings, sessions: sessionmaker[Session], job_id: str, tmp_path: Path
) -> None:
    there = where(settings)
    plain, packed = tmp_path / "job.txt", tmp_path / "job.gz"
    for file in (plain, packed):
        done = kernelwright("dump", job_id, "--out", file, **there)
        assert done.returncode == 0, done.stderr
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert kernelwright("load", packed, **there).stdout == f"{packed}: here already\n"
    with sessions.begin() as session:
        session.execute(text("TRUNCATE problems, jobs CASCADE"))
    loaded = kernelwright("load", packed, "--json", **there)
    assert json.loads(loaded.stdout) == {"path": str(packed), "loaded": True}, loaded.stderr
    assert [count(sessions, table) for table in ("jobs", "kernels", "evaluations")] == [1, 1, 1]
    assert kernelwright("load", plain, **there).stdout == f"{plain}: here already\n"
    # What comes with the project is loaded too, where there is something, and once.
    assert kernelwright("load", **there).returncode == 0
    assert kernelwright("load", **there).stdout.startswith("0 kernels loaded")


def test_what_cannot_be_dumped_or_loaded_is_named_and_changes_nothing(
    kernelwright: Kernelwright, settings: Settings, sessions: sessionmaker[Session], job_id: str, tmp_path: Path
) -> None:
    there = where(settings)
    running = make_job(sessions).id
    for job, why in ((running, f"{running} has not ended"), ("job_0", "there is no job_0")):
        refused = kernelwright("dump", job, "--out", tmp_path / "no.gz", **there)
        assert (refused.returncode, why in refused.stderr) == (2, True), refused.stderr
    whole = tmp_path / "whole.txt"
    assert kernelwright("dump", job_id, "--out", whole, **there).returncode == 0
    with sessions.begin() as session:
        session.execute(text("TRUNCATE problems, jobs CASCADE"))
    lines = whole.read_text().splitlines(keepends=True)
    wrong = {
        "missing": None,
        "other": b"hello\n",
        "cut": "".join(lines[:2]).encode(),
        "torn": gzip.compress(whole.read_bytes())[:200],
        "broken": "".join([lines[0], lines[1], "jobs\t{\n"]).encode(),
        "binary": bytes(range(128, 256)),
    }
    for name, content in wrong.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        refused = kernelwright("load", path, **there)
        assert refused.returncode == 2 and str(path) in refused.stderr, (name, refused.stderr)
        assert "Traceback" not in refused.stderr
    assert [count(sessions, table) for table in ("problems", "jobs")] == [0, 0]


def test_a_url_that_is_none_is_a_sentence(kernelwright: Kernelwright, tmp_path: Path) -> None:
    refused = kernelwright("dump", "job_0", "--out", tmp_path / "a", KERNELWRIGHT_DATABASE_URL="nowhere")
    assert (refused.returncode, "Traceback" in refused.stderr) == (4, False), refused.stderr
    assert "The database cannot be used" in refused.stderr
