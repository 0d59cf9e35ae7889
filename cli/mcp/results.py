"""What the tools answer: small, typed, with the next step in words. Fields named `…_text` hold untrusted text."""

from __future__ import annotations

from pydantic import BaseModel, Field

from cli.client.types import CandidateState, JobState, StopReason, Verdict


class BestSoFar(BaseModel):
    """The fastest verified candidate; the speedup is against the fastest baseline, which is named."""

    candidate_id: str
    speedup: float | None
    ci95: list[float] | None
    latency_us: float | None
    baseline: str | None
    certified: bool


class JobStatus(BaseModel):
    """Where a search is."""

    job_id: str
    state: JobState
    stop_reason: StopReason | None
    error: str | None
    problem: str
    hardware: str
    language: str
    judged: int = Field(description="candidates that are through: evaluated or rejected")
    budget_candidates: int
    verdicts: dict[str, int] = Field(description="how many candidates got each verdict")
    best: BestSoFar | None
    cost_usd: str
    gpu_s: float
    next: str = Field(description="what to do now")


class Estimated(BaseModel):
    """A submission that was checked and not stored."""

    problem: str
    workloads: int
    cost: str = Field(description="what the search may cost, in words")
    warnings: list[str]


class Submitted(BaseModel):
    """The new job; or with `dry_run` what it may cost."""

    job: JobStatus | None
    estimate: Estimated | None


class JobList(BaseModel):
    """Jobs, the newest first."""

    jobs: list[JobStatus]


class BestKernel(BaseModel):
    """A job's best verified kernel."""

    job_id: str
    candidate_id: str
    verdict: Verdict | None
    speedup: float | None
    ci95: list[float] | None
    latency_us: float | None
    baseline: str | None
    plan_text: str | None
    source_text: str = Field(description="the kernel's file between fences; the resource has it as it stands")
    resource: str = Field(description="the address of the whole file")


class CandidateLine(BaseModel):
    """One candidate of a search."""

    candidate_id: str
    ordinal: int
    operator: str
    by: str
    state: CandidateState
    verdict: Verdict | None
    speedup: float | None
    latency_us: float | None
    why_text: str | None = Field(description="why it was rejected or did not pass, in one line")


class CandidateList(BaseModel):
    """A page of candidates."""

    candidates: list[CandidateLine]
    next_cursor: str | None = Field(description="give it as `cursor` to see more; null at the end")


class CancelledJob(BaseModel):
    """What a cancel changed."""

    changed: bool = Field(description="false when the job had ended, or was asked to stop before")
    state: JobState


class OpenQuestion(BaseModel):
    """A candidate to be made by whoever asked."""

    candidate_id: str
    token: str = Field(description="proves that the question is yours; give it to `tell`")
    lease_expires_at: str
    operator: str
    answer_format: str = Field(
        description="`file`: one fenced block with the whole file; `edits`: SEARCH/REPLACE blocks"
    )
    prompt: str = Field(description="what to make; parts of it are fenced and untrusted")


class OpenQuestions(BaseModel):
    """The questions that are now yours."""

    questions: list[OpenQuestion]
    next: str = Field(description="what to do now")


class Answered(BaseModel):
    """What became of an answer, and of the candidate if it was waited for."""

    candidate_id: str
    accepted: bool
    failure: str | None
    failure_text: str | None
    duplicate_of: str | None
    verdict: Verdict | None = Field(description="null while it is not judged")
    reason_text: str | None
    speedup: float | None
    next: str = Field(description="what to do now")


class ProblemLine(BaseModel):
    """One bundled problem."""

    name: str
    op_family: str
    summary: str
    workloads: list[str]
    backward: bool


class ProblemLines(BaseModel):
    """The bundled problems; the source of one is the resource kernelwright://problems/{name}."""

    problems: list[ProblemLine]


class Placed(BaseModel):
    """One place of a leaderboard."""

    rank: int
    hardware: str
    language: str
    source_hash: str
    candidate_id: str
    speedup: float
    ci95: list[float] | None
    latency_us: float | None
    certified: bool
    by: str


class Leaders(BaseModel):
    """The champions of a problem; ranks compare within one hash, hardware and language."""

    problem: str
    places: list[Placed]
    left_out: list[str] = Field(description="faster candidates that are not on it, and why")


class Known(BaseModel):
    """One certified kernel, lesson or fact."""

    id: str
    kind: str
    score: float
    title_text: str
    item_text: str


class Knowledge(BaseModel):
    """What a proposal for this task would be shown, the most fitting first."""

    items: list[Known]


class JudgedWorkload(BaseModel):
    """One workload as it was timed."""

    name: str
    latency_us: float | None
    speedup: float | None
    baseline: str | None


class Judged(BaseModel):
    """What the judge found."""

    where: str = Field(description="`here`: on this machine; `service`: by a worker of the service")
    verdict: Verdict
    reason_text: str | None
    speedup: float | None
    ci95: list[float] | None
    latency_us: float | None
    baseline: str | None
    workloads: list[JudgedWorkload]
    log_text: str | None = Field(description="what the compiler and the candidate printed")
    next: str = Field(description="what to do now")


class Admitted(BaseModel):
    """Whether a problem can be judged, and what would pass that must not."""

    where: str
    verdict: str
    reason: str | None
    warnings: list[str]
    notes: list[str]
