"""What a job's resource is made of: its problem, target, budget and policy, its progress, its best and its cost."""

from __future__ import annotations

from api.schemas import Resource, Usd, UtcTime
from db.vocabulary import AdmissionVerdict, SearchPolicy


class ProblemRef(Resource):
    """The problem; `hash` is the SHA-256 of its source."""

    name: str
    hash: str


class Target(Resource):
    hardware: str
    language: str


class Budget(Resource):
    """Null is no limit of that kind."""

    candidates: int
    usd: Usd | None
    wall_s: float | None
    gpu_s: float | None
    calls: int | None
    tokens: int | None


class Stop(Resource):
    target_speedup: float | None
    stagnation: int | None


class Policy(Resource):
    search: SearchPolicy
    own_kernel_share: float


class Domain(Resource):
    """The values that the judge draws for one argument, and why; `bound` is an index's exclusive upper bound."""

    kind: str
    bound: int | None
    why: str


class Admission(Resource):
    """What the judge says of the problem on this hardware: what would pass that must not, and what it will draw."""

    verdict: AdmissionVerdict
    reason: str | None
    warnings: list[str]
    notes: list[str]
    domains: dict[str, Domain]
    examined_at: UtcTime


class Progress(Resource):
    """Counts by candidate state and by verdict; each has every key, zero or not."""

    candidates: dict[str, int]
    verdicts: dict[str, int]


class Queue(Resource):
    """The place among the jobs that wait, in the order in which workers will come to them: 1 is next. Keys take turns,
    so a later job of another key may be before this one. Null once the job has started, and while it is started."""

    position: int | None


class BestSummary(Resource):
    """The best verified candidate so far; the speedup is against the fastest baseline, which is named. It is certified
    once the search has ended; `speedup` and `ci95` are the certificate's then, the smaller of two measurements."""

    candidate_id: str
    speedup: float | None
    latency_us: float | None
    ci95: tuple[float, float] | None
    baseline: str | None
    certified: bool


class Cost(Resource):
    """What was spent. Calls whose price nobody knows count in `unpriced_calls`; what they cost is in no sum."""

    llm_usd: Usd
    llm_calls: int
    unpriced_calls: int
    tokens_in: int
    tokens_out: int
    gpu_s: float
