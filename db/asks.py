"""Questions to outside agents: stored with their prompt, handed out with a lease, answered once.

A question is an `ask/tell` candidate; its lease is that of the candidate's `propose` work, on a queue that no worker
serves. All who change one hold the job's lock. A lease that ran out is taken back by the reaper like any other; the
question is then open again, with the same prompt, and the old token is worth nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db import events, ledger
from db.ledger import Claim
from db.models import Candidate, Work
from db.recording_models import Ask
from db.storable import storable_json, storable_text
from db.vocabulary import QUEUE_ASK, EventType, WorkKind, WorkState

OWNER_PREFIX: Final = "agent "
"""What lease owners begin with that are no workers of ours."""


@dataclass(frozen=True, slots=True)
class NewAsk:
    """A question as it will be handed out: the messages as JSON, and what they were made from."""

    request: Mapping[str, Any]
    prompt: str
    prompt_version: str
    edits: bool = False


@dataclass(frozen=True, slots=True)
class Handed:
    """A question in the hands of an agent, until the lease runs out."""

    ask: Ask
    candidate: Candidate
    token: UUID
    expires_at: datetime


def add_ask(session: Session, candidate_id: str, new: NewAsk) -> None:
    """Store the question of an `ask/tell` candidate, in the transaction that adds the candidate."""
    session.add(
        Ask(
            candidate_id=candidate_id,
            job_id=session.get_one(Candidate, candidate_id).job_id,
            request=storable_json(new.request),
            prompt=storable_text(new.prompt),
            prompt_version=new.prompt_version,
            edits=new.edits,
        )
    )
    session.flush()


def hand_out(session: Session, job_id: str, *, agent: str | None, lease_s: float, count: int) -> list[Handed]:
    """Lease up to `count` of the job's open questions, oldest first. The caller holds the job's lock."""
    parameters = {
        "job_id": job_id,
        "owner": OWNER_PREFIX + (agent or "without a name"),
        "lease_s": float(lease_s),
        "count": count,
    }
    rows = session.execute(ledger.SQL["claim_asks"], parameters).all()
    return [
        _hand_out(session, row.candidate_id, row.lease_token, row.lease_expires_at, agent)
        for row in sorted(rows, key=lambda row: str(row.id))
    ]


def _hand_out(session: Session, candidate_id: str, token: UUID, expires_at: datetime, agent: str | None) -> Handed:
    ask = session.get_one(Ask, candidate_id, populate_existing=True)
    candidate = session.get_one(Candidate, candidate_id, populate_existing=True)
    now = session.scalar(select(func.now()))
    ask.token, ask.agent, ask.asked_at = token, agent, now
    session.flush()
    data = {"candidate_id": candidate_id, "ordinal": candidate.ordinal, "agent": agent}
    events.append(session, ask.job_id, EventType.CANDIDATE_ASKED, data | {"lease_expires_at": expires_at.isoformat()})
    return Handed(ask, candidate, token, expires_at)


def find_ask(session: Session, job_id: str, candidate_id: str) -> Ask | None:
    """The question of this candidate of this job."""
    ask = session.get(Ask, candidate_id, populate_existing=True)
    return ask if ask is not None and ask.job_id == job_id else None


def held_claim(session: Session, ask: Ask, token: UUID) -> Claim | None:
    """The claim that this token proves, or None when it is the token of an earlier lease, or of none."""
    query = select(Work).where(
        Work.candidate_id == ask.candidate_id,
        Work.kind == WorkKind.PROPOSE.value,
        Work.queue == QUEUE_ASK,
        Work.state == WorkState.RUNNING.value,
        Work.lease_token == token,
    )
    work = session.scalars(query.execution_options(populate_existing=True)).one_or_none()
    if work is None:
        return None
    return Claim(work.id, WorkKind.PROPOSE, QUEUE_ASK, work.job_id, ask.candidate_id, work.attempt, token)


def renew(session: Session, claim: Claim, lease_s: float) -> datetime | None:
    """Let a held lease run for `lease_s` from now on; when it ends, or None when it is no longer held."""
    if not ledger.renew(session, claim, lease_s=lease_s).held:
        return None
    return session.scalar(select(Work.lease_expires_at).where(Work.id == claim.id))


def store_told(session: Session, ask: Ask, *, answer: str | None, told_hash: str, agent: str | None) -> None:
    """Keep what was told; `told_hash` is how the same words are known again. The caller finishes the work."""
    now = session.scalar(select(func.now()))
    ask.answer = storable_text(answer) if answer is not None else None
    ask.told_hash, ask.told_at = told_hash, now
    ask.agent = agent or ask.agent
    session.flush()
