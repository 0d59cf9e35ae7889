"""Propose a candidate: ask the built-in proposer, the tuner or a language model, and store what came of it."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from sqlalchemy.orm import Session

from db import candidates, duplicates, events, ledger, recovery, tracing, tunings
from db.budgets import BudgetSpent
from db.candidates import Proposed
from db.ledger import Claim
from db.proposals import CALL_KEY
from db.vocabulary import Failure, Operator, Proposer, target_queue
from search.novelty import NOVEL_OPERATORS, nearest, source_hash
from search.porting import port_as_it_is
from search.proposing import Proposal
from search.recording import request_record
from search.tunables import read_space
from worker import metrics
from worker.briefing import Brief, read_brief
from worker.builtin_process import BuiltinProcess
from worker.evaluating import INFRA_RETRY_S
from worker.heartbeat import Lease
from worker.judge.client import JudgeFailed
from worker.paying import find_paid, pay
from worker.runtime import Runtime
from worker.tuning import tune

log = structlog.get_logger(__name__)


def propose(here: Runtime, claim: Claim) -> None:
    """Make the claimed candidate's source and queue its evaluation, or reject it with the reason.

    No transaction is open while a proposer works. Raises Fenced, and CancelRequested when the job is cancelled
    meanwhile.
    """
    with here.transaction() as session:
        brief = read_brief(session, claim, here.settings.embedding_model)
    tracing.note(
        {
            "kernelwright.operator": brief.request.operator,
            "kernelwright.proposer": brief.proposer,
            "kernelwright.model": brief.request.model,
        }
    )
    if brief.request.operator == Operator.TUNE and brief.proposer == Proposer.BUILTIN:
        _tune(here, claim, brief)
        return
    proposal = _proposal(here, claim, brief)
    _store(here, claim, brief, proposal)


def _proposal(here: Runtime, claim: Claim, brief: Brief) -> Proposal:
    if brief.proposer == Proposer.LLM:
        return _by_llm(here, claim, brief)
    if brief.request.operator == Operator.PORT:
        return port_as_it_is(brief.request)
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
    """Reuses the answer that an earlier attempt paid for; asks the judge model first, where the job has one."""
    # litellm takes two seconds and 160 MB: only the process that calls models pays for it.
    from search.llm import LlmProposer
    from worker.diagnosing import advised

    proposer = LlmProposer()
    paid = find_paid(here, claim.candidate, CALL_KEY)
    if paid is not None:
        log.info("llm.reused", key=CALL_KEY, model=paid.model)
        return proposer.read(brief.request, paid)
    model = brief.request.model or ""
    try:
        with _lease(here, claim, interrupt=_nothing) as lease:
            request = proposer.limited(advised(here, claim, proposer, brief.request))
            lease.check()  # before the second call is paid for
            call = pay(
                here,
                claim.candidate,
                CALL_KEY,
                model,
                lambda: proposer.call(request),
                request=request_record(request),
            )
    except BudgetSpent as spent:
        return Proposal(failure=Failure.BUDGET, detail=str(spent))
    lease.check()
    return proposer.read(request, call)


def _lease(here: Runtime, claim: Claim, interrupt: Callable[[], None]) -> Lease:
    settings = here.settings
    return Lease(here.sessions, claim, interrupt=interrupt, lease_s=settings.lease_s, renew_s=settings.renew_s)


def _nothing() -> None:
    """There is nothing to interrupt: a call in flight is paid for either way."""


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
            _count(brief, str(failure))
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
    _count(brief, state.value)
    log.info("candidate.proposed", state=state.value, plan=proposal.plan)


def _count(brief: Brief, outcome: str) -> None:
    metrics.proposed(str(brief.request.operator), str(brief.proposer), outcome)
    tracing.note({"kernelwright.proposal": outcome})


def _near(session: Session, claim: Claim, brief: Brief, source: str) -> tuple[str, float] | None:
    """The accepted candidate that this one is nearly, where something new was promised; built-in seeds never repeat."""
    if brief.proposer == Proposer.BUILTIN or brief.request.operator not in NOVEL_OPERATORS:
        return None
    return nearest(source, duplicates.accepted_sources(session, claim.job_id).items())
