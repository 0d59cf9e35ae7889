"""Advance a job: read its tree, let the search decide, turn the decision into rows. One transaction, no waiting."""

from __future__ import annotations

from statistics import geometric_mean

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db import budgets, candidates, certificates, events, jobs, ledger, workers
from db.candidates import NewCandidate, TreeRow
from db.certificates import Step
from db.finishing import end_search
from db.ledger import Claim
from db.models import Job
from db.vocabulary import QUEUE_LLM, JobState, Proposer, StopReason, target_queue
from search.advance import advance as decide
from search.types import Budget, Decision, Expansion, JobView, Node, StopRules, Target
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
            candidates.add_candidates(session, job, [_new(expansion, job) for expansion in decision.expansions])
    log.info("job.advanced", added=len(decision.expansions), stop_reason=decision.stop_reason)


def _decision(session: Session, job: Job) -> Decision:
    """The search's, unless it has ended before: then only a cancel changes anything."""
    if job.stop_reason is not None:
        return Decision(stop_reason=StopReason.CANCELLED if job.cancel_requested else job.stop_reason)
    return decide(view(session, job), [node(row) for row in candidates.load_tree(session, job.id)])


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
    )


def slots(session: Session, hardware: str) -> int:
    """How many candidates may be in flight: one for each live worker, and one more so that it is made meanwhile."""
    return max(1, workers.live_workers(session, target_queue(hardware))) + 1


def node(row: TreeRow) -> Node:
    """A row of the tree as the search sees it."""
    return Node(
        id=row.id,
        ordinal=row.ordinal,
        operator=row.operator,
        proposer=row.proposer,
        model=row.model,
        parents=row.parents,
        state=row.state,
        verdict=row.verdict,
        speedup=row.speedup,
        failure=row.failure,
        params=row.params,
        tunable=row.tunable,
        source_hash=row.source_hash,
        plan=row.plan,
        cost_usd=row.cost_usd,
        gpu_s=row.gpu_s,
        sol_fraction=geometric_mean(row.sol_fractions) if row.sol_fractions else None,
    )


def _new(expansion: Expansion, job: Job) -> NewCandidate:
    # The built-in proposer runs beside the device: it needs torch, and its compiler seeds are for that very device.
    queue = QUEUE_LLM if expansion.proposer == Proposer.LLM else target_queue(job.hardware)
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
