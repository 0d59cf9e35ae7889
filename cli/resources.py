"""What the REST API takes and answers, as types; `cli.client` hands them on.

They are dictionaries at run time, exactly what came over the wire, so that `--json` can print what it got.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict


class ProblemRef(TypedDict):
    name: str
    hash: str


class Target(TypedDict):
    hardware: str
    language: str


class BudgetBody(TypedDict, total=False):
    candidates: int
    usd: str
    wall_s: float
    gpu_s: float
    calls: int
    tokens: int


class StopBody(TypedDict, total=False):
    target_speedup: float
    stagnation: int


class PolicyBody(TypedDict, total=False):
    search: str
    own_kernel_share: float


class OwnProblem(TypedDict):
    name: str
    source: str


class JobBody(TypedDict):
    """The body of POST /v1/jobs. Money is a decimal string in US dollars."""

    problem: str | OwnProblem
    target: Target
    budget: NotRequired[BudgetBody]
    stop: NotRequired[StopBody]
    policy: NotRequired[PolicyBody]
    admit: NotRequired[bool]
    certify: NotRequired[bool]
    models: NotRequired[Sequence[str]]
    diagnosis_model: NotRequired[str]
    labels: NotRequired[Mapping[str, str]]
    priority: NotRequired[int]
    seed: NotRequired[int]


class Budget(TypedDict):
    candidates: int
    usd: str | None
    wall_s: float | None
    gpu_s: float | None
    calls: int | None
    tokens: int | None


class Stop(TypedDict):
    target_speedup: float | None
    stagnation: int | None


class Policy(TypedDict):
    search: str
    own_kernel_share: float


class Admission(TypedDict):
    """What the judge says of the problem; `domains` has kind, bound and why for each argument."""

    verdict: str
    reason: str | None
    warnings: list[str]
    notes: list[str]
    domains: dict[str, dict[str, Any]]
    examined_at: str


class Progress(TypedDict):
    """Counts by candidate state and by verdict; every state and verdict is a key, zero or not."""

    candidates: dict[str, int]
    verdicts: dict[str, int]


class Queue(TypedDict):
    """`position` is 1 for the job that workers will come to next, null once the job has started."""

    position: int | None


class BestSummary(TypedDict):
    candidate_id: str
    speedup: float | None
    latency_us: float | None
    ci95: list[float] | None
    baseline: str | None
    certified: bool


class Cost(TypedDict):
    llm_usd: str
    llm_calls: int
    unpriced_calls: int
    tokens_in: int
    tokens_out: int
    gpu_s: float


class Job(TypedDict):
    id: str
    problem: ProblemRef
    target: Target
    budget: Budget
    stop: Stop
    policy: Policy
    admit: bool
    certify: bool
    models: list[str]
    diagnosis_model: str | None
    labels: dict[str, str]
    priority: int
    seed: int
    parent_id: str | None
    key_id: str | None
    admission: Admission | None
    state: str
    stop_reason: str | None
    error: str | None
    progress: Progress
    queue: Queue
    best: BestSummary | None
    cost: Cost
    created_at: str
    started_at: str | None
    finished_at: str | None
    version: int
    links: dict[str, str]


class Estimate(TypedDict):
    """What a job may cost; each expectation has `low` and `high`. `usd` is null where a price is unknown."""

    llm_calls: dict[str, float]
    tokens_in: dict[str, float]
    tokens_out: dict[str, float]
    usd: dict[str, str] | None
    gpu_s: dict[str, float] | None
    prices: list[dict[str, Any]]
    unknown_prices: list[str]
    notes: list[str]


class DryRun(TypedDict):
    """What a submission would do: the spec with its defaults, and the problem as the server reads it."""

    valid: bool
    job: dict[str, Any]
    problem: Problem
    admission: Admission | None
    estimate: Estimate
    warnings: list[str]


class PlainRequest(TypedDict):
    """A request in plain words; `proposal` has what it would become, its `job` is a body for POST /v1/jobs."""

    id: str
    state: str
    request: str
    proposal: dict[str, Any] | None
    error: str | None
    model: str | None
    cost: dict[str, Any]
    job_id: str | None
    created_at: str
    links: dict[str, str]


class Cancelled(TypedDict):
    changed: bool
    job: Job


class Candidate(TypedDict):
    id: str
    job_id: str
    ordinal: int
    operator: str
    proposer: str
    model: str | None
    parents: list[str]
    plan: str | None
    params: dict[str, Any] | None
    state: str
    failure: str | None
    failure_detail: str | None
    duplicate_of: str | None
    cost_usd: str
    created_at: str
    verdict: str | None
    reason: str | None
    timed: bool | None
    latency_us: float | None
    speedup: float | None
    ci95: list[float] | None
    baseline: str | None
    evaluated_at: str | None
    links: dict[str, str]


class CandidateDetail(Candidate):
    """A candidate with its source and the judge's whole report (checks, workloads, environment, profile)."""

    source: str | None
    report: dict[str, Any] | None
    duplicate: dict[str, Any] | None
    tuning: dict[str, Any] | None
    code: list[dict[str, Any]]


class Comparison(TypedDict):
    """Two candidates: `ratio` and each workload's say how many times faster the second is; `notes` why not."""

    first: Candidate
    second: Candidate
    ratio: dict[str, Any] | None
    workloads: list[dict[str, Any]]
    environment: dict[str, list[Any]]
    notes: list[str]
    diff: str | None


class Event(TypedDict):
    seq: int
    job_id: str
    type: str
    at: str
    data: dict[str, Any]


class Problem(TypedDict):
    name: str
    hash: str
    summary: str
    op_family: str
    workloads: list[dict[str, Any]]
    backward: bool
    source: NotRequired[str]


class Leaderboard(TypedDict):
    """The boards of a problem: each has `hash`, `bundled`, `target`, its `entries` by rank and who was `left_out`."""

    problem: str
    boards: list[dict[str, Any]]


class Worker(TypedDict):
    id: str
    hostname: str
    pid: int
    queues: list[str]
    hardware: str | None
    device: dict[str, Any]
    state: str
    current_work: str | None
    device_state: dict[str, Any] | None
    started_at: str
    heartbeat_at: str


class Wait(TypedDict):
    """How long work had been ready when it was claimed, over the newest claims of the last hour."""

    claims: int
    p50_s: float
    p95_s: float


class QueueDepth(TypedDict):
    name: str
    ready: int
    delayed: int
    running: int
    oldest_age_s: float
    workers: int
    wait: Wait | None


class Summary(TypedDict):
    """The whole service: `jobs` has `live` and `ended_24h` by state, `workers` has `states` and each worker's
    `current` work, `today` what was spent since midnight UTC."""

    jobs: dict[str, dict[str, int]]
    queues: list[QueueDepth]
    workers: dict[str, Any]
    today: dict[str, Any]
    wait: Wait | None


class JobPage(TypedDict):
    data: list[Job]
    next_cursor: str | None
    has_more: bool


class CandidatePage(TypedDict):
    data: list[Candidate]
    next_cursor: str | None
    has_more: bool


class EventPage(TypedDict):
    """`next_after` is the `after` of the next page, also when this page is empty."""

    data: list[Event]
    next_after: int
    has_more: bool


class FieldError(TypedDict):
    """One field at fault; `pointer` is a JSON pointer into the body, such as `#/budget/usd`."""

    pointer: str
    detail: str
