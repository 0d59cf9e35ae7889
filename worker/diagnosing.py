"""A judge model's diagnosis of the parent, before a repair or a refinement is asked for. Never a reason to fail.

It is a call like any other: recorded under a key of its own, booked on the candidate, bounded by the job's caps. Where
the caps leave room for one more call only, that one is the proposal's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import structlog

from db import jobs
from db.budgets import BudgetSpent
from db.ledger import Claim
from search.llm import LlmProposer
from search.prompts.diagnosis import DIAGNOSED, read_diagnosis
from search.proposing import ProposalRequest
from worker.paying import pay
from worker.runtime import Runtime

log = structlog.get_logger(__name__)

CALL_KEY: Final = "diagnose"


def advised(here: Runtime, claim: Claim, proposer: LlmProposer, request: ProposalRequest) -> ProposalRequest:
    """The request with what the job's judge model says of its parent; as it was where there is none, or no answer."""
    if request.operator not in DIAGNOSED or not request.parents:
        return request
    with here.transaction() as session:
        model = jobs.fetch_job(session, claim.job_id).diagnosis_model
    if model is None:
        return request
    try:
        call = pay(here, claim.candidate, CALL_KEY, model, lambda: proposer.diagnose(request, model), keep=1)
    except BudgetSpent as spent:
        log.info("diagnosis.left_out", why=str(spent))
        return request
    if call.error is not None:
        log.warning("diagnosis.failed", model=model, error=call.error)
    return replace(request, advice=read_diagnosis(call.answer))
