"""Evaluating with the real judge: a verdict is stored, and whatever interrupts it is not the candidate's fault."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from db import candidates, jobs, recovery
from db.ledger import Claim, Fenced
from db.models import Evaluation, Job
from db.vocabulary import WorkKind
from tests.support.ledger import claim_kind, event_types, fresh, make_candidates, make_job, propose, states
from tests.support.working import Working
from worker.evaluating import evaluate
from worker.heartbeat import CancelRequested
from worker.runtime import Runtime

WRONG = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, 0)
"""
SLEEPY = """
import time

import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        time.sleep(600)
        return x
"""
BROKEN_PROBLEM = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        raise RuntimeError("no such operation")


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
"""


def queued(here: Runtime, source: str, **job: Any) -> tuple[Job, str, Claim]:
    made = make_job(here.sessions, **job)
    (candidate_id,) = make_candidates(here.sessions, made)
    propose(here.sessions, candidate_id, source)
    return made, candidate_id, claim_kind(here.sessions, WorkKind.EVALUATE)


def evaluation(here: Runtime, candidate_id: str) -> Evaluation | None:
    with here.sessions.begin() as session:
        row = candidates.get_candidate(session, candidate_id)
    assert row is not None
    return row.evaluation


def test_the_judges_report_becomes_the_evaluation(here: Runtime) -> None:
    job, candidate_id, claim = queued(here, WRONG)
    evaluate(here, claim)
    found = evaluation(here, candidate_id)
    assert found is not None
    assert (found.verdict, found.worker_id) == ("incorrect", here.owner)
    assert found.reason == found.report["reason"] != ""
    assert fresh(here.sessions, job).gpu_s == found.gpu_s > 0
    assert event_types(here.sessions, job.id)[-2:] == ["candidate.evaluating", "candidate.evaluated"]
    assert states(here.sessions, WorkKind.EVALUATE) == ["done"]
    assert here.near() == job.id, "whose problem the judge has prepared"


def test_a_cancel_kills_the_evaluation(here: Runtime) -> None:
    job, candidate_id, claim = queued(here, SLEEPY)
    with Working(evaluate, here, claim) as running, here.sessions.begin() as session:
        jobs.cancel_job(session, job.id)
    assert isinstance(running.raised, CancelRequested)
    assert evaluation(here, candidate_id) is None


def test_a_lost_lease_kills_the_evaluation_and_stores_nothing(here: Runtime) -> None:
    _, candidate_id, claim = queued(here, SLEEPY)
    with Working(evaluate, here, claim) as running, here.sessions.begin() as session:
        session.execute(text("UPDATE work SET lease_token = gen_random_uuid() WHERE id = :id"), {"id": claim.id})
    assert isinstance(running.raised, Fenced)
    assert evaluation(here, candidate_id) is None


def test_a_judge_that_dies_gives_the_work_back_without_counting_it(here: Runtime) -> None:
    _, candidate_id, claim = queued(here, SLEEPY)
    with Working(evaluate, here, claim) as running:
        running.lose_the_judge()
    assert running.raised is None
    assert evaluation(here, candidate_id) is None
    with here.sessions.begin() as session:
        row = session.execute(text("SELECT state, attempt, returned FROM work WHERE kind = 'evaluate'")).one()
    assert tuple(row) == ("queued", 0, 1)


def test_a_problem_that_cannot_be_judged_ends_the_job_and_says_why(here: Runtime) -> None:
    job, _, claim = queued(here, WRONG, problem_hash="broken", problem_source=BROKEN_PROBLEM)
    evaluate(here, claim)
    after = fresh(here.sessions, job)
    assert (after.state, after.stop_reason) == ("failed", "error")
    assert "the problem cannot be judged" in (after.error or "")
    assert "no such operation" in (after.error or "")


def test_a_fenced_claim_never_reaches_the_judge(here: Runtime) -> None:
    _, _, claim = queued(here, SLEEPY)
    with here.sessions.begin() as session:
        recovery.give_back(session, claim, "elsewhere")
    with pytest.raises(Fenced):
        evaluate(here, claim)
