"""From job rows to job resources: each function reads what it needs in a few queries, whatever the number of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy.orm import Session

from api.admission_views import admission_view
from api.job_parts import BestSummary, Budget, Cost, Policy, ProblemRef, Progress, Queue, Stop, Target
from api.job_schemas import Job
from api.places import queue_places
from db import jobs
from db.admissions import admissions_by_id
from db.models import Admission as AdmissionRow
from db.models import Job as JobRow
from db.vocabulary import CandidateState, JobState, SearchPolicy, StopReason, Verdict

_NONE = jobs.Progress()


def job_view(session: Session, row: JobRow, *, new: bool = False) -> Job:
    """The resource of one job; of a `new` one nothing is counted, which saves a submission four queries."""
    return job_views(session, [row], new=new)[0]


def job_views(session: Session, rows: Sequence[JobRow], *, new: bool = False) -> list[Job]:
    """The resources of some jobs, in their order.

    The rows were read before the counts, so a version is never newer than what it stands for: a client that has seen
    too much with a version sees the next one, and a client never misses a change.
    """
    progress = jobs.job_progress(session, [] if new else [row.id for row in rows])
    places = queue_places(session, [row.id for row in rows if row.state == JobState.QUEUED], new=new)
    admissions = admissions_by_id(session, [row.admission_id for row in rows])
    return [
        _view(row, progress.get(row.id, _NONE), places.get(row.id), admissions.get(row.admission_id or ""))
        for row in rows
    ]


def ci95(low: float | None, high: float | None) -> tuple[float, float] | None:
    """The 95 % interval of a speedup, when both ends are known."""
    return None if low is None or high is None else (low, high)


def _view(row: JobRow, progress: jobs.Progress, position: int | None, admission: AdmissionRow | None) -> Job:
    return Job(
        id=row.id,
        state=JobState(row.state),
        stop_reason=StopReason(row.stop_reason) if row.stop_reason else None,
        error=row.error,
        problem=ProblemRef(name=row.problem_name, hash=row.problem_hash),
        target=Target(hardware=row.hardware, language=row.language),
        budget=Budget(
            candidates=row.budget_candidates,
            usd=row.budget_usd,
            wall_s=row.budget_wall_s,
            gpu_s=row.budget_gpu_s,
            calls=row.budget_calls,
            tokens=row.budget_tokens,
        ),
        stop=Stop(target_speedup=row.target_speedup, stagnation=row.stagnation),
        policy=Policy(search=SearchPolicy(row.search_policy), own_kernel_share=row.own_kernel_share),
        admit=row.admit,
        certify=row.certify,
        models=row.models,
        diagnosis_model=row.diagnosis_model,
        labels=row.labels,
        priority=row.priority,
        seed=row.seed,
        parent_id=row.parent_id,
        key_id=row.key_id,
        admission=admission_view(admission),
        progress=Progress(
            candidates=_filled(progress.by_state, CandidateState), verdicts=_filled(progress.by_verdict, Verdict)
        ),
        queue=Queue(position=position),
        best=_best(progress.best),
        cost=Cost(
            llm_usd=row.cost_usd,
            llm_calls=progress.llm_calls,
            unpriced_calls=progress.unpriced_calls,
            tokens_in=progress.tokens_in,
            tokens_out=progress.tokens_out,
            gpu_s=row.gpu_s,
        ),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        version=row.version,
        links=_links(row.id),
    )


def _filled(counts: Mapping[str, int], words: Iterable[str]) -> dict[str, int]:
    return {str(word): counts.get(str(word), 0) for word in words}


def _best(best: jobs.Best | None) -> BestSummary | None:
    if best is None:
        return None
    return BestSummary(
        candidate_id=best.candidate_id,
        speedup=best.speedup,
        latency_us=best.latency_us,
        ci95=ci95(best.ci95_low, best.ci95_high),
        baseline=best.baseline,
        certified=best.certified,
    )


def _links(job_id: str) -> dict[str, str]:
    own = f"/v1/jobs/{job_id}"
    parts = ("events", "candidates", "best", "certificate", "cancel", "rerun")
    return {"self": own} | {name: f"{own}/{name}" for name in parts}
