"""Certify a finalist: hand it to the judge once more, keep the lease alive meanwhile, store the document and a page."""

from __future__ import annotations

import structlog

from db import events, jobs, ledger, recovery, tracing
from db.certificates import store_certificate
from db.ledger import Claim
from db.models import Candidate
from db.vocabulary import Verdict
from worker.evaluating import INFRA_RETRY_S
from worker.heartbeat import Lease
from worker.judge.certificate.render import render
from worker.judge.report import EvaluationRequest
from worker.quarantine import device_failed, suspect
from worker.requests import judge_request
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def certify(here: Runtime, claim: Claim) -> None:
    """Have the claimed candidate certified. No transaction is open while the judge works.

    A fault of the machine gives the work back without counting the attempt; a problem that was judged before and now
    fails counts as one. Raises ReferenceFailed then, and Fenced, and CancelRequested when the job is cancelled
    meanwhile.
    """
    request = _request(here, claim)
    judge, settings = here.judge(request.hardware), here.settings
    with Lease(
        here.sessions, claim, interrupt=judge.abort, lease_s=settings.lease_s, renew_s=settings.renew_s
    ) as lease:
        document = judge.certify(request)
        broken = None
        if not lease.interrupted and suspect(document):
            broken = device_failed(here, request.hardware)
    lease.check()
    if broken is not None or "schema" not in document or document["verdict"] == Verdict.INFRA_ERROR:
        reason = broken or str(document.get("reason"))
        with here.transaction() as session:
            recovery.give_back(session, claim, reason, delay_s=INFRA_RETRY_S, count_attempt=False)
        log.warning("certificate.returned", reason=reason)
        return
    tracing.note({"kernelwright.verdict": document["verdict"], "kernelwright.certified": document["certified"]})
    page = render(document)
    with here.transaction() as session:
        store_certificate(session, claim, document, page)
    log.info("candidate.examined", certified=document["certified"], reason=document["reason"] or None)


def _request(here: Runtime, claim: Claim) -> EvaluationRequest:
    with here.transaction() as session:
        events.lock_job(session, claim.job_id)
        ledger.hold(session, claim)
        job = jobs.fetch_job(session, claim.job_id)
        return judge_request(session, job, session.get_one(Candidate, claim.candidate))
