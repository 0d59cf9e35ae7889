"""Certifying with the real judge, and how a job ends around it.

Here the judge refuses, which takes it seconds; a kernel that passes everything is in the acceptance tests.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from db import certificates, jobs, ledger
from db.ledger import Claim, Fenced
from db.models import Certificate, Job
from db.vocabulary import WorkKind
from tests.integration.worker.test_evaluating import SLEEPY, WRONG
from tests.support.ledger import (
    OWNER,
    claim_kind,
    evaluate,
    event_types,
    fresh,
    make_candidates,
    make_job,
    propose,
    states,
)
from tests.support.working import Working
from worker.advancing import advance
from worker.certifying import certify
from worker.judge.certificate.document import is_intact
from worker.runtime import Runtime


def accepted(here: Runtime, *sources: str, **overrides: Any) -> tuple[Job, list[str]]:
    """A job that its search will end at the next advance; each of its candidates is faster than the one before."""
    job = make_job(here.sessions, **{"certify": True, "budget_candidates": len(sources)} | overrides)
    ids = make_candidates(here.sessions, job, len(sources))
    for number, (candidate_id, source) in enumerate(zip(ids, sources, strict=True)):
        propose(here.sessions, candidate_id, f"{source}\nNUMBER = {number}\n")
        evaluate(here.sessions, candidate_id, worker_id=OWNER, speedup=1.5 + number)
    return job, ids


def advance_once(here: Runtime) -> None:
    advance(here, claim_kind(here.sessions, WorkKind.ADVANCE))


def finalist(here: Runtime, *sources: str) -> tuple[Job, list[str], Claim]:
    job, ids = accepted(here, *sources)
    advance_once(here)
    return job, ids, claim_kind(here.sessions, WorkKind.CERTIFY)


def stored(here: Runtime, candidate_id: str) -> Certificate | None:
    with here.sessions.begin() as session:
        return session.query(Certificate).filter_by(candidate_id=candidate_id).one_or_none()


def test_the_search_ends_and_its_champion_is_to_be_certified(here: Runtime) -> None:
    job, ids = accepted(here, WRONG, WRONG)
    advance_once(here)
    after = fresh(here.sessions, job)
    assert (after.state, after.stop_reason, after.finished_at) == ("running", "budget_candidates", None)
    assert event_types(here.sessions, job.id)[-1] == "job.search_ended"
    assert claim_kind(here.sessions, WorkKind.CERTIFY).candidate_id == ids[1]
    with here.sessions.begin() as session:
        jobs.enqueue_advance(session, job.id)
    advance_once(here)  # while it is being certified, another advance changes nothing
    assert fresh(here.sessions, job).version == after.version


def test_a_job_that_asks_for_no_certificate_ends_at_once(here: Runtime) -> None:
    job, ids = accepted(here, WRONG, certify=False)
    advance_once(here)
    after = fresh(here.sessions, job)
    assert (after.state, after.best_candidate_id) == ("succeeded", ids[0])
    assert states(here.sessions, WorkKind.CERTIFY) == []


def test_the_judges_refusal_is_stored_and_the_next_best_is_tried_until_there_is_none(here: Runtime) -> None:
    job, ids, claim = finalist(here, WRONG, WRONG)
    certify(here, claim)
    refused = stored(here, ids[1])
    assert refused is not None and (refused.certified, refused.verdict) == (False, "incorrect")
    assert is_intact(refused.document) and refused.sha256 == refused.document["sha256"]
    assert refused.page.lstrip().lower().startswith("<!doctype html>") and refused.sha256 in refused.page
    assert refused.document["candidate"]["id"] == ids[1]
    assert refused.document["own_kernels"]["required"] == 0.9
    assert fresh(here.sessions, job).best_candidate_id == ids[0]
    advance_once(here)
    certify(here, claim_kind(here.sessions, WorkKind.CERTIFY))
    advance_once(here)
    after = fresh(here.sessions, job)
    assert (after.state, after.stop_reason, after.best_candidate_id) == ("failed", "budget_candidates", None)
    assert (after.error or "").startswith("each of the 2 fastest candidates was refused its certificate")
    assert event_types(here.sessions, job.id)[-1] == "job.finished"


def test_a_certified_champion_ends_the_job(here: Runtime) -> None:
    job, ids, claim = finalist(here, WRONG)
    with here.sessions.begin() as session:
        document = {"certified": True, "verdict": "ok", "reason": "", "sha256": "0" * 64}
        certificates.store_certificate(session, claim, document, "page")
    advance_once(here)
    after = fresh(here.sessions, job)
    assert (after.state, after.stop_reason, after.best_candidate_id) == ("succeeded", "budget_candidates", ids[0])


def test_a_cancel_does_not_wait_for_the_certificate(here: Runtime) -> None:
    job, ids, _ = finalist(here, WRONG)
    with here.sessions.begin() as session:
        jobs.cancel_job(session, job.id)
    advance_once(here)
    after = fresh(here.sessions, job)
    assert (after.state, after.stop_reason, after.best_candidate_id) == ("cancelled", "cancelled", ids[0])
    assert states(here.sessions, WorkKind.CERTIFY) == ["cancelled"]


def test_a_lost_lease_kills_the_judge_and_stores_nothing(here: Runtime) -> None:
    _, ids, claim = finalist(here, SLEEPY)
    with Working(certify, here, claim) as running, here.sessions.begin() as session:
        session.execute(text("UPDATE work SET lease_token = gen_random_uuid() WHERE id = :id"), {"id": claim.id})
    assert isinstance(running.raised, Fenced)
    assert stored(here, ids[0]) is None


def test_a_judge_that_dies_gives_the_work_back_without_counting_it(here: Runtime) -> None:
    _, ids, claim = finalist(here, SLEEPY)
    with Working(certify, here, claim) as running:
        running.lose_the_judge()
    assert running.raised is None
    assert stored(here, ids[0]) is None
    with here.sessions.begin() as session:
        row = session.execute(text("SELECT state, attempt, returned FROM work WHERE kind = 'certify'")).one()
    assert tuple(row) == ("queued", 0, 1)


def test_a_fenced_claim_never_reaches_the_judge(here: Runtime) -> None:
    _, _, claim = finalist(here, SLEEPY)
    with here.sessions.begin() as session:
        session.execute(text("UPDATE work SET lease_token = gen_random_uuid() WHERE id = :id"), {"id": claim.id})
    with pytest.raises(Fenced):
        certify(here, claim)


def test_who_evaluated_the_champion_certifies_it(here: Runtime) -> None:
    job, ids = accepted(here, WRONG)
    with here.sessions.begin() as session:
        assert ledger.to_be_certified(session, job.id, OWNER)
        assert not ledger.to_be_certified(session, job.id, "another")
        assert ledger.claim_finalist(session, job.id, OWNER) is None, "nothing is decided"
    advance_once(here)
    with here.sessions.begin() as session:
        assert not ledger.to_be_certified(session, job.id, OWNER)
        session.execute(text("UPDATE work SET created_at = now() WHERE kind = 'certify'"))  # just now, however slow
        assert ledger.claim_next(session, ["cpu"], "another") is None
        assert ledger.claim_finalist(session, job.id, "another") is None
        found = ledger.claim_finalist(session, job.id, OWNER)
    assert found is not None and (found.kind, found.candidate_id) == (WorkKind.CERTIFY, ids[0])


def test_what_is_more_urgent_goes_before_a_champion(here: Runtime) -> None:
    job, _ids = accepted(here, WRONG)
    advance_once(here)
    urgent = make_job(here.sessions, priority=5)
    propose(here.sessions, make_candidates(here.sessions, urgent)[0])
    with here.sessions.begin() as session:
        assert ledger.claim_finalist(session, job.id, OWNER) is None


@pytest.mark.parametrize("waits", ["work", "evaluations"], ids=["it does not come", "it was evaluated long ago"])
def test_a_champion_is_not_kept_for_long(here: Runtime, waits: str) -> None:
    _job, ids = accepted(here, WRONG)
    advance_once(here)
    with here.sessions.begin() as session:
        session.execute(text(f"UPDATE {waits} SET created_at = now() - interval '4 seconds'"))
        found = ledger.claim_next(session, ["cpu"], "another")
    assert found is not None and found.candidate_id == ids[0]
