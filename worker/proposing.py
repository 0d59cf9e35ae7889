"""Propose a candidate: ask the built-in proposer, the tuner or a language model, and store what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import structlog
from sqlalchemy.orm import Session

from db import candidates, llm_calls
from db.candidates import Proposed
from db.ledger import Claim
from db.llm_calls import CallRecord
from db.vocabulary import Failure, Operator, Proposer, target_queue
from search.novelty import source_hash
from search.proposing import LlmCall, Outcome, Proposal
from search.tunables import read_space
from search.tuning import propose_tuning
from worker.briefing import Brief, read_brief
from worker.builtin_process import BuiltinProcess
from worker.heartbeat import Lease
from worker.runtime import Runtime

log = structlog.get_logger(__name__)

CALL_KEY: Final = "propose"
"""What a proposal's paid call is for, whatever the attempt."""


def propose(here: Runtime, claim: Claim) -> None:
    """Make the claimed candidate's source and queue its evaluation, or reject it with the reason.

    No transaction is open while a proposer works. Raises Fenced, and CancelRequested when the job is cancelled
    meanwhile.
    """
    with here.transaction() as session:
        brief = read_brief(session, claim)
    proposal = _proposal(here, claim, brief)
    _store(here, claim, brief, proposal)


def _proposal(here: Runtime, claim: Claim, brief: Brief) -> Proposal:
    if brief.proposer == Proposer.LLM:
        return _by_llm(here, claim, brief)
    if brief.request.operator == Operator.TUNE:
        return propose_tuning(brief.request)
    return _by_builtin(here, claim, brief)


def _by_builtin(here: Runtime, claim: Claim, brief: Brief) -> Proposal:
    builtin = BuiltinProcess(here.settings.home_path)
    with _lease(here, claim, interrupt=builtin.kill) as lease:
        proposal = builtin.propose(brief)
    lease.check()
    return proposal


def _by_llm(here: Runtime, claim: Claim, brief: Brief) -> Proposal:
    """Reuses the answer that an earlier attempt paid for. The call itself cannot be interrupted, so it is recorded
    even when its work is lost: the money is spent."""
    model = brief.request.model or ""
    with here.transaction() as session:
        paid = llm_calls.find_finished(session, claim.candidate, CALL_KEY)
        if paid is not None and paid.proposal is not None:
            log.info("llm.reused", call_id=paid.id)
            return Proposal(**paid.proposal)
        call_id = llm_calls.start_call(session, claim.candidate, CALL_KEY, model)
    with _lease(here, claim, interrupt=_nothing) as lease:
        outcome = _call(brief)
    with here.transaction() as session:
        _record(session, claim, call_id, outcome, model)
    lease.check()
    return outcome.proposal


def _lease(here: Runtime, claim: Claim, interrupt: Callable[[], None]) -> Lease:
    settings = here.settings
    return Lease(here.sessions, claim, interrupt=interrupt, lease_s=settings.lease_s, renew_s=settings.renew_s)


def _nothing() -> None:
    """There is nothing to interrupt: a call in flight is paid for either way."""


def _call(brief: Brief) -> Outcome:
    # litellm takes two seconds and 160 MB: only the process that calls models pays for it.
    from search.llm import LlmProposer

    return LlmProposer().propose(brief.request)


def _record(session: Session, claim: Claim, call_id: str, outcome: Outcome, model: str) -> None:
    """Close the row that was opened before the call; a proposal that took several calls gets a row for each."""
    proposal = asdict(outcome.proposal)
    if not outcome.calls:
        llm_calls.finish_call(session, call_id, CallRecord(model, proposal=proposal, error=outcome.proposal.detail))
        return
    first, *others = outcome.calls
    llm_calls.finish_call(session, call_id, _as_record(first, proposal))
    for number, call in enumerate(others, start=2):
        other_id = llm_calls.start_call(session, claim.candidate, f"{CALL_KEY}/{number}", call.model)
        llm_calls.finish_call(session, other_id, _as_record(call, None))


def _as_record(call: LlmCall, proposal: dict[str, Any] | None) -> CallRecord:
    return CallRecord(
        model=call.model,
        prompt=json.dumps([dict(message) for message in call.prompt]),
        answer=call.answer,
        proposal=proposal,
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


def _store(here: Runtime, claim: Claim, brief: Brief, proposal: Proposal) -> None:
    with here.transaction() as session:
        if proposal.source is None:
            failure = proposal.failure or Failure.NO_CODE
            candidates.reject_candidate(session, claim, str(failure), proposal.detail)
            log.info("candidate.rejected", failure=str(failure), detail=proposal.detail)
            return
        proposed = Proposed(
            source=proposal.source,
            source_hash=source_hash(proposal.source),
            plan=proposal.plan,
            params=proposal.params,
            tunable=read_space(proposal.source) is not None,
        )
        state = candidates.store_proposal(session, claim, proposed, queue=target_queue(brief.hardware))
    log.info("candidate.proposed", state=state.value, plan=proposal.plan)
