"""Have a model write the reference for a request in plain words; what the matcher found stands where it cannot."""

from __future__ import annotations

import json
from typing import Any

import structlog

from db import requests
from db.budgets import BudgetSpent
from db.requests import Draft, DraftLost, PaidCall
from problems.catalog import bundled
from search.llm import LlmProposer
from search.prompts import Prompt
from search.proposing import LlmCall
from search.requests.matching import rank
from search.requests.proposing import by_model
from search.requests.understanding import Wish, understand
from search.requests.writing import NoReference, Written, name_of, read_reference, reference_prompt
from search.types import Target
from worker.paying import asked
from worker.runtime import Runtime

log = structlog.get_logger(__name__)

TRIES = 2
"""A model that is told what is wrong with its file mends it, or will not."""

CALL_S = 120.0
"""For one call with its retries: two of them fit into the lease."""


def draft(here: Runtime, request_id: str) -> None:
    """Write the request's reference, if it still waits for one. A late writer's words are dropped, its price is not."""
    with here.transaction() as session:
        claimed = requests.claim_draft(session, request_id)
    if claimed is None:
        log.debug("request.stale", request_id=request_id)
        return
    try:
        proposal, error = _proposal(here, claimed)
        with here.transaction() as session:
            requests.finish_draft(session, claimed, proposal, error)
    except DraftLost:
        log.warning("request.lost", request_id=request_id)
        return
    log.info("request.drafted", request_id=request_id, model=claimed.model, error=error)


def _proposal(here: Runtime, claimed: Draft) -> tuple[dict[str, Any] | None, str | None]:
    wish = understand(claimed.words)
    target = Target(**claimed.rest["target"])
    try:
        written = _written(here, claimed, wish, target)
    except (NoReference, BudgetSpent) as error:
        return None, str(error)
    matches = rank(wish, bundled().values())
    return by_model(written, matches, target, claimed.rest["job"], claimed.rest["notes"]), None


def _written(here: Runtime, claimed: Draft, wish: Wish, target: Target) -> Written:
    """Raises NoReference when no try brought one, BudgetSpent, DraftLost."""
    answer: str | None = None
    fault: NoReference | None = None
    for _ in range(TRIES):
        call = _call(here, claimed, reference_prompt(wish, target, answer, str(fault) if fault else None))
        if call.error is not None:
            raise NoReference(f"{claimed.model} did not answer: {call.error}")
        answer = call.answer
        try:
            return read_reference(answer, name_of(wish), target.hardware)
        except NoReference as error:
            fault = error
    raise fault or NoReference("nothing was asked")


def _call(here: Runtime, claimed: Draft, prompt: Prompt) -> LlmCall:
    with here.transaction() as session:
        requests.start_call(session, claimed)
    call = asked(claimed.model, lambda: LlmProposer().ask(claimed.model, prompt, CALL_S))
    with here.transaction() as session:
        requests.book_call(session, claimed, _as_paid(call))
    return call


def _as_paid(call: LlmCall) -> PaidCall:
    return PaidCall(
        prompt=json.dumps([dict(message) for message in call.prompt]),
        answer=call.answer,
        tokens_in=call.tokens_in,
        tokens_out=call.tokens_out,
        cost_usd=call.cost_usd,
        cost_source=call.cost_source,
    )
