"""Requests in plain words: stored with what is proposed for them, written by a model if one is named, confirmed once.

A row is its own unit of work, as in the ledger: claimed with a lease and a fencing token, finished by compare-and-set,
taken back by the reaper. It is not in the ledger itself because that is about jobs, and there is none before it is
confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID, uuid4

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from db import ledger
from db.account_models import PlainRequest
from db.budgets import check_key
from db.ids import new_id
from db.ledger import Doorbell
from db.storable import storable_json, storable_text
from db.vocabulary import QUEUE_LLM, RequestState

DRAFT: Final = "draft"
"""What is rung for: the task that has a model write."""

LEASE_S: Final = 300.0
"""Two calls of at most 120 s each, and what is around them. Not renewed: a writer that takes longer is gone."""

MAX_ATTEMPTS: Final = 2
RING_AFTER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class NewRequest:
    """What is asked for. `proposal` is what the matcher found, if anything; `model` writes a better one."""

    words: str
    proposal: Mapping[str, Any] | None
    rest: Mapping[str, Any]
    model: str | None = None
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A claimed request: only who holds the token may finish it."""

    id: str
    token: UUID
    attempt: int
    words: str
    model: str
    proposal: Mapping[str, Any] | None
    rest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PaidCall:
    """One call for a request, over: what it said and what it took. None is unknown, never zero."""

    prompt: str
    answer: str | None
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: Decimal | None
    cost_source: str


class DraftLost(Exception):
    """Somebody else has this request now, or it is finished: what was found is dropped."""


def create_request(session: Session, new: NewRequest) -> PlainRequest:
    """Store a request; with a model it waits for one, and its doorbell is left in the session. Raises BudgetSpent."""
    if new.model is not None:
        check_key(session, new.key_id)
    done = RequestState.PROPOSED if new.proposal is not None else RequestState.FAILED
    row = PlainRequest(
        id=new_id("request"),
        words=storable_text(new.words),
        state=(RequestState.QUEUED if new.model is not None else done).value,
        proposal=None if new.proposal is None else storable_json(new.proposal),
        rest=storable_json(new.rest),
        key_id=new.key_id,
        model=new.model,
    )
    session.add(row)
    session.flush()
    if new.model is not None:
        row.rung_at = session.scalar(select(func.now()))
        ledger.leave_doorbell(session, Doorbell(row.id, QUEUE_LLM, DRAFT))
    session.refresh(row)
    return row


def get_request(session: Session, request_id: str, *, lock: bool = False) -> PlainRequest | None:
    """The request as it is now; locked until the transaction ends, if so wished."""
    return session.get(PlainRequest, request_id, populate_existing=True, with_for_update=True if lock else None)


def claim_draft(session: Session, request_id: str) -> Draft | None:
    """Take a request that waits for its model, or whose writer was lost; None when there is nothing to do."""
    row = get_request(session, request_id, lock=True)
    if row is None or row.model is None or row.attempt >= MAX_ATTEMPTS or not _waits(session, row):
        return None
    row.state, row.attempt, row.lease_token = RequestState.WRITING.value, row.attempt + 1, uuid4()
    row.lease_expires_at = session.scalar(select(func.now() + func.make_interval(0, 0, 0, 0, 0, 0, LEASE_S)))
    session.flush()
    return Draft(row.id, row.lease_token, row.attempt, row.words, row.model, row.proposal, row.rest)


def start_call(session: Session, draft: Draft) -> None:
    """Count a call that is about to be made; commit before it. Raises DraftLost, and BudgetSpent."""
    row = _held(session, draft)
    check_key(session, row.key_id)
    row.calls += 1


def book_call(session: Session, draft: Draft, call: PaidCall) -> None:
    """Add what a call took, whoever holds the request now: the money is spent."""
    row = session.get_one(PlainRequest, draft.id, populate_existing=True, with_for_update=True)
    row.prompt = storable_text(call.prompt)
    row.answer = storable_text(call.answer) if call.answer is not None else None
    row.tokens_in = _more(row.tokens_in, call.tokens_in)
    row.tokens_out = _more(row.tokens_out, call.tokens_out)
    if call.cost_usd is not None:
        row.cost_usd = (row.cost_usd or Decimal(0)) + call.cost_usd
    row.cost_source = call.cost_source


def finish_draft(session: Session, draft: Draft, proposal: Mapping[str, Any] | None, error: str | None) -> None:
    """What the model came to, or why it came to nothing: then what the matcher found stands. Raises DraftLost."""
    row = _held(session, draft)
    if proposal is not None:
        row.proposal = storable_json(proposal)
    _settle(row, error)
    row.finished_at = session.scalar(select(func.now()))


def confirm(session: Session, row: PlainRequest, job_id: str) -> None:
    """The request has become this job."""
    row.state, row.job_id = RequestState.CONFIRMED.value, job_id


def reap_requests(session: Session, batch: int = 100) -> Sequence[Doorbell]:
    """Requests to ring for again: unheard, or with a writer that was lost. Those out of attempts are ended here."""
    overdue = or_(PlainRequest.rung_at.is_(None), PlainRequest.rung_at < _ago(RING_AFTER_S))
    lost = (PlainRequest.state == RequestState.WRITING.value) & (PlainRequest.lease_expires_at < func.now())
    query = (
        select(PlainRequest)
        .where(or_((PlainRequest.state == RequestState.QUEUED.value) & overdue, lost))
        .order_by(PlainRequest.id)
        .limit(batch)
        .with_for_update(skip_locked=True)
    )
    doorbells = []
    for row in session.scalars(query).all():
        if row.attempt >= MAX_ATTEMPTS:
            _settle(row, f"its writer was lost {row.attempt} times")
            continue
        row.state, row.lease_token, row.lease_expires_at = RequestState.QUEUED.value, None, None
        doorbells.append(Doorbell(row.id, QUEUE_LLM, DRAFT))
    session.flush()
    rung = [bell.work_id for bell in doorbells]
    session.execute(
        update(PlainRequest).where(PlainRequest.id.in_(rung)).values(rung_at=func.now()),
        execution_options={"synchronize_session": False},
    )
    return doorbells


def _settle(row: PlainRequest, error: str | None) -> None:
    row.state = (RequestState.PROPOSED if row.proposal is not None else RequestState.FAILED).value
    row.error = storable_text(error) if error is not None else None
    row.lease_token = row.lease_expires_at = None


def _held(session: Session, draft: Draft) -> PlainRequest:
    row = session.get_one(PlainRequest, draft.id, populate_existing=True, with_for_update=True)
    if row.lease_token != draft.token:
        raise DraftLost
    return row


def _waits(session: Session, row: PlainRequest) -> bool:
    if row.state == RequestState.QUEUED:
        return True
    now = session.scalar(select(func.now()))
    lost = row.lease_expires_at is not None and now is not None and row.lease_expires_at < now
    return row.state == RequestState.WRITING and lost


def _ago(seconds: float) -> Any:
    return func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def _more(known: int | None, more: int | None) -> int | None:
    return known if more is None else (known or 0) + more
