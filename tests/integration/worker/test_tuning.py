"""Tuning with the real judge and the real database: one `tune` measures many, and what it measured is not lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from db import candidates, jobs, tunings
from db.models import Candidate, Job
from db.tunings import NewTuning
from db.vocabulary import WorkKind
from search.novelty import source_hash
from tests.support.ledger import claim_kind, evaluate, fresh, make_candidates, make_job, propose, states
from worker import evaluating, proposing
from worker.runtime import Runtime

KERNEL = """
import time

import torch

TUNABLES = {"PAUSE_US": [60_000, 30_000, 0], "WRONG": [False, True]}
PAUSE_US = 60_000
WRONG = False


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if PAUSE_US:
            time.sleep(PAUSE_US * 1e-6)
        return torch.softmax(x, 0 if WRONG else -1)
"""
BUILT = '''
import torch
from kernelwright import load_cpp

SOURCE = r"""extern "C" void nothing(const float* given) { (void)given; /* as it says */ }"""
lib = load_cpp(SOURCE)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
'''
TRIALS = [
    {"params": {"PAUSE_US": 0, "WRONG": False}, "verdict": "ok", "ratios": {"small": 1.6, "large": 0.8}},
    {"params": {"PAUSE_US": 30_000, "WRONG": False}, "verdict": "ok", "ratios": {"small": 0.8, "large": 1.5}},
]
SIGNATURES = {"small": [["float32", 8, 8]], "large": [["float32", 64, 64]]}


@pytest.fixture
def patient(here: Runtime) -> Iterator[Runtime]:
    """A worker whose tuning no busy machine cuts short."""
    runtime = Runtime(here.settings.model_copy(update={"tune_wall_s": 200.0}), here.owner, here.queues)
    yield runtime
    runtime.close()


def row(here: Runtime, candidate_id: str) -> Candidate:
    with here.sessions.begin() as session:
        found = candidates.get_candidate(session, candidate_id)
    assert found is not None
    return found.candidate


def kernel(here: Runtime, **job: int) -> tuple[str, list[str]]:
    """An accepted kernel with tunables, and three `tune` candidates from it."""
    made = make_job(here.sessions, **job)
    (parent,) = make_candidates(here.sessions, made)
    propose(here.sessions, parent, KERNEL, tunable=True)
    evaluate(here.sessions, parent, speedup=1.2)
    return parent, make_candidates(here.sessions, made, 3, operator="tune", parents=(parent,))


def fresh_job(here: Runtime, candidate_id: str) -> Job:
    with here.sessions.begin() as session:
        return jobs.fetch_job(session, row(here, candidate_id).job_id)


def tune(here: Runtime, candidate_id: str) -> Candidate:
    proposing.propose(here, claim_kind(here.sessions, WorkKind.PROPOSE, candidate_id))
    return row(here, candidate_id)


def test_one_tune_measures_the_space_and_proposes_the_best(patient: Runtime) -> None:
    here = patient
    _parent, (first, second, _third) = kernel(here)
    best = tune(here, first)
    assert best.params == {"PAUSE_US": 0, "WRONG": False}
    assert best.state == "queued" and "best of 5" in (best.plan or "")
    with here.sessions.begin() as session:
        stored = tunings.tuning_of(session, first)
        job_gpu_s = session.execute(text("SELECT gpu_s FROM jobs")).scalar_one()
        (node,) = [each for each in candidates.load_tree(session, best.job_id) if each.id == first]
    assert stored is not None
    found = {(t["params"]["PAUSE_US"], t["params"]["WRONG"]): t for t in stored.measured["trials"]}
    assert len(found) == 5, "all but the configuration that the kernel has"
    assert {key for key, trial in found.items() if trial["verdict"] == "incorrect"} == {
        (pause, True) for pause in (0, 30_000, 60_000)
    }
    assert job_gpu_s == pytest.approx(2.0 + stored.gpu_s), "the evaluation's and the tuning's"
    assert stored.gpu_s > 0
    assert node.gpu_s == 0.0, "counted for the search once the candidate is judged"
    # The second finds nothing to measure and nothing better, and asks no judge.
    exhausted = tune(here, second)
    assert (exhausted.state, exhausted.failure) == ("rejected", "exhausted")
    assert "5 configurations" in (exhausted.failure_detail or "")


def test_what_was_measured_before_is_used_and_winners_of_workloads_become_a_dispatching_candidate(
    here: Runtime,
) -> None:
    parent, (first, second, third) = kernel(here)
    with here.transaction() as session:
        session.execute(
            text("UPDATE candidates SET source_hash = :hash WHERE id = :id"), {"hash": "content", "id": parent}
        )
    other_parent, (other, _, _) = kernel(here, seed=1)
    with here.transaction() as session:
        session.execute(
            text("UPDATE candidates SET source_hash = :hash WHERE id = :id"), {"hash": "content", "id": other_parent}
        )
        tunings.store_tuning(session, other, NewTuning(other_parent, TRIALS, SIGNATURES))
    best = tune(here, first)
    assert best.params == {"PAUSE_US": 0, "WRONG": False}, "measured by another job for the same source"
    table = tune(here, second)
    assert (table.plan or "").startswith("dispatch: ") and not table.tunable and table.params is None
    assert "_FORWARDS" in (table.source or "")
    assert states(here.sessions, WorkKind.EVALUATE).count("queued") == 2
    with here.transaction() as session:
        assert tunings.has_child_with_plan(session, table.job_id, parent, "dispatch: ")
        assert not tunings.has_child_with_plan(session, table.job_id, other_parent, "dispatch: ")
    assert row(here, third).state == "proposing"


def test_a_configuration_that_the_judge_refused_gives_way_to_the_next_best(here: Runtime) -> None:
    parent, (first, second, _third) = kernel(here)
    with here.transaction() as session:
        (other,) = make_candidates(here.sessions, fresh_job(here, parent), operator="tune", parents=(parent,))
        tunings.store_tuning(session, other, NewTuning(parent, TRIALS))
    assert tune(here, first).params == TRIALS[0]["params"]
    evaluate(here.sessions, first, verdict="incorrect", speedup=None, timed=False)
    assert tune(here, second).params == TRIALS[1]["params"]


def test_a_candidate_that_is_built_into_the_same_gets_the_earlier_verdict_and_no_device(here: Runtime) -> None:
    job = make_job(here.sessions)
    first, again, other = make_candidates(here.sessions, job, 3)
    renamed = BUILT.replace("given", "what_is_given").replace("/* as it says */", "")
    for candidate_id, source in ((first, BUILT), (again, renamed), (other, BUILT.replace("-1", "0"))):
        propose(here.sessions, candidate_id, source)
    claim = claim_kind(here.sessions, WorkKind.EVALUATE, first)
    evaluating.evaluate(here, claim)
    judged = row(here, first)
    gpu_s = fresh(here.sessions, job).gpu_s
    assert judged.artefact_hash is not None and gpu_s > 0
    evaluating.evaluate(here, claim_kind(here.sessions, WorkKind.EVALUATE, again))
    refused = row(here, again)
    assert (refused.state, refused.failure, refused.duplicate_of) == ("rejected", "duplicate", first)
    assert "built into the same as candidate 1" in (refused.failure_detail or "")
    assert fresh(here.sessions, job).gpu_s == gpu_s
    assert states(here.sessions, WorkKind.EVALUATE) == ["done", "done", "queued"]
    assert source_hash(BUILT) != source_hash(renamed)
