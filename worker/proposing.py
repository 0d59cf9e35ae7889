"""Propose a candidate: ask the built-in proposer, the tuner or a language model, and store what came of it."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from db import candidates
from db.budgets import BudgetSpent
from db.candidates import Proposed
from db.ledger import Claim
from db.proposals import CALL_KEY
from db.vocabulary import Failure, Operator, Proposer, target_queue
from search.novelty import source_hash
from search.porting import port_as_it_is
from search.proposing import Proposal
from search.recording import request_record
from search.tunables import read_space
from search.tuning import propose_tuning
from worker.briefing import Brief, read_brief
from worker.builtin_process import BuiltinProcess
from worker.heartbeat import Lease
from worker.paying import find_paid, pay
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


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
    if brief.request.operator == Operator.PORT:
        return port_as_it_is(brief.request)
    return _by_builtin(here, claim, brief)


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
