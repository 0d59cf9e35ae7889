"""Candidates and evaluations in rows: duplicates, the best, lists, and what a hostile report may hold."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import candidates, jobs, recovery
from db.candidates import Proposed, Sort
from db.ledger import Fenced
from db.paging import InvalidCursor
from db.vocabulary import Failure, StopReason, WorkKind, WorkState
from tests.support.ledger import (
    claim_kind,
    evaluate,
    event_types,
    fresh,
    make_candidates,
    make_job,
    propose,
    report,
    states,
)

Sessions = sessionmaker[Session]


def test_ordinals_count_up_across_calls(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job, 2)
    make_candidates(sessions, job, 1, operator="tune", parents=("cand_x",))
    with sessions.begin() as session:
        tree = candidates.load_tree(session, job.id)
    assert [(row.ordinal, row.operator, row.parents) for row in tree] == [
        (1, "seed", ()),
        (2, "seed", ()),
        (3, "tune", ("cand_x",)),
    ]


def test_the_same_source_again_is_rejected_and_costs_no_evaluation(sessions: Sessions) -> None:
    job = make_job(sessions)
    first, second = make_candidates(sessions, job, 2)
    assert propose(sessions, first, "x = 1") == "queued"
    assert propose(sessions, second, "x = 1") == "rejected"
    with sessions.begin() as session:
        row = candidates.get_candidate(session, second)
    assert row is not None
    assert (row.candidate.failure, row.candidate.duplicate_of) == ("duplicate", first)
    assert row.candidate.failure_detail == "the same source as candidate 1 of this job"
    assert states(sessions, WorkKind.EVALUATE) == ["queued"]
    assert event_types(sessions, job.id)[-2:] == ["candidate.proposed", "candidate.rejected"]


def test_another_job_may_have_the_same_source(sessions: Sessions) -> None:
    for job in (make_job(sessions), make_job(sessions)):
        (candidate_id,) = make_candidates(sessions, job)
        assert propose(sessions, candidate_id, "x = 1") == "queued"


def test_a_proposal_is_stored_with_its_plan_and_params(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id, "x = '\x00\ud800'", plan="a plan", params={"BLOCK": 64}, tunable=True)
    with sessions.begin() as session:
        (row,) = candidates.load_tree(session, job.id)
        found = candidates.get_candidate(session, candidate_id)
    assert (row.state, row.params, row.tunable) == ("queued", {"BLOCK": 64}, True)
    assert found is not None and found.candidate.source == "x = '\ufffd?'"


def test_a_rejected_candidate_says_why(sessions: Sessions) -> None:
    job = make_job(sessions)
    claim_kind(sessions, WorkKind.ADVANCE)
    make_candidates(sessions, job)
    claim = claim_kind(sessions, WorkKind.PROPOSE)
    with sessions.begin() as session:
        candidates.reject_candidate(session, claim, Failure.REFUSED, "it would rather not")
    with sessions.begin() as session:
        (row,) = candidates.list_candidates(session, job.id, state="rejected").items
    assert (row.candidate.failure, row.candidate.failure_detail) == ("refused", "it would rather not")
    assert states(sessions, WorkKind.ADVANCE) == ["running", "queued"]


def test_the_best_is_the_fastest_verified(sessions: Sessions) -> None:
    job = make_job(sessions)
    found: list[dict[str, Any]] = [
        {"verdict": "incorrect", "speedup": 9.0},
        {"verdict": "ok", "speedup": None, "timed": False, "ci95": None},
        {"verdict": "ok", "speedup": 1.2},
        {"verdict": "ok", "speedup": 1.1},
        {"verdict": "suspicious", "speedup": 30.0},
        {"verdict": "ok", "speedup": 1.3},
        {"verdict": "ok", "speedup": 1.3},
        {"verdict": "ok", "speedup": None, "timed": False, "ci95": None},
    ]
    ids = make_candidates(sessions, job, len(found))
    best = []
    for candidate_id, fields in zip(ids, found, strict=True):
        propose(sessions, candidate_id)
        evaluate(sessions, candidate_id, **fields)
        after = fresh(sessions, job)
        best.append((ids.index(after.best_candidate_id) if after.best_candidate_id else None, after.best_speedup))
    assert best == [(None, None), (1, None), (2, 1.2), (2, 1.2), (2, 1.2), (5, 1.3), (5, 1.3), (5, 1.3)]
    assert event_types(sessions, job.id).count("job.improved") == 3
    assert fresh(sessions, job).gpu_s == 2.0 * len(found)


def test_the_whole_report_is_stored_whatever_it_holds(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    hostile: dict[str, Any] = {
        "log": "NUL \x00 and a lone surrogate \udcff",
        "latency_us": math.inf,
        "workloads": [{"name": "small", "samples_us": [1.0, math.nan]}],
        "environment": {"device": "cpu"},
        "wall_s": 3.5,
    }
    evaluate(sessions, candidate_id, **hostile)
    with sessions.begin() as session:
        row = candidates.get_candidate(session, candidate_id)
    assert row is not None and row.evaluation is not None
    evaluation = row.evaluation
    assert (evaluation.latency_us, evaluation.ci95_low, evaluation.ci95_high) == (None, 1.4, 1.6)
    assert evaluation.report["workloads"] == [{"name": "small", "samples_us": [1.0, None]}]
    assert evaluation.report["log"] == "NUL \ufffd and a lone surrogate ?"
    assert (evaluation.environment, evaluation.wall_s) == ({"device": "cpu"}, 3.5)


def test_a_verdict_that_is_no_verdict_is_refused_and_the_work_is_still_held(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    claim = claim_kind(sessions, WorkKind.EVALUATE)
    with pytest.raises(ValueError, match="splendid"), sessions.begin() as session:
        candidates.store_evaluation(session, claim, report(verdict="splendid"))
    assert states(sessions, WorkKind.EVALUATE) == ["running"]


def test_starting_an_evaluation_shows(sessions: Sessions) -> None:
    job = make_job(sessions)
    (candidate_id,) = make_candidates(sessions, job)
    propose(sessions, candidate_id)
    claim = claim_kind(sessions, WorkKind.EVALUATE)
    for _ in range(2):  # a second attempt finds it evaluating already
        with sessions.begin() as session:
            assert candidates.start_evaluation(session, claim).state == "evaluating"
    assert event_types(sessions, job.id).count("candidate.evaluating") == 1


def some_candidates(sessions: Sessions) -> tuple[str, list[str]]:
    job = make_job(sessions)
    ids = make_candidates(sessions, job, 6)
    for candidate_id, speedup in zip(ids[:4], (1.5, None, 2.5, 1.5), strict=True):
        propose(sessions, candidate_id)
        evaluate(sessions, candidate_id, verdict="ok" if speedup else "incorrect", speedup=speedup)
    return job.id, ids


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("ordinal", [0, 1, 2, 3, 4, 5]),
        ("-ordinal", [5, 4, 3, 2, 1, 0]),
        ("-speedup", [2, 0, 3, 1, 4, 5]),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 4, 6, 50])
def test_pages_see_each_candidate_once(sessions: Sessions, sort: Sort, order: list[int], limit: int) -> None:
    job_id, ids = some_candidates(sessions)
    seen: list[str] = []
    cursor = None
    for _ in range(7):
        with sessions.begin() as session:
            page = candidates.list_candidates(session, job_id, sort=sort, limit=limit, cursor=cursor)
        seen += [row.candidate.id for row in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert [ids.index(candidate_id) for candidate_id in seen] == order


def test_candidates_are_filtered_by_verdict(sessions: Sessions) -> None:
    job_id, ids = some_candidates(sessions)
    with sessions.begin() as session:
        page = candidates.list_candidates(session, job_id, verdict="incorrect")
    assert [row.candidate.id for row in page.items] == [ids[1]]


@pytest.mark.parametrize("sort", ["ordinal", "-ordinal", "-speedup"])
@pytest.mark.parametrize("cursor", ["nonsense", "WyJhIl0", "WyJhIiwgImIiXQ"])
def test_a_foreign_cursor_is_refused(sessions: Sessions, sort: Sort, cursor: str) -> None:
    job = make_job(sessions)
    with pytest.raises(InvalidCursor), sessions.begin() as session:
        candidates.list_candidates(session, job.id, sort=sort, cursor=cursor)


def test_money_is_booked_on_candidate_and_job(sessions: Sessions) -> None:
    job = make_job(sessions)
    first, second = make_candidates(sessions, job, 2)
    for candidate_id, cost in ((first, "0.10"), (first, "0.20"), (second, "0.000001")):
        with sessions.begin() as session:
            candidates.add_cost(session, candidate_id, Decimal(cost))
    with sessions.begin() as session:
        costs = session.execute(text("SELECT cost_usd FROM candidates ORDER BY ordinal")).scalars().all()
    assert costs == [Decimal("0.30"), Decimal("0.000001")]
    assert fresh(sessions, job).cost_usd == Decimal("0.300001")


def test_a_proposal_stays_out_when_its_job_has_ended(sessions: Sessions) -> None:
    job = make_job(sessions)
    make_candidates(sessions, job)
    claim = claim_kind(sessions, WorkKind.PROPOSE)
    with sessions.begin() as session:
        jobs.finish_job(session, job.id, StopReason.BUDGET_WALL)
    with pytest.raises(Fenced), sessions.begin() as session:
        candidates.store_proposal(session, claim, Proposed("x = 1", source_hash="h"), queue="cpu")


@pytest.mark.parametrize("end", ["rejected", "buried"])
def test_an_urgent_job_stays_urgent_after_a_proposal_that_made_nothing(sessions: Sessions, end: str) -> None:
    """Its advance would wait behind all other jobs, and what wakes it later adds no other."""
    job = make_job(sessions, priority=5)
    claim_kind(sessions, WorkKind.ADVANCE)
    make_candidates(sessions, job)
    claim = claim_kind(sessions, WorkKind.PROPOSE)
    with sessions.begin() as session:
        if end == "rejected":
            candidates.reject_candidate(session, claim, "no_code")
        else:
            session.execute(text("UPDATE work SET max_attempts = 1 WHERE kind = 'propose'"))
            assert recovery.give_back(session, claim, "it broke") is WorkState.DEAD
    with sessions.begin() as session:
        queued = session.execute(text("SELECT priority FROM work WHERE kind = 'advance' AND state = 'queued'"))
        assert queued.scalars().all() == [5]
