"""The endurance benchmark: what it finds wrong in a job's rows, what it kills, and that no candidate comes twice."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.endurance.checks import facts_of
from benchmarks.endurance.provider import Author
from benchmarks.endurance.service import Service
from db import jobs
from db.vocabulary import StopReason
from search.novelty import source_hash
from tests.acceptance.rig import until
from tests.support.fake_openai import Request
from tests.support.ledger import evaluate, make_candidates, make_job, propose

Sessions = sessionmaker[Session]


@pytest.fixture
def sound(sessions: Sessions) -> str:
    """A finished job of a seed and what was made from it."""
    job = make_job(sessions, budget_candidates=2)
    (seed,) = make_candidates(sessions, job)
    made = make_candidates(sessions, job, operator="refine", parents=(seed,))
    for candidate_id in (seed, *made):
        propose(sessions, candidate_id)
        evaluate(sessions, candidate_id)
    with sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.BUDGET_CANDIDATES)
    return job.id


def wrong(sessions: Sessions, job_id: str, statement: str) -> list[str]:
    """What is wrong after this statement; nothing is kept of it."""
    with sessions() as session:
        session.execute(text(statement), {"job": job_id})
        found: list[str] = facts_of(session.connection(), job_id)["wrong"]
        session.rollback()
    return found


def test_a_sound_job_is_sound(sessions: Sessions, sound: str) -> None:
    with sessions() as session:
        facts = facts_of(session.connection(), sound)
    assert facts["wrong"] == []
    assert (facts["evaluations"], facts["spent"], facts["depth"]) == (2, 2, 1)
    assert facts["operators"] == {"seed": 1, "refine": 1}


FAULTS = {
    "DELETE FROM evaluations WHERE job_id = :job": "evaluations 0 != evaluated 2",
    "DELETE FROM events WHERE job_id = :job AND type = 'candidate.evaluated'": "evaluated_events 0",
    "UPDATE jobs SET cost_usd = 0.2 WHERE id = :job": "calls_usd 0.0 != job_usd 0.2",
    "UPDATE jobs SET gpu_s = 9 WHERE id = :job": "measured_gpu_s 4.0 != job_gpu_s 9.0",
    "UPDATE jobs SET budget_candidates = 3 WHERE id = :job": "spent 2 != budget 3",
    "UPDATE work SET state = 'queued' WHERE job_id = :job AND kind = 'evaluate'": "2 units of work never ended",
    "UPDATE candidates SET ordinal = 7 WHERE job_id = :job AND ordinal = 2": "gaps",
    "UPDATE candidates SET state = 'queued' WHERE job_id = :job AND ordinal = 2": "is still queued",
    "UPDATE candidates SET parents = '{cand_x}' WHERE job_id = :job AND ordinal = 2": "missing or younger",
    "UPDATE candidates SET parents = '{}' WHERE job_id = :job AND ordinal = 2": "a refine with 0 parents",
}


def test_whatever_is_wrong_is_found(sessions: Sessions, sound: str) -> None:
    for statement, sentence in FAULTS.items():
        assert sentence in "; ".join(wrong(sessions, sound, statement)), statement


def test_no_two_answers_are_alike() -> None:
    author = Author(random.Random(0))
    sources = [author.answer(Request("", {}, None)).source or "" for _ in range(60)]
    assert len({source_hash(source) for source in sources}) == 60
    assert 1 <= sum(not _parses(source) for source in sources) < 20
    author._server.server_close()


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def test_everything_below_the_service_is_found_and_killed(tmp_path: Path) -> None:
    service = Service(tmp_path, {})
    child = "[sys.executable, '-c', 'import time; time.sleep(60)', 'cli.' + 'serve']"
    script = f"import subprocess, sys; subprocess.run({child})"
    service._up = subprocess.Popen([sys.executable, "-c", script])
    until(lambda: len(service.processes()) == 2, "the child has started")
    assert sorted(service.processes().values()) == ["other", "serve"]
    assert sum(service.kill_everything(random.Random(0)).values()) >= 2
    assert service.processes() == {}
