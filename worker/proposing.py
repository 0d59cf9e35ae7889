"""Propose a candidate: ask the built-in proposer, the tuner or a language model, and store what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import structlog
from sqlalchemy.orm import Session

from db import candidates, duplicates, events, ledger, llm_calls, recovery, tunings
from db.candidates import Proposed
from db.ledger import Claim
from db.llm_calls import CallRecord
from db.models import LlmCall as LlmCallRow
from db.vocabulary import Failure, Operator, Proposer, target_queue
from search.novelty import NOVEL_OPERATORS, nearest, source_hash
from search.proposing import LlmCall, Proposal
from search.tunables import read_space
from worker.briefing import Brief, read_brief
from worker.builtin_process import BuiltinProcess
from worker.evaluating import INFRA_RETRY_S
from worker.heartbeat import Lease
from worker.judge.client import JudgeFailed
from worker.runtime import Runtime
from worker.tuning import tune

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
    if brief.request.operator == Operator.TUNE and brief.proposer == Proposer.BUILTIN:
        _tune(here, claim, brief)
        return
    proposal = _proposal(here, claim, brief)
    _store(here, claim, brief, proposal)


def _proposal(here: Runtime, claim: Claim, brief: Brief) -> Proposal:
    if brief.proposer == Proposer.LLM:
        return _by_llm(here, claim, brief)
    return _by_builtin(here, claim, brief)


def _tune(here: Runtime, claim: Claim, brief: Brief) -> None:
    """A fault of the machine gives the work back without counting the attempt, as where a candidate is judged."""
    try:
        tuned = tune(here, claim, brief)
    except JudgeFailed as failed:
        with here.transaction() as session:
            recovery.give_back(session, claim, str(failed), delay_s=INFRA_RETRY_S, count_attempt=False)
        log.warning("tuning.returned", reason=str(failed))
        return
    _store(here, claim, brief, tuned.proposal, tuned.tuning)


def _by_builtin(here: Runtime, claim: Claim, brief: Brief) -> Proposal:
    builtin = BuiltinProcess(here.settings.home_path)
    with _lease(here, claim, interrupt=builtin.kill) as lease:
        proposal = builtin.propose(brief)
    lease.check()
    return proposal


def _by_llm(here: Runtime, claim: Claim, brief: Brief) -> Proposal:
    """Reuses the answer that an earlier attempt paid for. A call cannot be interrupted, so it is recorded even when its
    work is lost: the money is spent."""
    # litellm takes two seconds and 160 MB: only the process that calls models pays for it.
    from search.llm import LlmProposer

    proposer = LlmProposer()
    with here.transaction() as session:
        paid = llm_calls.find_finished(session, claim.candidate, CALL_KEY)
        if paid is None:
            call_id = llm_calls.start_call(session, claim.candidate, CALL_KEY, brief.request.model or "")
    if paid is not None:
        log.info("llm.reused", call_id=paid.id)
        return proposer.read(brief.request, _as_call(paid))
    with _lease(here, claim, interrupt=_nothing) as lease:
        call = proposer.call(brief.request)
    with here.transaction() as session:
        llm_calls.finish_call(session, call_id, _as_record(call))
    lease.check()
    return proposer.read(brief.request, call)


def _lease(here: Runtime, claim: Claim, interrupt: Callable[[], None]) -> Lease:
    settings = here.settings
    return Lease(here.sessions, claim, interrupt=interrupt, lease_s=settings.lease_s, renew_s=settings.renew_s)


def _nothing() -> None:
    """There is nothing to interrupt: a call in flight is paid for either way."""


def _as_record(call: LlmCall) -> CallRecord:
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
    """As much of a stored call as reading its answer takes."""
    return LlmCall(prompt=(), answer=row.answer, model=row.model, error=row.error, finish_reason=row.finish_reason)


def _store(
    here: Runtime, claim: Claim, brief: Brief, proposal: Proposal, tuning: tunings.NewTuning | None = None
) -> None:
    with here.transaction() as session:
        if tuning is not None:
            events.lock_job(session, claim.job_id)
            ledger.hold(session, claim)
            tunings.store_tuning(session, claim.candidate, tuning)
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
        near = _near(session, claim, brief, proposal.source)
        state = candidates.store_proposal(session, claim, proposed, queue=target_queue(brief.hardware), near=near)
    log.info("candidate.proposed", state=state.value, plan=proposal.plan)


def _near(session: Session, claim: Claim, brief: Brief, source: str) -> tuple[str, float] | None:
    """The accepted candidate that this one is nearly, where something new was promised; built-in seeds never repeat."""
    if brief.proposer == Proposer.BUILTIN or brief.request.operator not in NOVEL_OPERATORS:
        return None
    return nearest(source, duplicates.accepted_sources(session, claim.job_id).items())
