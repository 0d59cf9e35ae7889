"""Advance a job: read its tree, let the search decide, turn the decision into rows. One transaction, no waiting."""

from __future__ import annotations

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db import budgets, candidates, certificates, decisions, events, jobs, ledger, tracing, workers
from db.candidates import NewCandidate
from db.certificates import Step
from db.finishing import end_search
from db.ledger import Claim
from db.models import Job
from db.portable import portable_kernels
from db.vocabulary import QUEUE_ASK, QUEUE_LLM, JobState, Proposer, StopReason, target_queue
from search.advance import advance as decide
from search.recording import record_of
from search.rows import node
from search.types import Budget, Decision, Expansion, JobView, Portable, StopRules, Target
from worker.asking import prepare_asks
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def advance(here: Runtime, claim: Claim) -> None:
    """Decide the next expansions of the claimed job; or end its search and, once its champion is certified, the job.

    Whoever changes a candidate holds the job's lock and enqueues an advance, so what this one does not see, the next
    one does. Raises Fenced.
    """
    with here.transaction() as session:
        events.lock_job(session, claim.job_id)
        ledger.settle(session, claim)
        job = jobs.fetch_job(session, claim.job_id)
        if JobState(job.state).terminal:
            return
        jobs.start_job(session, job)
        decision = _decision(session, job)
        if decision.stop_reason is not None:
            _conclude(session, job, StopReason(decision.stop_reason))
        else:
            new = [_new(expansion, job) for expansion in decision.expansions]
            ids = candidates.add_candidates(session, job, new)
            prepare_asks(session, ids, decision.expansions, here.settings.embedding_model)
    tracing.note({"kernelwright.added": len(decision.expansions), "kernelwright.stop_reason": decision.stop_reason})
    log.info("job.advanced", added=len(decision.expansions), stop_reason=decision.stop_reason)


def _decision(session: Session, job: Job) -> Decision:
    """The search's, unless it has ended before: then only a cancel changes anything."""
    if job.stop_reason is not None:
        return Decision(stop_reason=StopReason.CANCELLED if job.cancel_requested else job.stop_reason)
    seen = view(session, job)
    decision = decide(seen, [node(row) for row in candidates.load_tree(session, job.id)])
    decisions.record_decision(session, job.id, record_of(seen), record_of(decision))
    return decision


def _conclude(session: Session, job: Job, reason: StopReason) -> None:
    """End the job, or end its search and have its champion certified; a cancelled job waits for nothing."""
    step = Step.FINISH if reason is StopReason.CANCELLED else certificates.next_step(session, job)
    if step is Step.FINISH:
        jobs.finish_job(session, job.id, reason, _error(session, job, reason))
        return
    if job.stop_reason is None:
        end_search(session, job, reason)
    if step is Step.CERTIFY:
        certificates.enqueue_certify(session, job)


def view(session: Session, job: Job) -> JobView:
    """The job as the search sees it; the wall clock is the database's."""
    elapsed_s = session.scalar(select(func.extract("epoch", func.now() - Job.started_at)).where(Job.id == job.id))
    return JobView(
        id=job.id,
        target=Target(job.hardware, job.language),
        budget=Budget(
            candidates=job.budget_candidates,
            usd=job.budget_usd,
            wall_s=job.budget_wall_s,
            gpu_s=job.budget_gpu_s,
            calls=job.budget_calls,
            tokens=job.budget_tokens,
        ),
        stop=StopRules(job.target_speedup, job.stagnation),
        models=tuple(job.models),
        seed=job.seed,
        elapsed_s=float(elapsed_s or 0),
        cost_usd=job.cost_usd,
        gpu_s=job.gpu_s,
        llm_calls=job.llm_calls,
        llm_tokens=job.llm_tokens,
        key_over=budgets.key_over(session, job.key_id, models=bool(job.models)),
        cancel_requested=job.cancel_requested,
        slots=slots(session, job.hardware),
        policy=job.search_policy,
        portable=tuple(
            Portable(kernel.candidate_id, Target(kernel.hardware, kernel.language))
            for kernel in portable_kernels(session, job)
        ),
    )


def slots(session: Session, hardware: str) -> int:
    """How many candidates may be in flight: one for each live worker, and one more so that it is made meanwhile."""
    return max(1, workers.live_workers(session, target_queue(hardware))) + 1


def _new(expansion: Expansion, job: Job) -> NewCandidate:
    # The built-in proposer runs beside the device: it needs torch, and its compiler seeds are for that very device.
    elsewhere = {Proposer.LLM: QUEUE_LLM, Proposer.ASK_TELL: QUEUE_ASK}
    queue = elsewhere.get(Proposer(expansion.proposer), target_queue(job.hardware))
    return NewCandidate(
        operator=str(expansion.operator),
        proposer=str(expansion.proposer),
        queue=queue,
        model=expansion.model,
        parents=tuple(expansion.parents),
        delay_s=expansion.delay_s,
    )


def _error(session: Session, job: Job, reason: StopReason) -> str | None:
    if job.best_candidate_id is None and (refused := certificates.refusals(session, job.id)):
        return certificates.no_champion(refused)
    if reason is not StopReason.ERROR:
        return None
    return "the proposers failed again and again: see the candidates' failure_detail"
