"""Paid calls: written before and after, so that no dollar is lost and a re-run reuses what was paid for.

A process that dies during a call leaves a `started` row: what that call cost, nobody can know. One that dies after it
leaves a `finished` row, and the next attempt reads that answer again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from db import candidates, events, jobs
from db.budgets import check_call
from db.ids import new_id
from db.models import Candidate, Job, LlmCall
from db.storable import storable_json, storable_text
from db.vocabulary import EventType, LlmCallState

CHARACTERS_PER_TOKEN: Final = 4
"""Of code and English, within a third for the tokenizers in use: for caps only, where a provider counted nothing."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What a call was, once it is over. `cost_usd` None means unknown, never free."""

    model: str
    prompt: str | None = None
    answer: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_usd: Decimal | None = None
    cost_source: str | None = None
    latency_s: float | None = None
    attempts: int = 1
    prompt_version: str | None = None
    finish_reason: str | None = None
    error: str | None = None


def find_finished(session: Session, candidate_id: str, key: str) -> LlmCall | None:
    """The finished call for this purpose, if one was paid for already."""
    query = select(LlmCall).where(
        LlmCall.candidate_id == candidate_id, LlmCall.key == key, LlmCall.state == LlmCallState.FINISHED.value
    )
    return session.scalars(query).one_or_none()


def start_call(
    session: Session,
    candidate_id: str,
    key: str,
    model: str,
    *,
    keep: int = 0,
    request: Mapping[str, Any] | None = None,
) -> str:
    """Record that a call is about to be made, and count it; returns the call's id. Commit before calling.

    `keep`: how many calls must be left to the job after this one; `request`: what its prompt is made from. Raises
    BudgetSpent where a cap forbids the call.
    """
    job_id = session.get_one(Candidate, candidate_id).job_id
    events.lock_job(session, job_id)
    check_call(session, jobs.fetch_job(session, job_id), keep=keep)
    call = LlmCall(
        id=new_id("call"),
        job_id=job_id,
        candidate_id=candidate_id,
        key=key,
        model=model,
        request=storable_json(request) if request is not None else None,
    )
    session.add(call)
    _count(session, job_id, llm_calls=1)
    session.flush()
    return call.id


def finish_call(session: Session, call_id: str, record: CallRecord) -> LlmCallState:
    """Record what a call was and book its cost, whether or not the work is still held.

    `superseded` when another attempt finished first: its answer stands, but this money is spent too. A call is booked
    once however often it is finished.
    """
    job_id = session.get_one(LlmCall, call_id).job_id
    events.lock_job(session, job_id)
    call = session.get_one(LlmCall, call_id, populate_existing=True)
    if call.state != LlmCallState.STARTED:
        return LlmCallState(call.state)
    earlier = find_finished(session, call.candidate_id, call.key)
    state = LlmCallState.FINISHED if earlier is None else LlmCallState.SUPERSEDED
    _fill(call, record)
    call.state = state.value
    call.finished_at = session.scalar(select(func.now()))
    session.flush()
    _count(session, job_id, llm_tokens=tokens_of(record))
    if record.cost_usd:
        candidates.add_cost(session, call.candidate_id, record.cost_usd)
    events.append(session, job_id, EventType.LLM_FINISHED, _event_data(call))
    return state


def tokens_of(record: CallRecord) -> int:
    """What a call counts for a cap on tokens: as the provider says, or an estimate, since unknown is not zero."""
    if record.tokens_in is not None or record.tokens_out is not None:
        return (record.tokens_in or 0) + (record.tokens_out or 0)
    if record.error is not None:
        return 0
    return (len(record.prompt or "") + len(record.answer or "")) // CHARACTERS_PER_TOKEN


def _count(session: Session, job_id: str, **more: int) -> None:
    values = {name: getattr(Job, name) + by for name, by in more.items()}
    session.execute(
        update(Job).where(Job.id == job_id).values(**values), execution_options={"synchronize_session": False}
    )


def _fill(call: LlmCall, record: CallRecord) -> None:
    call.model = record.model
    call.prompt = storable_text(record.prompt) if record.prompt is not None else None
    call.answer = storable_text(record.answer) if record.answer is not None else None
    call.tokens_in, call.tokens_out = record.tokens_in, record.tokens_out
    call.cost_usd, call.cost_source = record.cost_usd, record.cost_source
    call.latency_s = record.latency_s
    call.attempts, call.prompt_version, call.finish_reason = (
        record.attempts,
        record.prompt_version,
        record.finish_reason,
    )
    call.error = storable_text(record.error) if record.error is not None else None


def _event_data(call: LlmCall) -> dict[str, Any]:
    return {
        "call_id": call.id,
        "candidate_id": call.candidate_id,
        "model": call.model,
        "state": call.state,
        "tokens_in": call.tokens_in,
        "tokens_out": call.tokens_out,
        "cost_usd": str(call.cost_usd) if call.cost_usd is not None else None,
        "latency_s": call.latency_s,
        "error": call.error,
    }
