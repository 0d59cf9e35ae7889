"""Admissions in rows: examined once for all jobs of one judge, and what a refusal does to a job."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from db import admitting, jobs, ledger, recovery, workers
from db.admissions import JUDGE_FACT, ProblemRefused, admission_pending, current_admission
from db.ledger import Claim, Fenced
from db.models import Admission, Job
from db.vocabulary import AdmissionVerdict, WorkKind
from db.workers import WorkerFacts
from tests.support.ledger import (
    claim_kind,
    evaluate,
    event_types,
    expire,
    fresh,
    make_candidates,
    make_job,
    new_job,
    propose,
    rung,
    states,
)

Sessions = sessionmaker[Session]
JUDGE = "hash-of-the-judge"
WARNED = {
    "verdict": "admitted with warnings",
    "reason": "",
    "warnings": ["zeros would pass in 1 of 9 families (equal)"],
    "domains": {"x": {"kind": "real", "bound": None, "why": "finite for normal values"}},
    "figure": float("inf"),
}
REFUSED = {"verdict": "refused", "reason": "line 4: the reference is random"}


def store(sessions: Sessions, claim: Claim, report: dict[str, Any] = WARNED, judge: str = JUDGE) -> Admission:
    with sessions.begin() as session:
        return admitting.store_admission(session, claim, judge, report)


def examined(sessions: Sessions, report: dict[str, Any] = WARNED, **overrides: Any) -> Job:
    """A job whose problem was examined."""
    job = make_job(sessions, admit=True, **overrides)
    store(sessions, claim_kind(sessions, WorkKind.ADMIT), report)
    return job


def serving(sessions: Sessions, judge: str) -> None:
    """A worker of the cpu that has this judge."""
    with sessions.begin() as session:
        facts = WorkerFacts(f"worker_{judge}", "box", 1, ("cpu",), "cpu", {"cores": 2, JUDGE_FACT: judge})
        workers.register(session, facts)


def test_a_new_problem_is_examined_on_the_queue_of_its_hardware_before_anything_is_proposed(sessions: Sessions) -> None:
    with sessions.begin() as session:
        job = jobs.create_job(session, new_job(admit=True, hardware="nvidia-h100", language="cuda", priority=3)).job
        assert rung(session) == ["admit", "advance"]
        assert admission_pending(session, job.id)
    make_candidates(sessions, job, queue="gpu.nvidia-h100")
    with sessions.begin() as session:
        claim = ledger.claim_next(session, ["gpu.nvidia-h100"], "worker_1")
    assert claim is not None and (claim.kind, claim.candidate_id) == (WorkKind.ADMIT, None)


def test_what_was_found_is_stored_and_the_job_goes_by_it(sessions: Sessions) -> None:
    job = make_job(sessions, admit=True)
    claim_kind(sessions, WorkKind.ADVANCE)
    admission = store(sessions, claim_kind(sessions, WorkKind.ADMIT))
    after = fresh(sessions, job)
    assert after.admission_id == admission.id
    assert (admission.verdict, admission.judge_hash, admission.hardware) == (AdmissionVerdict.WARNED, JUDGE, "cpu")
    assert admission.report == WARNED | {"figure": None}
    assert event_types(sessions, job.id) == ["job.created", "problem.admitted"]
    assert states(sessions, WorkKind.ADMIT) == ["done"]
    assert states(sessions, WorkKind.ADVANCE) == ["running", "queued"]


def test_a_second_job_on_the_problem_has_nothing_examined(sessions: Sessions) -> None:
    first = examined(sessions)
    second = make_job(sessions, admit=True)
    assert fresh(sessions, second).admission_id == fresh(sessions, first).admission_id
    assert states(sessions, WorkKind.ADMIT) == ["done"]
    assert event_types(sessions, second.id) == ["job.created", "problem.admitted"]


@pytest.mark.parametrize("other", [{"hardware": "nvidia-h100", "language": "cuda"}, {"problem_hash": "another"}])
def test_another_hardware_and_another_problem_are_examined_anew(sessions: Sessions, other: dict[str, str]) -> None:
    examined(sessions)
    job = make_job(sessions, admit=True, **other)
    assert fresh(sessions, job).admission_id is None
    assert states(sessions, WorkKind.ADMIT) == ["done", "queued"]


def test_what_an_older_judge_found_holds_until_workers_have_a_new_one(sessions: Sessions) -> None:
    examined(sessions, REFUSED)
    with sessions.begin() as session:
        assert current_admission(session, "hash-of-softmax", "cpu") is not None
    serving(sessions, JUDGE)
    with pytest.raises(ProblemRefused, match="the problem cannot be judged: line 4: the reference is random"):
        make_job(sessions)
    serving(sessions, "hash-of-a-newer-judge")
    job = make_job(sessions, admit=True)
    assert fresh(sessions, job).admission_id is None
    assert states(sessions, WorkKind.ADMIT) == ["done", "queued"]


def test_two_jobs_that_were_submitted_together_share_the_first_finding(sessions: Sessions) -> None:
    first, second = make_job(sessions, admit=True), make_job(sessions, admit=True)
    claims = [claim_kind(sessions, WorkKind.ADMIT) for _ in (first, second)]
    with sessions.begin() as session:
        assert admitting.reuse_admission(session, claims[0], JUDGE) is None
    kept = store(sessions, claims[0])
    with sessions.begin() as session:
        reused = admitting.reuse_admission(session, claims[1], JUDGE)
    assert reused is not None and reused.id == kept.id == fresh(sessions, second).admission_id
    assert states(sessions, WorkKind.ADMIT) == ["done", "done"]


def test_of_two_findings_at_once_the_first_is_kept(sessions: Sessions) -> None:
    first, second = make_job(sessions, admit=True), make_job(sessions, admit=True)
    claims = [claim_kind(sessions, WorkKind.ADMIT) for _ in (first, second)]
    kept = store(sessions, claims[0])
    assert store(sessions, claims[1], WARNED | {"warnings": []}).id == kept.id
    assert fresh(sessions, second).admission_id == kept.id


def test_a_refusal_ends_the_job_as_failed_with_one_sentence_and_leaves_nothing_queued(sessions: Sessions) -> None:
    job = make_job(sessions, admit=True, certify=True)
    (accepted, waiting) = make_candidates(sessions, job, 2)
    propose(sessions, accepted)
    evaluate(sessions, accepted)  # accepted by tests that cannot tell right from wrong
    propose(sessions, waiting)
    store(sessions, claim_kind(sessions, WorkKind.ADMIT), REFUSED)
    after = fresh(sessions, job)
    assert (after.state, after.stop_reason, after.best_candidate_id) == ("failed", "error", None)
    assert after.error == "the problem cannot be judged: line 4: the reference is random"
    assert event_types(sessions, job.id)[-2:] == ["problem.refused", "job.finished"]
    with sessions.begin() as session:
        query = "SELECT count(*) FROM work WHERE state IN ('queued', 'running')"
        assert session.execute(text(query)).scalar_one() == 0
        assert session.execute(text("SELECT count(*) FROM kernels")).scalar_one() == 0


def test_a_problem_that_was_refused_is_refused_at_once(sessions: Sessions) -> None:
    examined(sessions, REFUSED)
    with pytest.raises(ProblemRefused):
        make_job(sessions)
    with sessions.begin() as session:
        assert session.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 1


def test_a_late_finding_is_fenced(sessions: Sessions) -> None:
    job = make_job(sessions, admit=True)
    claim = claim_kind(sessions, WorkKind.ADMIT)
    expire(sessions, claim)
    with sessions.begin() as session:
        assert recovery.reap(session).requeued == 1
    with pytest.raises(Fenced):
        store(sessions, claim)
    with pytest.raises(Fenced), sessions.begin() as session:
        admitting.reuse_admission(session, claim, JUDGE)
    assert fresh(sessions, job).admission_id is None
    assert claim_kind(sessions, WorkKind.ADMIT).attempt == 2


def test_an_examination_that_kills_its_worker_three_times_says_nothing_about_the_problem(sessions: Sessions) -> None:
    job = make_job(sessions, admit=True)
    with sessions.begin() as session:
        ledger.finish(session, claim_kind(sessions, WorkKind.ADVANCE))
    for _ in range(3):
        expire(sessions, claim_kind(sessions, WorkKind.ADMIT))
        with sessions.begin() as session:
            recovery.reap(session)
    after = fresh(sessions, job)
    assert (after.state, after.admission_id) == ("queued", None)
    assert states(sessions, WorkKind.ADMIT) == ["dead"]
    assert states(sessions, WorkKind.ADVANCE) == ["done", "queued"]
    assert event_types(sessions, job.id)[-1] == "work.dead"
