"""Advancing a job with the real search: rows in, rows out."""

from __future__ import annotations

from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import candidates, jobs, workers
from db.ledger import Fenced
from db.models import Job
from db.vocabulary import StopReason, WorkKind
from db.workers import WorkerFacts
from tests.support.ledger import claim_kind, evaluate, event_types, expire, fresh, make_job, propose, states
from worker.advancing import advance, node, slots, view
from worker.runtime import Runtime

Sessions = sessionmaker[Session]


def advance_once(here: Runtime) -> None:
    advance(here, claim_kind(here.sessions, WorkKind.ADVANCE))


def tree(here: Runtime, job: Job) -> list[candidates.TreeRow]:
    with here.sessions.begin() as session:
        return candidates.load_tree(session, job.id)


def queues(here: Runtime, kind: WorkKind) -> list[str]:
    with here.sessions.begin() as session:
        return list(
            session.execute(text("SELECT queue FROM work WHERE kind = :kind ORDER BY id"), {"kind": kind}).scalars()
        )


def test_the_first_advance_starts_the_job_and_fills_its_slots(here: Runtime) -> None:
    job = make_job(here.sessions)
    advance_once(here)
    assert fresh(here.sessions, job).state == "running"
    assert [(row.operator, row.proposer, row.state) for row in tree(here, job)] == [
        ("seed", "builtin", "proposing")
    ] * 2
    assert queues(here, WorkKind.PROPOSE) == ["cpu", "cpu"]
    assert states(here.sessions, WorkKind.ADVANCE) == ["done"]


def test_advancing_again_changes_nothing(here: Runtime) -> None:
    job = make_job(here.sessions)
    advance_once(here)
    version = fresh(here.sessions, job).version
    with here.sessions.begin() as session:
        jobs.enqueue_advance(session, job.id)
    advance_once(here)
    assert len(tree(here, job)) == 2
    assert fresh(here.sessions, job).version == version


def test_models_propose_on_the_llm_queue(here: Runtime) -> None:
    job = make_job(here.sessions, models=("openai/scripted",), hardware="nvidia-h100", language="triton")
    advance_once(here)
    for row, queue in zip(tree(here, job), queues(here, WorkKind.PROPOSE), strict=True):
        assert queue == {"llm": "llm", "builtin": "gpu.nvidia-h100"}[row.proposer]
    assert "llm" in {row.proposer for row in tree(here, job)}


def test_each_live_worker_is_a_slot_and_one_more_is_made_meanwhile(here: Runtime) -> None:
    with here.sessions.begin() as session:
        assert slots(session, "cpu") == 2
        for number in range(3):
            workers.register(session, WorkerFacts(f"worker_{number}", "box", number, ("cpu",)))
    with here.sessions.begin() as session:
        assert (slots(session, "cpu"), slots(session, "nvidia-h100")) == (4, 2)


def test_a_target_that_is_reached_ends_the_job_and_what_is_in_flight(here: Runtime) -> None:
    job = make_job(here.sessions, target_speedup=2.0)
    advance_once(here)
    first = tree(here, job)[0].id
    propose(here.sessions, first)
    evaluate(here.sessions, first, speedup=2.5)
    advance_once(here)
    after = fresh(here.sessions, job)
    assert (after.state, after.stop_reason, after.best_candidate_id) == ("succeeded", "target_reached", first)
    assert [row.state for row in tree(here, job)] == ["evaluated", "cancelled"]
    assert event_types(here.sessions, job.id)[-1] == "job.finished"


def test_the_budget_of_candidates_is_never_overshot(here: Runtime) -> None:
    job = make_job(here.sessions, budget_candidates=3)
    advance_once(here)
    for _ in range(3):
        waiting = next(row.id for row in tree(here, job) if row.state == "proposing")
        propose(here.sessions, waiting)
        evaluate(here.sessions, waiting, verdict="incorrect", speedup=None)
        advance_once(here)
    after = fresh(here.sessions, job)
    assert (after.state, after.stop_reason) == ("failed", "budget_candidates")
    assert [row.state for row in tree(here, job)] == ["evaluated"] * 3


def test_a_cancel_ends_the_job(here: Runtime) -> None:
    job = make_job(here.sessions)
    advance_once(here)
    with here.sessions.begin() as session:
        jobs.cancel_job(session, job.id)
    advance_once(here)
    after = fresh(here.sessions, job)
    assert (after.state, after.stop_reason) == ("cancelled", "cancelled")
    assert states(here.sessions, WorkKind.PROPOSE) == ["cancelled", "cancelled"]


def test_an_advance_of_a_finished_job_does_nothing(here: Runtime) -> None:
    job = make_job(here.sessions)
    with here.sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.EXHAUSTED)
        session.execute(text("UPDATE work SET state = 'queued', finished_at = NULL"))
    version = fresh(here.sessions, job).version
    advance_once(here)
    assert fresh(here.sessions, job).version == version


def test_a_late_advance_is_fenced(here: Runtime) -> None:
    job = make_job(here.sessions)
    late = claim_kind(here.sessions, WorkKind.ADVANCE)
    expire(here.sessions, late)
    with here.sessions.begin() as session:
        session.execute(text("UPDATE work SET lease_token = gen_random_uuid()"))
    with pytest.raises(Fenced):
        advance(here, late)
    assert fresh(here.sessions, job).state == "queued"
    assert tree(here, job) == []


def test_the_search_sees_what_a_candidate_cost_and_how_far_its_roof_is(here: Runtime) -> None:
    job = make_job(here.sessions, search_policy="uct")
    advance_once(here)
    first = tree(here, job)[0].id
    propose(here.sessions, first, plan="one pass")
    fractions = {"small": 0.25, "large": 1, "cached": None}
    rows = [{"name": name, "sol_fraction": found} for name, found in fractions.items()]
    evaluate(here.sessions, first, workloads=rows, profile={"bound": "memory"})
    with here.sessions.begin() as session:
        candidates.add_cost(session, first, Decimal("0.25"))
    seen, other = (node(row) for row in tree(here, job))
    assert (seen.plan, seen.cost_usd, seen.gpu_s) == ("one pass", Decimal("0.25"), 2.0)
    assert seen.sol_fraction == pytest.approx(0.5)
    assert (seen.bottleneck, other.bottleneck) == ("memory", None)
    assert (other.plan, other.cost_usd, other.gpu_s, other.sol_fraction) == (None, Decimal(0), 0.0, None)


def test_the_search_sees_the_job_as_it_is(here: Runtime) -> None:
    job = make_job(
        here.sessions,
        budget_usd=Decimal("5"),
        budget_wall_s=60.0,
        target_speedup=2.0,
        stagnation=4,
        seed=3,
        search_policy="islands",
    )
    with here.sessions.begin() as session:
        jobs.start_job(session, jobs.fetch_job(session, job.id))
        session.execute(
            text(
                "UPDATE jobs SET started_at = now() - interval '30 s', cost_usd = 1.5, gpu_s = 7,"
                " cancel_requested = true"
            )
        )
    with here.sessions.begin() as session:
        seen = view(session, jobs.fetch_job(session, job.id))
    assert (seen.budget.candidates, seen.budget.usd, seen.budget.wall_s, seen.budget.gpu_s) == (
        10,
        Decimal(5),
        60.0,
        None,
    )
    assert (seen.stop.target_speedup, seen.stop.stagnation, seen.seed) == (2.0, 4, 3)
    assert seen.policy == "islands"
    assert 30 <= seen.elapsed_s < 60
    assert (seen.cost_usd, seen.gpu_s, seen.cancel_requested) == (Decimal("1.5"), 7.0, True)
