"""What happens to work that nobody will finish: it is given back, taken back, or buried.

Burying writes the consequence, so that a job never waits for something dead: a dead `evaluate` is an `infra_error`
evaluation, a dead `propose` a rejected candidate, a dead `advance` the end of the job. A dead `admit` or `certify`
says nothing about problem or candidate: the job goes on without what it would have found. A dead `learn` changes
nothing: its job has ended, and another will teach the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from db import candidates, events, jobs, ledger
from db.ledger import Claim, Doorbell, Fenced
from db.models import Job
from db.storable import storable_text
from db.vocabulary import EventType, Failure, StopReason, WorkKind, WorkState

REAP_BATCH: Final = 100
_REAPER_LOCK: Final = text("SELECT pg_try_advisory_xact_lock(hashtextextended('kernelwright reaper', 0))")


@dataclass(frozen=True, slots=True)
class Reaped:
    """How many expired leases were queued again and how many used up their attempts."""

    requeued: int = 0
    dead: int = 0


def be_the_reaper(session: Session) -> bool:
    """True for one transaction at a time, wherever the beats come from; the others have nothing to do."""
    return bool(session.execute(_REAPER_LOCK).scalar_one())


def give_back(
    session: Session, claim: Claim, error: str, *, delay_s: float = 0, count_attempt: bool = True
) -> WorkState:
    """Return claimed work after a failure: `queued` again after `delay_s`, or `dead` and buried.

    `count_attempt=False` is for faults of the machine, which are free for a few times. Raises Fenced.
    """
    events.lock_job(session, claim.job_id)
    if claim.kind is WorkKind.ADVANCE:
        _drop_queued_twin(session, claim.job_id)
    parameters = {
        "id": claim.id,
        "token": claim.token,
        "counts": count_attempt,
        "max_returns": ledger.MAX_RETURNS,
        "delay_s": float(delay_s),
        "error": storable_text(error),
    }
    returned = session.execute(ledger.SQL["give_back"], parameters).scalar_one_or_none()
    if returned is None:
        raise Fenced
    state = WorkState(returned)
    data = {"work_id": claim.id, "kind": claim.kind.value, "attempt": claim.attempt, "error": error}
    if state is WorkState.DEAD:
        _bury(session, claim.kind, claim.job_id, claim.candidate_id, error)
        events.append(session, claim.job_id, EventType.WORK_DEAD, data)
        return state
    events.append(session, claim.job_id, EventType.WORK_RETURNED, data)
    if not delay_s:
        ledger.leave_doorbell(session, Doorbell(claim.id, claim.queue, claim.kind.value))
    return state


def release(session: Session, owner: str, error: str) -> list[str]:
    """Queue again what a worker that stops has in hand, its attempts as before; leaves doorbells. Returns the ids."""
    running = session.execute(ledger.SQL["running_of"], {"owner": owner}).all()
    for job_id in sorted({row.job_id for row in running}):
        events.lock_job(session, job_id)
    return [row.id for row in running if _release(session, row.id, row.job_id, WorkKind(row.kind), owner, error)]


def _release(session: Session, work_id: str, job_id: str, kind: WorkKind, owner: str, error: str) -> bool:
    if kind is WorkKind.ADVANCE:
        _drop_queued_twin(session, job_id)
    parameters = {"id": work_id, "owner": owner, "error": storable_text(error)}
    row = session.execute(ledger.SQL["release"], parameters).one_or_none()
    if row is None:
        return False
    data = {"work_id": work_id, "kind": kind.value, "attempt": row.attempt, "error": error}
    events.append(session, job_id, EventType.WORK_RETURNED, data)
    ledger.leave_doorbell(session, Doorbell(work_id, row.queue, kind.value))
    return True


def reap(session: Session, *, batch: int = REAP_BATCH) -> Reaped:
    """Take back work whose lease ran out; leaves doorbells for what is queued again."""
    expired = session.execute(ledger.SQL["expired"], {"batch": batch}).all()
    # All locks before any row, in one order: two reapers, or a reaper and a finisher, cannot wait for each other.
    for job_id in sorted({row.job_id for row in expired}):
        events.lock_job(session, job_id)
    states = [_reap(session, row.id, row.job_id, WorkKind(row.kind)) for row in expired]
    return Reaped(states.count(WorkState.QUEUED), states.count(WorkState.DEAD))


def _reap(session: Session, work_id: str, job_id: str, kind: WorkKind) -> WorkState | None:
    if kind is WorkKind.ADVANCE:
        _drop_queued_twin(session, job_id)
    row = session.execute(ledger.SQL["reap"], {"id": work_id}).one_or_none()
    if row is None:
        return None
    state = WorkState(row.state)
    data = {"work_id": work_id, "kind": kind.value, "attempt": row.attempt, "error": row.error}
    if state is WorkState.DEAD:
        _bury(session, kind, job_id, row.candidate_id, row.error)
        events.append(session, job_id, EventType.WORK_DEAD, data)
    else:
        events.append(session, job_id, EventType.WORK_REQUEUED, data)
        ledger.leave_doorbell(session, Doorbell(work_id, row.queue, kind.value))
    return state


def _drop_queued_twin(session: Session, job_id: str) -> None:
    """Safe even if the running advance survives: it decides under the job's lock, which is ours, so later than now."""
    session.execute(ledger.SQL["drop_queued_twin"], {"job_id": job_id})


def _bury(session: Session, kind: WorkKind, job_id: str, candidate_id: str | None, error: str) -> None:
    if kind is WorkKind.LEARN:
        return
    if kind in (WorkKind.ADMIT, WorkKind.CERTIFY):
        jobs.enqueue_advance(session, job_id, priority=session.get_one(Job, job_id).priority)
    elif kind is WorkKind.ADVANCE or candidate_id is None:
        jobs.finish_job(session, job_id, StopReason.ERROR, f"the search could not advance: {error}")
    elif kind is WorkKind.PROPOSE:
        candidates.reject_unsettled(session, candidate_id, Failure.PROVIDER_ERROR, error)
    else:
        candidates.store_infra_error(session, candidate_id, error)


def wake_idle_jobs(session: Session, *, batch: int = REAP_BATCH) -> list[str]:
    """Enqueue an advance for unfinished jobs that nothing else would wake; returns their ids."""
    ids = list(session.scalars(ledger.SQL["idle_jobs"], {"batch": batch}))
    for job_id in ids:
        events.lock_job(session, job_id)
        jobs.enqueue_advance(session, job_id, priority=session.get_one(Job, job_id).priority)
    return ids


def record_fenced(session: Session, claim: Claim) -> None:
    """Count a late writer in the job's event log."""
    data = {"work_id": claim.id, "kind": claim.kind.value, "attempt": claim.attempt}
    events.append(session, claim.job_id, EventType.WORK_FENCED, data)
