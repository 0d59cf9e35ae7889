"""What the REST API takes and answers, as types. `python -m cli.generate.client_types` writes this file.

They are dictionaries at run time, exactly what came over the wire, so that `--json` can print what it got.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

# The one of `typing` is refused by pydantic before Python 3.12.
from typing_extensions import TypedDict

Json: TypeAlias = dict[str, Any]

AdmissionVerdict: TypeAlias = Literal["admitted", "admitted with warnings", "refused"]

AuditAction: TypeAlias = Literal[
    "job.submit",
    "job.cancel",
    "key.create",
    "key.change",
    "key.rotate",
    "key.revoke",
    "worker.drain",
    "worker.resume",
    "webhook.create",
    "webhook.change",
    "webhook.rotate",
    "webhook.delete",
    "webhook.disable",
]

CandidateState: TypeAlias = Literal["proposing", "queued", "evaluating", "evaluated", "rejected", "cancelled"]

CodeKind: TypeAlias = Literal["ttgir", "llvm", "ptx", "sass", "assembly"]

DeliveryState: TypeAlias = Literal["waiting", "succeeded", "failed"]

DisabledWhy: TypeAlias = Literal["owner", "gone", "failing"]

Failure: TypeAlias = Literal[
    "no_code",
    "truncated",
    "diff_failed",
    "refused",
    "provider_error",
    "exhausted",
    "duplicate",
    "budget",
]

ItemKind: TypeAlias = Literal["kernel", "lesson", "fact"]

JobState: TypeAlias = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]

Language: TypeAlias = Literal["cpp", "triton", "cuda"]

LessonKind: TypeAlias = Literal["change", "failure"]

LessonState: TypeAlias = Literal["tentative", "confirmed", "quarantined"]

Operator: TypeAlias = Literal["seed", "translate", "repair", "refine", "rewrite", "crossover", "tune", "port"]

Proposer: TypeAlias = Literal["builtin", "llm", "ask/tell"]

RequestState: TypeAlias = Literal["queued", "writing", "proposed", "confirmed", "failed"]

Says: TypeAlias = Literal["faster", "slower", "unclear", "occurred", "fixed", "not_fixed"]

Scope: TypeAlias = Literal["submit", "read", "admin"]

SearchPolicy: TypeAlias = Literal["default", "uct", "islands", "archive", "greedy", "best_of_n", "random"]

StopReason: TypeAlias = Literal[
    "target_reached",
    "budget_candidates",
    "budget_usd",
    "budget_wall",
    "budget_gpu",
    "budget_calls",
    "budget_tokens",
    "budget_key",
    "stagnated",
    "exhausted",
    "cancelled",
    "error",
]

Verdict: TypeAlias = Literal[
    "ok",
    "build_error",
    "launch_error",
    "illegal_access",
    "timeout",
    "incorrect",
    "nondeterministic",
    "suspicious",
    "infra_error",
]

WebhookType: TypeAlias = Literal[
    "job.created",
    "job.started",
    "job.improved",
    "job.cancel_requested",
    "job.search_ended",
    "job.finished",
]

WorkKind: TypeAlias = Literal["advance", "admit", "propose", "evaluate", "certify", "learn"]

WorkerState: TypeAlias = Literal["active", "draining", "quarantined", "gone"]


class Admission(TypedDict):
    """What the judge says of the problem on this hardware: what would pass that must not, and what it will draw."""

    verdict: AdmissionVerdict
    reason: str | None
    warnings: list[str]
    notes: list[str]
    domains: dict[str, Domain]
    examined_at: str


class Alternative(TypedDict):
    """A bundled problem that is near too; `lacks` was asked for and is not in it, `adds` is the reverse."""

    name: str
    score: float
    lacks: list[str]
    adds: list[str]


class ArchivePage(TypedDict):
    """It may be short, or empty, and still have a next page: a page looks at 5,000 candidates at most."""

    data: list[ArchivedCandidate]
    next_cursor: str | None
    has_more: bool


class ArchivedCandidate(TypedDict):
    """A candidate with what a data set of candidates needs. What `include` did not ask for is null."""

    id: str
    job_id: str
    ordinal: int
    operator: Operator
    proposer: Proposer
    model: str | None
    parents: list[str]
    plan: str | None
    params: Json | None
    state: CandidateState
    failure: str | None
    failure_detail: str | None
    duplicate_of: str | None
    cost_usd: str
    created_at: str
    verdict: Verdict | None
    reason: str | None
    timed: bool | None
    latency_us: float | None
    speedup: float | None
    ci95: list[float] | None
    baseline: str | None
    evaluated_at: str | None
    links: dict[str, str]
    problem: ProblemRef
    target: Target
    labels: dict[str, str]
    retrieval: bool | None
    prompt_version: str | None
    tokens_in: int | None
    tokens_out: int | None
    source_hash: str | None
    source_bytes: int | None
    source: str | None
    baselines_us: dict[str, float]
    speedups: dict[str, float]
    max_relative_error: float | None
    log: str | None
    gpu_s: float | None
    wall_s: float | None
    environment: Json | None
    certificate: ArchivedCertificate | None
    workloads: list[Json] | None
    profile: Json | None


class ArchivedCertificate(TypedDict):
    """Which certificate the candidate has, and whether it says that it is one."""

    id: str
    certified: bool


class AskBody(TypedDict):
    """Who asks, for how long, and for how many questions."""

    agent: NotRequired[str | None]
    lease_s: NotRequired[float]
    limit: NotRequired[int]


class AuditEntry(TypedDict):
    """Who did what. `key` is None where none is needed, on loopback; `address` is `cli` for the command line."""

    seq: int
    at: str
    action: AuditAction
    subject: str
    key: str | None
    address: str | None
    request_id: str | None
    data: Json


class AuditPage(TypedDict):
    data: list[AuditEntry]
    next_cursor: str | None
    has_more: bool


class BestSummary(TypedDict):
    """The best verified candidate so far; the speedup is against the fastest baseline, which is named. It is
    certified once the search has ended; `speedup` and `ci95` are the certificate's then, the smaller of two
    measurements.
    """

    candidate_id: str
    speedup: float | None
    latency_us: float | None
    ci95: list[float] | None
    baseline: str | None
    certified: bool


class Board(TypedDict):
    """The champions for one source of the problem on one target. Only within a board is a speedup comparable.

    `bundled`: the source is the one that the service knows under this name now.
    """

    hash: str
    bundled: bool
    target: Target
    entries: list[Place]
    left_out: list[LeftOut]


class Budget(TypedDict):
    """Null is no limit of that kind."""

    candidates: int
    usd: str | None
    wall_s: float | None
    gpu_s: float | None
    calls: int | None
    tokens: int | None


class BudgetBody(TypedDict):
    """What the search may use; it ends when any part is used up."""

    candidates: NotRequired[int]
    usd: NotRequired[str | None]
    wall_s: NotRequired[float | None]
    gpu_s: NotRequired[float | None]
    calls: NotRequired[int | None]
    tokens: NotRequired[int | None]


class CancelBody(TypedDict):
    """Why a job is cancelled; the reason goes into its events."""

    reason: NotRequired[str | None]


class Cancelled(TypedDict):
    """The job after a cancel. `changed` is false when it had ended or was being cancelled already."""

    changed: bool
    job: Job


class Candidate(TypedDict):
    """Where a candidate came from, where it is (`state`) and what was found (`verdict`, null until it was judged)."""

    id: str
    job_id: str
    ordinal: int
    operator: Operator
    proposer: Proposer
    model: str | None
    parents: list[str]
    plan: str | None
    params: Json | None
    state: CandidateState
    failure: str | None
    failure_detail: str | None
    duplicate_of: str | None
    cost_usd: str
    created_at: str
    verdict: Verdict | None
    reason: str | None
    timed: bool | None
    latency_us: float | None
    speedup: float | None
    ci95: list[float] | None
    baseline: str | None
    evaluated_at: str | None
    links: dict[str, str]


class CandidateDetail(TypedDict):
    """With the source and the judge's whole report: checks, workloads, samples, profile, environment, log."""

    id: str
    job_id: str
    ordinal: int
    operator: Operator
    proposer: Proposer
    model: str | None
    parents: list[str]
    plan: str | None
    params: Json | None
    state: CandidateState
    failure: str | None
    failure_detail: str | None
    duplicate_of: str | None
    cost_usd: str
    created_at: str
    verdict: Verdict | None
    reason: str | None
    timed: bool | None
    latency_us: float | None
    speedup: float | None
    ci95: list[float] | None
    baseline: str | None
    evaluated_at: str | None
    links: dict[str, str]
    source: str | None
    report: Json | None
    duplicate: Duplicate | None
    tuning: TuningRecord | None
    code: list[GeneratedCode]


class CandidatePage(TypedDict):
    data: list[Candidate]
    next_cursor: str | None
    has_more: bool


class Caps(TypedDict):
    """Caps, or what is used of them."""

    usd: str | None
    tokens: int | None
    calls: int | None
    gpu_s: float | None
    wall_s: float | None
    candidates: int | None
    jobs: int | None
    jobs_per_day: int | None


class CapsBody(TypedDict):
    """What the key's jobs may use together. What is left out has no cap."""

    usd: NotRequired[str | None]
    tokens: NotRequired[int | None]
    calls: NotRequired[int | None]
    gpu_s: NotRequired[float | None]
    wall_s: NotRequired[float | None]
    candidates: NotRequired[int | None]
    jobs: NotRequired[int | None]
    jobs_per_day: NotRequired[int | None]


class Comparison(TypedDict):
    """The first candidate and the second. Without a ratio, `notes` says why there is none.

    `environment` holds what differs between the machines as they were judged: the first's value and the second's.
    `diff` is a unified diff from the first source to the second, null where one has no source or both are very long.
    """

    first: Candidate
    second: Candidate
    ratio: Ratio | None
    workloads: list[WorkloadPair]
    environment: dict[str, list[Any]]
    notes: list[str]
    diff: str | None


class Cost(TypedDict):
    """What was spent. Calls whose price nobody knows count in `unpriced_calls`; what they cost is in no sum."""

    llm_usd: str
    llm_calls: int
    unpriced_calls: int
    tokens_in: int
    tokens_out: int
    gpu_s: float


class Current(TypedDict):
    """What a worker does now; an admission, an advance and a learning have no candidate."""

    work_id: str
    kind: WorkKind
    job_id: str
    candidate_id: str | None


class Decision(TypedDict):
    """What one advance saw of the job (`view`) and what it decided; the tree that it saw are the events up to `seq`."""

    seq: int
    at: str
    view: Json
    decision: Json


class DecisionPage(TypedDict):
    """Decisions, in the order in which they were made."""

    data: list[Decision]
    next_cursor: str | None
    has_more: bool


class Delivery(TypedDict):
    """One event for one webhook; its id is the `webhook-id` of every attempt.

    `attempts` are those begun; `status`, `wall_s`, `answer` (its beginning) and `error` are of the last one.
    `next_attempt_at` is null when there will be none.
    """

    id: str
    webhook_id: str
    job_id: str | None
    type: str
    state: DeliveryState
    attempts: int
    status: int | None
    wall_s: float | None
    answer: str | None
    error: str | None
    created_at: str
    attempted_at: str | None
    next_attempt_at: str | None
    finished_at: str | None


class DeliveryDetail(TypedDict):
    """With what is sent under `data`."""

    id: str
    webhook_id: str
    job_id: str | None
    type: str
    state: DeliveryState
    attempts: int
    status: int | None
    wall_s: float | None
    answer: str | None
    error: str | None
    created_at: str
    attempted_at: str | None
    next_attempt_at: str | None
    finished_at: str | None
    data: Json


class DeliveryPage(TypedDict):
    data: list[Delivery]
    next_cursor: str | None
    has_more: bool


class Difference(TypedDict):
    """Shown minus withheld, with the 95 % interval."""

    estimate: float
    ci95: list[float]


class Domain(TypedDict):
    """The values that the judge draws for one argument, and why; `bound` is an index's exclusive upper bound."""

    kind: str
    bound: int | None
    why: str


class DryRun(TypedDict):
    """What a submission would become. Nothing was stored. `admission` is null for a problem not examined yet."""

    valid: NotRequired[bool]
    job: Json
    problem: ProblemOutline
    admission: Admission | None
    estimate: Estimate
    warnings: list[str]


class Duplicate(TypedDict):
    """What is known of the candidate that this one is again; null where it is not judged yet."""

    candidate_id: str
    ordinal: int
    verdict: Verdict | None
    speedup: float | None


class Estimate(TypedDict):
    """`usd` is null where a price is unknown (`unknown_prices` names the models) and never 0; `gpu_s` is null where
    nothing was evaluated on this hardware yet.
    """

    llm_calls: Expected
    tokens_in: Expected
    tokens_out: Expected
    usd: ExpectedUsd | None
    gpu_s: Expected | None
    prices: list[ModelPrice]
    unknown_prices: list[str]
    notes: list[str]


class Event(TypedDict):
    """One thing that happened in a job. `seq` grows within a job, with gaps: other jobs' events lie between."""

    seq: int
    job_id: str
    type: str
    at: str
    data: Json


class EventPage(TypedDict):
    """Events, oldest first. `next_after` is the `after` of the next page, also when this one is empty."""

    data: list[Event]
    next_after: int
    has_more: bool


class Evidence(TypedDict):
    """One candidate's word on a lesson."""

    candidate_id: str
    parent_id: str | None
    job_id: str
    says: Says
    effect: float | None
    effect_ci95: list[float] | None
    note: str | None
    created_at: str


class Expected(TypedDict):
    """From a low to a high expectation, if the job uses its whole budget of candidates."""

    low: float
    high: float


class ExpectedUsd(TypedDict):
    low: str
    high: str


class FieldError(TypedDict):
    """What is at fault: `pointer` is a JSON pointer into the body (`#/budget/usd`) or a query parameter (`?limit`)."""

    pointer: str
    detail: str


class FoundItem(TypedDict):
    """An item that fits the question: its place among its kind, and its rank in each part that ranked it."""

    id: str
    kind: ItemKind
    rank: int
    score: float
    ranks: dict[str, int]
    title: str
    text: str


class FoundItems(TypedDict):
    data: list[FoundItem]


class GeneratedCode(TypedDict):
    """A kind of generated code that is kept; the text is under the link of that name."""

    kind: CodeKind
    bytes: int
    sha256: str


class Group(TypedDict):
    """Proposals of one group: how many, how many of them correct at once, what they gained and cost on average.

    `gained` is in log-speedup over the parent, a failure counting as 0; `cost_usd` of those whose price is known.
    """

    proposals: int
    correct: int
    gained: float | None
    cost_usd: float | None


class Health(TypedDict):
    status: str
    version: str


class ItemLift(TypedDict):
    """The lift of one item among the proposals for which it came up; `retired` says why it is shown no more."""

    shown: Group
    withheld: Group
    correctness: Difference | None
    gained: Difference | None
    cost_usd: Difference | None
    id: str
    kind: ItemKind
    title: str
    retired: str | None


class Job(TypedDict):
    """A job as it stands. `version` grows with each visible change: it is what `since_version` takes.

    A `stop_reason` in a job that still runs: the search has ended, and the champion is being certified. `admission` is
    null until the problem was examined.
    """

    id: str
    state: JobState
    stop_reason: StopReason | None
    error: str | None
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
    progress: Progress
    queue: Queue
    best: BestSummary | None
    cost: Cost
    created_at: str
    started_at: str | None
    finished_at: str | None
    version: int
    links: dict[str, str]


class JobBody(TypedDict):
    """A request to search a problem for a target under a budget."""

    budget: NotRequired[BudgetBody]
    stop: NotRequired[StopBody]
    policy: NotRequired[PolicyBody]
    admit: NotRequired[bool]
    certify: NotRequired[bool]
    models: NotRequired[list[str]]
    diagnosis_model: NotRequired[str | None]
    labels: NotRequired[dict[str, str]]
    priority: NotRequired[int]
    seed: NotRequired[int]
    problem: ProblemChoice
    target: TargetBody


class JobCounts(TypedDict):
    """How many jobs are in each state now, and how many ended in which state in the last 24 hours."""

    live: dict[str, int]
    ended_24h: dict[str, int]


class JobPage(TypedDict):
    """Jobs, newest first."""

    data: list[Job]
    next_cursor: str | None
    has_more: bool


class JudgedProblem(TypedDict):
    """The problem with its source; `hash` is the SHA-256 of it."""

    name: str
    hash: str
    source: str


class Judging(TypedDict):
    """What the judge is asked about each candidate of the job, beside the candidate. `seed` is null while it runs:
    whoever proposes must not know the judge's inputs.
    """

    job_id: str
    problem: JudgedProblem
    target: Target
    own_kernel_share: float
    seed: int | None


class Key(TypedDict):
    """A key without its token. `prefix` is how that begins, `previous_until` when the one before it ends."""

    id: str
    name: str
    prefix: str | None
    scopes: list[Scope]
    state: Literal["active", "expired", "revoked"]
    caps: Caps
    used: Caps
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None
    previous_until: str | None


class KeyBody(TypedDict):
    """A key to be made."""

    name: str
    scopes: NotRequired[list[Scope]]
    expires_at: NotRequired[str | None]
    caps: NotRequired[CapsBody]


class KeyList(TypedDict):
    data: list[Key]


class KeyRevoked(TypedDict):
    changed: bool
    key: Key


class KeyWithToken(TypedDict):
    """The token is shown here and never again."""

    key: Key
    token: str


class Leaderboard(TypedDict):
    """All boards of a problem, the bundled source's first."""

    problem: str
    boards: list[Board]


class LeftOut(TypedDict):
    """A candidate that was measured faster than the first and is not on the board: the verdict and why."""

    candidate_id: str
    job_id: str
    speedup: float
    verdict: Verdict
    why: str
    links: dict[str, str]


class Lesson(TypedDict):
    """A rule learned. Only `confirmed` ones are told to proposers; counts are of independent jobs.

    `effect` is the factor in speed that a change had, pooled over jobs, with its 95 % interval.
    """

    id: str
    kind: LessonKind
    state: LessonState
    language: str
    hardware: str
    op_family: str | None
    bound: str | None
    title: str
    text: str
    supporting: int
    opposing: int
    evidence: int
    effect: float | None
    effect_ci95: list[float] | None
    retired: str | None
    last_confirmed: str | None
    created_at: str


class LessonDetail(TypedDict):
    """A lesson with all evidence on it."""

    id: str
    kind: LessonKind
    state: LessonState
    language: str
    hardware: str
    op_family: str | None
    bound: str | None
    title: str
    text: str
    supporting: int
    opposing: int
    evidence: int
    effect: float | None
    effect_ci95: list[float] | None
    retired: str | None
    last_confirmed: str | None
    created_at: str
    evidence_rows: list[Evidence]


class LessonPage(TypedDict):
    data: list[Lesson]
    next_cursor: str | None
    has_more: bool


class Lift(TypedDict):
    """What showing something was worth; a difference is null while there is too little to say."""

    shown: Group
    withheld: Group
    correctness: Difference | None
    gained: Difference | None
    cost_usd: Difference | None


class Message(TypedDict):
    """One message of a prompt for a chat model."""

    role: str
    content: str


class ModelPrice(TypedDict):
    """USD for a million tokens. `source`: override (the server's price file), litellm (its list), history (what
    earlier calls cost) or unknown.
    """

    model: str
    usd_per_mtok_in: str | None
    usd_per_mtok_out: str | None
    source: str


class Place(TypedDict):
    """A champion. `certified` ones come first; the others ended jobs that asked for no certificate or could get
    none.

    `own_kernel_share` is what its job demanded: the least share of the device's time in the candidate's own kernels.
    """

    rank: int
    candidate_id: str
    job_id: str
    certified: bool
    speedup: float
    ci95: list[float] | None
    latency_us: float | None
    baseline: str | None
    operator: Operator
    proposer: Proposer
    model: str | None
    own_kernel_share: float
    found_at: str
    links: dict[str, str]


class PlainRequest(TypedDict):
    """A request. While `state` is queued or writing a model writes for it; `proposal` is the matcher's until then."""

    id: str
    state: RequestState
    request: str
    proposal: ProposedJob | None
    error: str | None
    model: str | None
    cost: WritingCost
    job_id: str | None
    created_at: str
    links: dict[str, str]


class Policy(TypedDict):
    search: SearchPolicy
    own_kernel_share: float


class PolicyBody(TypedDict):
    """How the search goes on, and what the judge demands of a kernel beside being right."""

    search: NotRequired[Literal["default", "uct", "islands", "archive", "greedy", "best_of_n", "random"]]
    own_kernel_share: NotRequired[float]


class OwnProblem(TypedDict):
    """What to search: a bundled problem by name, or an own reference source under a name of the client's choice."""

    name: str
    source: NotRequired[str | None]


class ProblemDocument(TypedDict):
    """The body of every answer that says no."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: NotRequired[list[FieldError]]


class ProblemList(TypedDict):
    data: list[ProblemOutline]


class ProblemOutline(TypedDict):
    """A problem as the server reads it, without running it."""

    name: str
    hash: str
    summary: str
    op_family: str
    workloads: list[WorkloadOutline]
    backward: bool


class ProblemRef(TypedDict):
    """The problem; `hash` is the SHA-256 of its source."""

    name: str
    hash: str


class ProblemSource(TypedDict):
    """A problem with its source."""

    name: str
    hash: str
    summary: str
    op_family: str
    workloads: list[WorkloadOutline]
    backward: bool
    source: str


class Progress(TypedDict):
    """Counts by candidate state and by verdict; each has every key, zero or not."""

    candidates: dict[str, int]
    verdicts: dict[str, int]


class Proposal(TypedDict):
    """How a candidate came to its source. What the built-in proposer made has no prompt and no answer.

    `request` is what the prompt was made from, without the problem's source and the parents'. `told_source`: an outside
    agent told the source outright.
    """

    job_id: str
    candidate_id: str
    ordinal: int
    operator: Operator
    proposer: Proposer
    model: str | None
    agent: str | None
    parents: list[str]
    state: CandidateState
    request: Json | None
    prompt_version: str | None
    messages: list[Message] | None
    answer: str | None
    finish_reason: str | None
    error: str | None
    told_source: bool
    source: str | None
    plan: str | None
    failure: Failure | None
    failure_detail: str | None


class ProposalPage(TypedDict):
    """Proposals by ordinal."""

    data: list[Proposal]
    next_cursor: str | None
    has_more: bool


class ProposedJob(TypedDict):
    """What the request would become. `by` is `matcher` (a bundled problem, fitted) or `model` (which wrote it).

    `job` is a complete body for POST /v1/jobs; POST .../confirm submits it as it is. `score` is the matcher's, from 0
    to 1. Read the source before you confirm: nothing has run it yet.
    """

    by: str
    job: Json
    problem: ProblemOutline
    source: str
    score: float | None
    covers: list[str]
    lacks: list[str]
    adds: list[str]
    notes: list[str]
    alternatives: list[Alternative]


class Question(TypedDict):
    """A candidate to be made: the prompt that a language model would get, and the token that proves who has it.

    `answer_format` `edits`: SEARCH/REPLACE blocks that change the first parent, or else a whole file; `file`: one whole
    file in a fenced block. The system message describes both.
    """

    job_id: str
    candidate_id: str
    token: str
    lease_expires_at: str
    operator: Operator
    parents: list[str]
    answer_format: Literal["edits", "file"]
    prompt_version: str
    messages: list[Message]
    links: dict[str, str]


class Questions(TypedDict):
    """The questions that are now yours, oldest first."""

    data: list[Question]


class Queue(TypedDict):
    """The place among the jobs that wait, in the order in which workers will come to them: 1 is next. Keys take
    turns, so a later job of another key may be before this one. Null once the job has started, and while it is
    started.
    """

    position: int | None


class QueueDepth(TypedDict):
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


class QueueList(TypedDict):
    """The queues by name."""

    data: list[QueueDepth]


class Ratio(TypedDict):
    """How many times faster the second is than the first, by their speedups over their baselines.

    The interval reaches from one's low end against the other's high end to the opposite: it is wider than 95 % needs.
    `clear` says that 1 is outside. Without the intervals of both it is null, and nothing is clear.
    """

    value: float
    low: float | None
    high: float | None
    clear: bool


class Ready(TypedDict):
    ready: bool
    migration: str


class Recalled(TypedDict):
    """What came up for a candidate's proposal. `retrieval` is null where nobody looked, as for the built-in one."""

    retrieval: bool | None
    data: list[RecalledItem]


class RecalledItem(TypedDict):
    """An item that came up for a candidate; `shown` false: the dice withheld it, to be measured against."""

    id: str
    kind: ItemKind
    rank: int
    score: float
    ranks: dict[str, int]
    title: str
    text: str
    shown: bool


class RenewBody(TypedDict):
    """More time for a question, from now on."""

    candidate_id: str
    token: str
    lease_s: NotRequired[float]


class Renewed(TypedDict):
    """The lease as it is now."""

    candidate_id: str
    lease_expires_at: str


class RequestBody(TypedDict):
    """A search in plain words. All fields of a job but its problem and target may be set; they become the job's."""

    budget: NotRequired[BudgetBody]
    stop: NotRequired[StopBody]
    policy: NotRequired[PolicyBody]
    admit: NotRequired[bool]
    certify: NotRequired[bool]
    models: NotRequired[list[str]]
    diagnosis_model: NotRequired[str | None]
    labels: NotRequired[dict[str, str]]
    priority: NotRequired[int]
    seed: NotRequired[int]
    request: str
    target: NotRequired[TargetWish]
    writer: NotRequired[str | None]


class RotateBody(TypedDict):
    """How the old token ends, and perhaps another end of the key."""

    grace_s: NotRequired[float]
    expires_at: NotRequired[str | None]


class RotateSecretBody(TypedDict):
    """How the old secret ends."""

    grace_s: NotRequired[float]


class SearchTree(TypedDict):
    """The tree as the search sees it now: each candidate's node, by ordinal, without its source."""

    nodes: list[Json]


class ServiceSummary(TypedDict):
    """The whole service at a glance."""

    jobs: JobCounts
    queues: list[QueueDepth]
    workers: WorkersNow
    today: SpentToday
    wait: Wait | None


class SpentToday(TypedDict):
    """Spent since midnight UTC, by searches, requests in plain words and vectors; unpriced calls are in no sum."""

    since: str
    usd: str
    gpu_s: float


class Stop(TypedDict):
    target_speedup: float | None
    stagnation: int | None


class StopBody(TypedDict):
    """When to stop before the budget is used up."""

    target_speedup: NotRequired[float | None]
    stagnation: NotRequired[int | None]


class Target(TypedDict):
    hardware: str
    language: str


class TargetBody(TypedDict):
    """Where the kernel shall run and what it is written in."""

    hardware: str
    language: Literal["cpp", "triton", "cuda"]


class TargetWish(TypedDict):
    """What of the target is said beside the words; it wins over them."""

    hardware: NotRequired[str | None]
    language: NotRequired[str | None]


class TellBody(TypedDict):
    """The answer to a question: as text, read like a language model's answer, as the source outright, or that there
    is nothing more to propose.
    """

    candidate_id: str
    token: str
    answer: NotRequired[str | None]
    source: NotRequired[str | None]
    exhausted: NotRequired[bool]
    plan: NotRequired[str | None]
    agent: NotRequired[str | None]


class Timing(TypedDict):
    """One candidate on one workload; the speedup is against that workload's fastest baseline, which is named."""

    latency_us: float | None
    speedup: float | None
    ci95: list[float] | None
    baseline: str | None
    sol_fraction: float | None


class Told(TypedDict):
    """What became of an answer. Not accepted: `failure` says why in a word, `failure_detail` in a sentence.

    An accepted one is judged next; the candidate's `verdict` tells what was found.
    """

    job_id: str
    candidate_id: str
    accepted: bool
    failure: Failure | None
    failure_detail: str | None
    duplicate_of: str | None
    links: dict[str, str]


class TuningRecord(TypedDict):
    """What a `tune` measured before its best configuration became this candidate: how many configurations, and each
    one's parameters, verdict and ratios (how much faster than the parent, by workload).
    """

    configurations: int
    gpu_s: float
    wall_s: float
    trials: list[Json]


class Uplift(TypedDict):
    """Proposals with retrieval against those that the dice kept without, then item by item, most often up first."""

    overall: Lift
    items: list[ItemLift]


class Wait(TypedDict):
    """How long work had been ready when a worker took it, over the newest claims: 1,000 at most, of the last hour."""

    claims: int
    p50_s: float
    p95_s: float


class Webhook(TypedDict):
    """A webhook without its secret.

    `disabled_why` is `owner`, `gone` (it answered 410) or `failing` (for days). `failures` are the attempts that failed
    since one succeeded, the first of them at `failing_since`. `previous_until` is when the old secret ends.
    """

    id: str
    url: str
    types: list[WebhookType]
    jobs: Literal["own", "all"]
    labels: dict[str, str]
    description: str | None
    enabled: bool
    disabled_why: DisabledWhy | None
    failures: int
    failing_since: str | None
    previous_until: str | None
    key_id: str | None
    created_at: str
    links: dict[str, str]


class WebhookBody(TypedDict):
    """A webhook to be made. `labels`: only of jobs that have all of them."""

    url: str
    types: NotRequired[list[WebhookType]]
    jobs: NotRequired[Literal["own", "all"]]
    labels: NotRequired[dict[str, str]]
    description: NotRequired[str | None]
    enabled: NotRequired[bool]


class WebhookChange(TypedDict):
    """What is to change. What is left out or null stays; an empty description removes it."""

    url: NotRequired[str | None]
    types: NotRequired[list[WebhookType] | None]
    jobs: NotRequired[Literal["own", "all"] | None]
    labels: NotRequired[dict[str, str] | None]
    description: NotRequired[str | None]
    enabled: NotRequired[bool | None]


class WebhookDeleted(TypedDict):
    """The webhook as it was."""

    deleted: bool
    webhook: Webhook


class WebhookPage(TypedDict):
    data: list[Webhook]
    next_cursor: str | None
    has_more: bool


class WebhookWithSecret(TypedDict):
    """The secret is shown here and never again."""

    webhook: Webhook
    secret: str


class Worker(TypedDict):
    """A worker process: the queues that it serves, the device behind it, what it does now and when it last said so."""

    id: str
    hostname: str
    pid: int
    queues: list[str]
    hardware: str | None
    device: Json
    state: WorkerState
    state_reason: str | None
    current_work: str | None
    device_state: Json | None
    started_at: str
    heartbeat_at: str


class WorkerBody(TypedDict):
    """What a worker shall be: `draining` finishes what it does and claims nothing more, `active` takes work."""

    state: Literal["draining", "active"]


class WorkerLine(TypedDict):
    """A worker that is alive, and what it does now."""

    id: str
    hostname: str
    hardware: str | None
    state: WorkerState
    current: Current | None
    heartbeat_at: str


class WorkerList(TypedDict):
    data: list[Worker]


class WorkersNow(TypedDict):
    """How many workers are alive, by state, and each of them."""

    states: dict[str, int]
    data: list[WorkerLine]


class WorkloadOutline(TypedDict):
    """One configuration that is judged; `device` says for which kind of hardware it is sized: cpu, gpu or any."""

    name: str
    device: str
    params: Json


class WorkloadPair(TypedDict):
    """Both on one workload; null where it was not timed for one of them."""

    name: str
    first: Timing | None
    second: Timing | None
    ratio: Ratio | None


class WritingCost(TypedDict):
    """What the writing took. `usd` is null where no call was made or nobody knows its price."""

    calls: int
    tokens_in: int | None
    tokens_out: int | None
    usd: str | None


ProblemChoice: TypeAlias = str | OwnProblem
