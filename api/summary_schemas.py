"""The summary on the wire, and the queues that are part of it."""

from __future__ import annotations

from api.schemas import Resource, Usd, UtcTime
from db.summary import QueueState, Summary, Waits
from db.vocabulary import TERMINAL_JOB_STATES, JobState, WorkerState, WorkKind

_LIVE = [state for state in JobState if state not in TERMINAL_JOB_STATES]
_ENDED = [state for state in JobState if state in TERMINAL_JOB_STATES]


class Wait(Resource):
    """How long work had been ready when a worker took it, over the newest claims: 1,000 at most, of the last hour."""

    claims: int
    p50_s: float
    p95_s: float


class QueueDepth(Resource):
    """A queue: what is ready, what is not due yet, what runs, how old the oldest ready work is, and who takes it.

    `wait` is null where nothing was claimed in the last hour. The queue `ask` is for outside agents: no worker has it.
    """

    name: str
    ready: int
    delayed: int
    running: int
    oldest_age_s: float
    workers: int
    wait: Wait | None


class QueueList(Resource):
    """The queues by name."""

    data: list[QueueDepth]


class JobCounts(Resource):
    """How many jobs are in each state now, and how many ended in which state in the last 24 hours."""

    live: dict[str, int]
    ended_24h: dict[str, int]


class Current(Resource):
    """What a worker does now; an admission, an advance and a learning have no candidate."""

    work_id: str
    kind: WorkKind
    job_id: str
    candidate_id: str | None


class WorkerLine(Resource):
    """A worker that is alive, and what it does now."""

    id: str
    hostname: str
    hardware: str | None
    state: WorkerState
    current: Current | None
    heartbeat_at: UtcTime


class WorkersNow(Resource):
    """How many workers are alive, by state, and each of them."""

    states: dict[str, int]
    data: list[WorkerLine]


class SpentToday(Resource):
    """Spent since midnight UTC, by searches, requests in plain words and vectors; unpriced calls are in no sum."""

    since: UtcTime
    usd: Usd
    gpu_s: float


class ServiceSummary(Resource):
    """The whole service at a glance."""

    jobs: JobCounts
    queues: list[QueueDepth]
    workers: WorkersNow
    today: SpentToday
    wait: Wait | None


def queue_view(row: QueueState) -> QueueDepth:
    """The resource of a queue."""
    depth = row.depth
    return QueueDepth(
        name=depth.queue,
        ready=depth.ready,
        delayed=depth.delayed,
        running=depth.running,
        oldest_age_s=round(depth.oldest_age_s, 3),
        workers=row.workers,
        wait=_wait(row.waits),
    )


def summary_view(found: Summary) -> ServiceSummary:
    """The resource of the summary."""
    return ServiceSummary(
        jobs=JobCounts(
            live={str(state): found.live.get(state, 0) for state in _LIVE},
            ended_24h={str(state): found.ended.get(state, 0) for state in _ENDED},
        ),
        queues=[queue_view(each) for each in found.queues],
        workers=_workers(found),
        today=SpentToday(since=found.spent.since, usd=found.spent.usd, gpu_s=round(found.spent.gpu_s, 3)),
        wait=_wait(found.waits),
    )


def _workers(found: Summary) -> WorkersNow:
    lines = [
        WorkerLine(
            id=each.worker.id,
            hostname=each.worker.hostname,
            hardware=each.worker.hardware,
            state=WorkerState(each.worker.state),
            current=Current.model_validate(each.doing, from_attributes=True) if each.doing else None,
            heartbeat_at=each.worker.heartbeat_at,
        )
        for each in found.workers
    ]
    alive = (WorkerState.ACTIVE, WorkerState.DRAINING)
    return WorkersNow(states={str(s): sum(line.state is s for line in lines) for s in alive}, data=lines)


def _wait(waits: Waits | None) -> Wait | None:
    if waits is None:
        return None
    return Wait(claims=waits.claims, p50_s=round(waits.p50_s, 4), p95_s=round(waits.p95_s, 4))
