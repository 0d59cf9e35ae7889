"""From what an agent told to a candidate: read like a language model's answer, stored by its token, once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.asking_schemas import MOST_AT_ONCE, SHORTEST_LEASE_S, RenewBody, Renewed, TellBody, Told
from api.errors import JobEnded, StaleToken, ToldBefore, UnknownJob, UnknownQuestion, invalid
from db import asks, candidates, duplicates, events, jobs
from db.candidates import Proposed
from db.ledger import Claim
from db.models import Candidate, Job
from db.recording_models import Ask
from db.vocabulary import Failure, target_queue
from search.answers import DEFINES_CANDIDATE, read_answer
from search.novelty import NOVEL_OPERATORS, nearest, source_hash
from search.proposing import Proposal
from search.tunables import read_space

_EXHAUSTED: Final = "who was asked has nothing more to propose"


def tell(session: Session, job_id: str, body: TellBody) -> tuple[Told, bool]:
    """Store an answer and queue its evaluation; also whether the same was told before with this token.

    Raises:
        UnknownJob, UnknownQuestion: nothing like that was asked.
        ToldBefore: another answer was told with this token.
        JobEnded: it comes too late.
        StaleToken: the lease ran out.
        Invalid: a source that defines no candidate.
    """
    job, ask = _asked(session, job_id, body.candidate_id)
    digest = _digest(body)
    if ask.told_at is not None and ask.token == body.token:
        if ask.told_hash != digest:
            raise ToldBefore
        return _told(session, ask), True
    claim = _claim(session, job, ask, body)
    proposal = _read(session, ask, body)
    asks.store_told(session, ask, answer=body.answer, told_hash=digest, agent=body.agent)
    _store(session, claim, job, proposal)
    if body.exhausted:
        _close_open(session, job, body.agent)
    return _told(session, ask), False


def renew(session: Session, job_id: str, body: RenewBody) -> Renewed:
    """Give a question's holder more time. Raises UnknownJob, UnknownQuestion, JobEnded, StaleToken."""
    job, ask = _asked(session, job_id, body.candidate_id)
    expires_at = asks.renew(session, _claim(session, job, ask, body), body.lease_s)
    if expires_at is None:
        raise StaleToken
    return Renewed(candidate_id=ask.candidate_id, lease_expires_at=expires_at)


def ended(job: Job) -> bool:
    """Whether nothing that is proposed now can count any more."""
    return job.finished_at is not None or job.stop_reason is not None or job.cancel_requested


def _asked(session: Session, job_id: str, candidate_id: str) -> tuple[Job, Ask]:
    """The job, locked, and the question."""
    events.lock_job(session, job_id)
    job = jobs.get_job(session, job_id)
    if job is None:
        raise UnknownJob
    ask = asks.find_ask(session, job_id, candidate_id)
    if ask is None or ask.token is None:
        raise UnknownQuestion
    return job, ask


def _claim(session: Session, job: Job, ask: Ask, body: TellBody | RenewBody) -> Claim:
    if ended(job):
        raise JobEnded
    claim = asks.held_claim(session, ask, body.token)
    if claim is None:
        raise StaleToken
    return claim


def _digest(body: TellBody) -> str:
    """What is told, whoever tells it."""
    meaning = json.dumps([body.answer, body.source, body.plan, *(["exhausted"] if body.exhausted else [])])
    return hashlib.sha256(meaning.encode()).hexdigest()


def _read(session: Session, ask: Ask, body: TellBody) -> Proposal:
    if body.exhausted:
        return Proposal(failure=Failure.EXHAUSTED, detail=_EXHAUSTED)
    if body.source is None:
        return read_answer(body.answer, None, _sources(session, ask))
    if not DEFINES_CANDIDATE.search(body.source):
        raise invalid("#/source", "it does not define class ModelNew: send the whole file")
    return Proposal(source=body.source, plan=body.plan)


def _sources(session: Session, ask: Ask) -> Sequence[str]:
    """The parents' sources, in the order in which the prompt shows them."""
    parents = session.get_one(Candidate, ask.candidate_id).parents
    found = dict(session.execute(select(Candidate.id, Candidate.source).where(Candidate.id.in_(parents))).all())
    return [found[parent] or "" for parent in parents]


def _store(session: Session, claim: Claim, job: Job, proposal: Proposal) -> None:
    if proposal.source is None:
        candidates.reject_candidate(session, claim, str(proposal.failure or Failure.NO_CODE), proposal.detail)
        return
    proposed = Proposed(
        source=proposal.source,
        source_hash=source_hash(proposal.source),
        plan=proposal.plan,
        params=proposal.params,
        tunable=read_space(proposal.source) is not None,
    )
    near = _near(session, claim, proposal.source)
    candidates.store_proposal(session, claim, proposed, queue=target_queue(job.hardware), near=near)


def _near(session: Session, claim: Claim, source: str) -> tuple[str, float] | None:
    """The accepted candidate that this one is nearly, where something new was asked for."""
    if session.get_one(Candidate, claim.candidate).operator not in NOVEL_OPERATORS:
        return None
    return nearest(source, duplicates.accepted_sources(session, claim.job_id).items())


def _close_open(session: Session, job: Job, agent: str | None) -> None:
    """Nobody is going to take the job's open questions. Those in the hands of others stay theirs."""
    for handed in asks.hand_out(session, job.id, agent=agent, lease_s=SHORTEST_LEASE_S, count=MOST_AT_ONCE):
        if (claim := asks.held_claim(session, handed.ask, handed.token)) is not None:
            candidates.reject_candidate(session, claim, str(Failure.EXHAUSTED), _EXHAUSTED)


def _told(session: Session, ask: Ask) -> Told:
    candidate = session.get_one(Candidate, ask.candidate_id, populate_existing=True)
    return Told(
        job_id=ask.job_id,
        candidate_id=candidate.id,
        accepted=candidate.failure is None,
        failure=Failure(candidate.failure) if candidate.failure else None,
        failure_detail=candidate.failure_detail,
        duplicate_of=candidate.duplicate_of,
        links={"candidate": f"/v1/candidates/{candidate.id}", "job": f"/v1/jobs/{ask.job_id}"},
    )
