"""Calls that cost money: asked for once, written down before and after, read again by whoever runs the work anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from db import llm_calls
from db.llm_calls import CallRecord
from db.models import LlmCall as LlmCallRow
from search.proposing import LlmCall
from worker import metrics, spans
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def find_paid(here: Runtime, candidate_id: str, key: str) -> LlmCall | None:
    """The call that an earlier attempt paid for, as far as reading its answer takes it."""
    with here.transaction() as session:
        paid = llm_calls.find_finished(session, candidate_id, key)
    return None if paid is None else _as_call(paid)


def pay(
    here: Runtime,
    candidate_id: str,
    key: str,
    model: str,
    ask: Callable[[], LlmCall],
    *,
    keep: int = 0,
    request: Mapping[str, Any] | None = None,
) -> LlmCall:
    """The call for this purpose: what was paid for already, or a new one. No transaction is open while it is made.

    A call cannot be interrupted, so it is recorded even when its work is lost: the money is spent. `keep`: how many
    calls the caps must leave after it; `request`: what its prompt is made from (`search.recording`), for a replay.
    Raises BudgetSpent where a cap forbids it.
    """
    paid = find_paid(here, candidate_id, key)
    if paid is not None:
        log.info("llm.reused", key=key, model=paid.model)
        return paid
    with here.transaction() as session:
        call_id = llm_calls.start_call(session, candidate_id, key, model, keep=keep, request=request)
    call = asked(model, ask)
    with here.transaction() as session:
        llm_calls.finish_call(session, call_id, as_record(call))
    return call


def asked(model: str, ask: Callable[[], LlmCall]) -> LlmCall:
    """Ask the model; the call is counted, and is a span where traces are made."""
    call = spans.traced_call(model, ask)
    metrics.called(
        call.model,
        error=call.error,
        latency_s=call.latency_s,
        tokens_in=call.tokens_in,
        tokens_out=call.tokens_out,
        cost_usd=call.cost_usd,
    )
    return call


def as_record(call: LlmCall) -> CallRecord:
    """The call as it is stored."""
    return CallRecord(
        model=call.model,
        prompt=json.dumps([dict(message) for message in call.prompt]),
        answer=call.answer,
        tokens_in=call.tokens_in,
        tokens_out=call.tokens_out,
        cost_usd=call.cost_usd,
        cost_source=call.cost_source,
        latency_s=call.latency_s,
        attempts=call.attempts,
        prompt_version=call.prompt_version,
        finish_reason=call.finish_reason,
        error=call.error,
    )


def _as_call(row: LlmCallRow) -> LlmCall:
    return LlmCall(prompt=(), answer=row.answer, model=row.model, error=row.error, finish_reason=row.finish_reason)
