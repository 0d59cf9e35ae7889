"""Admit a problem: have the judge say whether it can be judged, and what would pass that must not.

The search does not wait for it. Examining a small problem takes 17 to 27 s of two shared cores, in which models can
already propose and other workers evaluate; a refusal then ends the job, and until the examination is over no champion
is certified and no job succeeds (`db.certificates.next_step`), so nothing comes out of a problem that is refused.
"""

from __future__ import annotations

from typing import Any

import structlog

from db import jobs, recovery, tracing
from db.admitting import reuse_admission, store_admission
from db.ledger import Claim
from db.models import Problem
from db.vocabulary import AdmissionVerdict
from worker.evaluating import INFRA_RETRY_S
from worker.heartbeat import Lease
from worker.judge.client import JudgeFailed
from worker.judge.verdict import ReferenceFailed
from worker.judge.version import judge_hash
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def admit(here: Runtime, claim: Claim) -> None:
    """Examine the claimed job's problem, unless this judge has done so for another job meanwhile.

    A fault of the machine gives the work back without counting the attempt. Raises Fenced, and CancelRequested when the
    job is cancelled meanwhile.
    """
    with here.transaction() as session:
        known = reuse_admission(session, claim, judge_hash())
        job = jobs.fetch_job(session, claim.job_id)
        problem = session.get_one(Problem, job.problem_hash)
    if known is not None:
        log.info("problem.examined", verdict=known.verdict, reused=True)
        return
    judge, settings = here.judge(job.hardware), here.settings
    failed: str | None = None
    report: dict[str, Any] = {}
    with Lease(
        here.sessions, claim, interrupt=judge.abort, lease_s=settings.lease_s, renew_s=settings.renew_s
    ) as lease:
        try:
            report = judge.admit(problem.source, job.problem_name)
        except ReferenceFailed as error:
            report = {"verdict": AdmissionVerdict.REFUSED.value, "reason": str(error)}
        except JudgeFailed as error:
            failed = str(error)
    lease.check()
    if failed is not None:
        with here.transaction() as session:
            recovery.give_back(session, claim, failed, delay_s=INFRA_RETRY_S, count_attempt=False)
        log.warning("admission.returned", reason=failed)
        return
    tracing.note({"kernelwright.verdict": report["verdict"]})
    with here.transaction() as session:
        store_admission(session, claim, judge_hash(), report)
    log.info("problem.examined", verdict=report["verdict"], reason=report.get("reason") or None, reused=False)
