"""Certificates: stored once for each finalist, with what follows for the job's best candidate.

When the search has ended, `advance` asks `next_step`. A certified best ends the job; a refused one hands its place to
the next best, three times at most; a machine that failed for good leaves the best as it is, without a certificate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final

from sqlalchemy import Row, select, update
from sqlalchemy.orm import Session

from db import events, jobs, ledger
from db.admissions import admission_pending
from db.finishing import set_best
from db.ids import new_id
from db.ledger import Claim
from db.models import Candidate, Certificate, Evaluation, Job, Work
from db.storable import storable_text
from db.vocabulary import EventType, Verdict, WorkKind, WorkState, target_queue

MAX_REFUSALS: Final = 3
"""So many finalists are tried: were the fourth sound, the judgement of the first three would still want a look."""


class Step(Enum):
    """What a job whose search has ended needs next."""

    WAIT = auto()
    """The problem's admission or the champion's certificate is under way."""
    CERTIFY = auto()
    FINISH = auto()


def next_step(session: Session, job: Job) -> Step:
    """What to do now that the search has ended. Without a best there is nothing to wait for."""
    if job.best_candidate_id is None:
        return Step.FINISH
    if admission_pending(session, job.id):
        return Step.WAIT
    # What could not be timed here (Triton without its GPU) cannot be certified here.
    if not job.certify or job.best_speedup is None:
        return Step.FINISH
    query = select(Work.state).where(Work.candidate_id == job.best_candidate_id, Work.kind == WorkKind.CERTIFY.value)
    state = session.scalar(query)
    if state is None:
        return Step.CERTIFY
    return Step.WAIT if state in (WorkState.QUEUED, WorkState.RUNNING) else Step.FINISH


def enqueue_certify(session: Session, job: Job) -> None:
    """Have the job's best certified, on the queue where it was evaluated."""
    ledger.enqueue(
        session,
        kind=WorkKind.CERTIFY,
        queue=target_queue(job.hardware),
        job_id=job.id,
        candidate_id=job.best_candidate_id,
        priority=job.priority,
    )


def store_certificate(session: Session, claim: Claim, document: Mapping[str, Any], page: str) -> Certificate:
    """Finish a `certify` with the judge's document and its page. A candidate that is refused is the best no longer.

    The document is stored as it came, so that its hash holds. Its speedup is the job's from now on: the best of many
    candidates is often the one whose measurement erred most in its favour (6.6x, and 1.9x when it was measured again on
    a busy machine). Raises Fenced.
    """
    events.lock_job(session, claim.job_id)
    ledger.settle(session, claim)
    certificate = Certificate(
        id=new_id("cert"),
        candidate_id=claim.candidate,
        job_id=claim.job_id,
        certified=bool(document["certified"]),
        verdict=Verdict(document["verdict"]).value,
        reason=storable_text(document["reason"]) if document.get("reason") else None,
        sha256=document["sha256"],
        document=dict(document),
        page=storable_text(page),
        **_certified_times(document),
        gpu_s=float(document.get("judge", {}).get("device_held_s", 0)),
    )
    session.add(certificate)
    session.flush()
    ordinal = session.get_one(Candidate, claim.candidate).ordinal
    data = {"candidate_id": claim.candidate, "ordinal": ordinal, "sha256": certificate.sha256}
    if certificate.certified:
        data["reservations"] = len(document.get("reservations") or ())
        if certificate.speedup is not None:
            data["speedup"] = certificate.speedup
            set_best(session, claim.job_id, claim.candidate, certificate.speedup)
        events.append(session, claim.job_id, EventType.CANDIDATE_CERTIFIED, data)
    else:
        data |= {"verdict": certificate.verdict, "reason": certificate.reason}
        data["best_candidate_id"] = _dethrone(session, claim.job_id)
        events.append(session, claim.job_id, EventType.CANDIDATE_CERTIFICATE_REFUSED, data)
    session.execute(
        update(Job).where(Job.id == claim.job_id).values(gpu_s=Job.gpu_s + certificate.gpu_s),
        execution_options={"synchronize_session": False},
    )
    jobs.enqueue_advance(session, claim.job_id, priority=jobs.fetch_job(session, claim.job_id).priority)
    return certificate


def _certified_times(document: Mapping[str, Any]) -> dict[str, float]:
    timing = document.get("timing")
    if not document["certified"] or not timing:
        return {}
    low, high = timing["ci95"]
    return {"speedup": float(timing["speedup"]), "ci95_low": float(low), "ci95_high": float(high)}


def refusals(session: Session, job_id: str) -> list[str]:
    """Why the job's finalists were refused, in the order in which they were."""
    query = (
        select(Certificate.reason)
        .where(Certificate.job_id == job_id, Certificate.certified.is_(False))
        .order_by(Certificate.id)
    )
    return [reason or "" for reason in session.scalars(query)]


def no_champion(reasons: Sequence[str]) -> str | None:
    """The sentence of a job whose finalists were all refused; None when there was none."""
    if not reasons:
        return None
    many = "the fastest candidate" if len(reasons) == 1 else f"each of the {len(reasons)} fastest candidates"
    return f"{many} was refused its certificate; the last because: {reasons[-1]}"


def job_certificate(session: Session, job: Job) -> Certificate | None:
    """The best candidate's certificate; of a job that ended without a best, the last refusal."""
    query = select(Certificate)
    if job.best_candidate_id is not None:
        query = query.where(Certificate.candidate_id == job.best_candidate_id)
    elif job.finished_at is not None:
        query = query.where(Certificate.job_id == job.id).order_by(Certificate.id.desc()).limit(1)
    else:
        return None
    return session.scalars(query).one_or_none()


def candidate_certificate(session: Session, candidate_id: str) -> Certificate | None:
    """The certificate of a candidate, or its refusal."""
    return session.scalars(select(Certificate).where(Certificate.candidate_id == candidate_id)).one_or_none()


def _dethrone(session: Session, job_id: str) -> str | None:
    """Give the refused candidate's place to the next best, or to nobody; the id of the new best."""
    heir = None if len(refusals(session, job_id)) >= MAX_REFUSALS else _next_best(session, job_id)
    candidate_id, speedup = (None, None) if heir is None else (heir.id, heir.speedup)
    set_best(session, job_id, candidate_id, speedup)
    return candidate_id


def _next_best(session: Session, job_id: str) -> Row[str, float | None] | None:
    """The fastest timed candidate that was not refused; a tie goes to the first."""
    refused = select(Certificate.candidate_id).where(Certificate.job_id == job_id, Certificate.certified.is_(False))
    query = (
        select(Candidate.id, Evaluation.speedup)
        .join(Evaluation, Evaluation.candidate_id == Candidate.id)
        .where(Candidate.job_id == job_id, Evaluation.verdict == Verdict.OK.value)
        .where(Evaluation.speedup.is_not(None), Candidate.id.not_in(refused))
        .order_by(Evaluation.speedup.desc(), Candidate.ordinal)
        .limit(1)
    )
    return session.execute(query).one_or_none()
