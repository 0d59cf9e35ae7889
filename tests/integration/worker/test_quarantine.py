"""A device that fails: a canary that is made to fail, real rows, and what becomes of the work and of the worker."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import text

from db import candidates, ledger, workers
from db.ledger import Claim
from db.vocabulary import WorkerState, WorkKind
from tests.support.ledger import claim_kind, make_candidates, make_job, propose, report, states
from worker import quarantine
from worker.evaluating import evaluate
from worker.judge import canary as judge_canary
from worker.quarantine import canary, device_failed, suspect
from worker.runtime import Runtime

GPU = "nvidia-h100"
SOUND = (sys.executable, "-c", 'print(\'{"sound": true, "why": ""}\')')
BROKEN = (sys.executable, "-c", 'print(\'{"sound": false, "why": "an illegal memory access"}\'); raise SystemExit(1)')


class Judge:
    """Finds what it is told to find, and counts how often it was ended."""

    def __init__(self, **found: Any) -> None:
        self.found, self.closed = report(timed=False, speedup=None, latency_us=None, ci95=None) | found, 0

    def fingerprint(self, _request: object) -> None:
        """Not known."""

    def evaluate(self, _request: object) -> dict[str, Any]:
        return dict(self.found)

    def abort(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def judge(here: Runtime) -> Judge:
    here._judges[GPU] = judge = Judge(verdict="illegal_access", reason="CUDA error: an illegal memory access")  # type: ignore[assignment]
    return judge


def queued(here: Runtime) -> tuple[str, Claim]:
    with here.sessions.begin() as session:
        workers.register(session, workers.WorkerFacts(here.owner, "host", 1, ("gpu",), GPU))
    made = make_job(here.sessions, hardware=GPU, language="triton")
    (candidate_id,) = make_candidates(here.sessions, made)
    propose(here.sessions, candidate_id)
    return candidate_id, claim_kind(here.sessions, WorkKind.EVALUATE)


def row(here: Runtime) -> tuple[str, str | None]:
    with here.sessions.begin() as session:
        (found,) = workers.list_workers(session)
        return found.state, found.state_reason


def use(monkeypatch: pytest.MonkeyPatch, command: Sequence[str]) -> None:
    monkeypatch.setattr(quarantine, "COMMAND", command)


def test_a_broken_device_quarantines_the_worker_and_the_work_moves_on(
    here: Runtime, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, BROKEN)
    monkeypatch.setattr(quarantine, "last_xid", lambda: "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.")
    candidate_id, claim = queued(here)
    evaluate(here, claim)
    state, reason = row(here)
    assert state == WorkerState.QUARANTINED
    assert reason is not None and "an illegal memory access" in reason and "Xid" in reason
    with here.sessions.begin() as session:
        candidate = candidates.get_candidate(session, candidate_id)
        assert candidate is not None and candidate.evaluation is None, (
            "the verdict was the device's, not the candidate's"
        )
        attempt = session.execute(text("SELECT attempt FROM work WHERE id = :id"), {"id": claim.id}).scalar_one()
    assert states(here.sessions, WorkKind.EVALUATE) == ["queued"]
    assert attempt == 0, "the attempt does not count"
    assert judge.closed == 1, "its context is on that device"
    with here.sessions.begin() as session:
        session.execute(text("UPDATE work SET not_before = now() WHERE id = :id"), {"id": claim.id})
        queues = session.execute(text("SELECT array_agg(DISTINCT queue) FROM work")).scalar_one()
    with here.sessions.begin() as session:
        assert ledger.claim_next(session, queues, here.owner) is None, "a quarantined worker claims nothing"
        workers.beat(session, here.owner)
        moved = ledger.claim_next(session, queues, "worker_2")
    assert row(here)[0] == WorkerState.QUARANTINED, "a heartbeat does not heal it"
    assert moved is not None


def test_a_sound_device_leaves_the_verdict_to_the_candidate(
    here: Runtime, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, SOUND)
    candidate_id, claim = queued(here)
    evaluate(here, claim)
    assert row(here) == (WorkerState.ACTIVE, None)
    with here.sessions.begin() as session:
        candidate = candidates.get_candidate(session, candidate_id)
        assert candidate is not None and candidate.evaluation is not None
        assert candidate.evaluation.verdict == "illegal_access"
    assert judge.closed == 0


def test_one_canary_that_fails_is_not_enough(
    here: Runtime, judge: Judge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    once = f"import os; made = os.path.exists({str(tmp_path / 'seen')!r}); open({str(tmp_path / 'seen')!r}, 'w'); "
    use(monkeypatch, (sys.executable, "-c", once + 'print(\'{"sound": %s, "why": ""}\' % str(made).lower())'))
    _candidate, claim = queued(here)
    evaluate(here, claim)
    assert (tmp_path / "seen").exists()
    assert row(here) == (WorkerState.ACTIVE, None)


def test_an_operator_makes_it_active_again(here: Runtime, judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, BROKEN)
    queued(here)
    assert device_failed(here, GPU) is not None
    with here.sessions.begin() as session:
        workers.drain_or_resume(session, here.owner, WorkerState.ACTIVE)
    assert row(here) == (WorkerState.ACTIVE, None)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import time; time.sleep(60)", "no answer within 1 s"),
        ("import os; os.abort()", "ended with code -6"),
        ("print('[]')", "ended with code 0"),
        ("print('{\"sound\": 1}')", "ended with code 0"),
    ],
)
def test_a_canary_that_hangs_dies_or_babbles_has_failed(monkeypatch: pytest.MonkeyPatch, code: str, why: str) -> None:
    use(monkeypatch, (sys.executable, "-c", code))
    found = canary(GPU, timeout_s=1.0 if "sleep" in code else 60.0)
    assert found is not None and why in found


def test_the_real_canary_finds_this_processor_sound() -> None:
    assert canary("cpu") is None


@pytest.mark.parametrize(
    ("verdict", "reason", "looked_at"),
    [
        ("illegal_access", "an illegal memory access", True),
        ("timeout", "no answer to 'run' within 20 s", True),
        ("infra_error", "the judge process died", True),
        ("launch_error", "killed by signal 9 during 'run'", True),
        ("launch_error", "RuntimeError: CUDA error: unspecified launch failure", True),
        ("launch_error", "OutOfMemoryError: CUDA out of memory", False),
        ("launch_error", "ValueError: no such thing", False),
        ("incorrect", "output 0 is wrong", False),
        ("ok", "", False),
    ],
)
def test_only_ends_that_a_device_could_cause_are_looked_at(verdict: str, reason: str, looked_at: bool) -> None:
    assert suspect({"verdict": verdict, "reason": reason}) is looked_at


def test_a_full_device_is_not_taken_for_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_device: str) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 MiB")

    monkeypatch.setattr(judge_canary, "_examine", fail)
    assert judge_canary.examine("cuda:0")["sound"]
