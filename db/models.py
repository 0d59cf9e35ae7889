"""The tables. No relationships: hot paths are hand-written SQL, the rest are plain selects, and nothing loads lazily.

Text with a CHECK rather than a Postgres ENUM (easy to extend), NUMERIC for money, timestamptz everywhere.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Numeric,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB, TIMESTAMP, TSVECTOR
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from db.vocabulary import (
    AdmissionVerdict,
    CandidateState,
    JobState,
    Language,
    LlmCallState,
    Operator,
    Proposer,
    SearchPolicy,
    StopReason,
    Verdict,
    WorkerState,
    WorkKind,
    WorkState,
)

Json = dict[str, Any]
USD = Numeric(14, 6)
"""Money in US dollars; a single small LLM call costs well under a cent, so six places."""


class Base(DeclarativeBase):
    """Names every constraint, so that `alembic check` sees the same thing in the models and in the database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        str: Text(),
        float: Double(),
        datetime: TIMESTAMP(timezone=True),
        Json: JSONB(),
        list[str]: ARRAY(Text()),
        Decimal: USD,
    }


def one_of(column: str, words: type[StrEnum]) -> CheckConstraint:
    """A CHECK that a column holds one of the words; NULL passes, as ever in SQL."""
    listed = ", ".join(f"'{word.value}'" for word in words)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


NOW = text("now()")
EMPTY_OBJECT = text("'{}'::jsonb")
EMPTY_ARRAY = text("'{}'::text[]")


class Problem(Base):
    """A reference source and its spec, stored once whoever submits it."""

    __tablename__ = "problems"

    hash: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    source: Mapped[str]
    spec: Mapped[Json | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Admission(Base):
    """What one version of the judge found about a problem on one kind of hardware: examined once, for all jobs."""

    __tablename__ = "admissions"

    id: Mapped[str] = mapped_column(primary_key=True)
    problem_hash: Mapped[str] = mapped_column(ForeignKey("problems.hash"))
    hardware: Mapped[str]
    judge_hash: Mapped[str]
    verdict: Mapped[str]
    reason: Mapped[str | None]
    """Why it was refused: one sentence."""
    report: Mapped[Json]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        one_of("verdict", AdmissionVerdict),
        UniqueConstraint("problem_hash", "hardware", "judge_hash"),
    )


class Job(Base):
    """A request to search a problem for a target under a budget. `version`, its ETag, grows with each change."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True)
    problem_hash: Mapped[str] = mapped_column(ForeignKey("problems.hash"), index=True)
    problem_name: Mapped[str]
    hardware: Mapped[str]
    language: Mapped[str]
    budget_candidates: Mapped[int] = mapped_column(Integer)
    budget_usd: Mapped[Decimal | None]
    budget_wall_s: Mapped[float | None]
    budget_gpu_s: Mapped[float | None]
    budget_calls: Mapped[int | None] = mapped_column(Integer)
    budget_tokens: Mapped[int | None] = mapped_column(BigInteger)
    target_speedup: Mapped[float | None]
    stagnation: Mapped[int | None] = mapped_column(Integer)
    models: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    diagnosis_model: Mapped[str | None]
    """Says, before a repair or a refinement is asked for, what is wrong with the parent."""
    labels: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)
    priority: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    seed: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    judge_seed: Mapped[int | None] = mapped_column(BigInteger)
    """What the judge draws its inputs from, told to nobody while the job runs (`db.judging`)."""
    own_kernel_share: Mapped[float] = mapped_column(server_default=text("0.9"))
    """Policy: the least share of the device's time that a candidate's own kernels must take."""
    search_policy: Mapped[str] = mapped_column(server_default=text("'default'"))
    admit: Mapped[bool] = mapped_column(server_default=text("true"))
    """Whether the problem is examined when it was not yet."""
    certify: Mapped[bool] = mapped_column(server_default=text("true"))
    """Whether the champion is certified before the job ends."""
    admission_id: Mapped[str | None] = mapped_column(ForeignKey("admissions.id"), index=True)
    state: Mapped[str] = mapped_column(server_default=text("'queued'"))
    stop_reason: Mapped[str | None]
    """Why the search ended; set before the job's end while the champion is certified."""
    error: Mapped[str | None]
    version: Mapped[int] = mapped_column(BigInteger, server_default=text("1"))
    cancel_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    best_candidate_id: Mapped[str | None]
    best_speedup: Mapped[float | None]
    cost_usd: Mapped[Decimal] = mapped_column(server_default=text("0"))
    gpu_s: Mapped[float] = mapped_column(server_default=text("0"))
    llm_calls: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """Calls that were started, counted before they cost anything: the cap on calls is over these."""
    llm_tokens: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Of finished calls; where a provider did not count them, an estimate."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))
    """The API key that it was submitted with, whose caps it shares with the key's other jobs."""
    traceparent: Mapped[str | None]
    """Of the request that submitted it (W3C Trace Context), for its work to continue; None: not traced."""

    __table_args__ = (
        one_of("state", JobState),
        one_of("stop_reason", StopReason),
        one_of("language", Language),
        one_of("search_policy", SearchPolicy),
        Index("ix_jobs_created_at_id", "created_at", "id"),
        Index("ix_jobs_live", "state", postgresql_where=text("finished_at IS NULL")),
        Index("ix_jobs_key_id_created_at", "key_id", "created_at"),
        Index("ix_jobs_in_flight", "key_id", postgresql_where=text("finished_at IS NULL")),
        Index("ix_jobs_labels", "labels", postgresql_using="gin"),
        Index("ix_jobs_problem_name", "problem_name", "created_at", "id"),
        Index("ix_jobs_hardware", "hardware", "created_at", "id"),
        Index(
            "ix_jobs_finished_at",
            "finished_at",
            postgresql_include=["state"],
            postgresql_where=text("finished_at IS NOT NULL"),
        ),
    )


class Candidate(Base):
    """A source, its parents, the operator and the model that made it. `state` is where it is, not what was found."""

    __tablename__ = "candidates"

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    ordinal: Mapped[int] = mapped_column(Integer)
    operator: Mapped[str]
    proposer: Mapped[str]
    model: Mapped[str | None]
    parents: Mapped[list[str]] = mapped_column(server_default=EMPTY_ARRAY)
    plan: Mapped[str | None]
    params: Mapped[Json | None]
    tunable: Mapped[bool] = mapped_column(server_default=text("false"))
    source: Mapped[str | None]
    source_hash: Mapped[str | None]
    artefact_hash: Mapped[str | None]
    """Of what it was built into and of the Python around that; None where nothing was built before it ran."""
    state: Mapped[str] = mapped_column(server_default=text("'proposing'"))
    failure: Mapped[str | None]
    failure_detail: Mapped[str | None]
    duplicate_of: Mapped[str | None] = mapped_column(ForeignKey("candidates.id"), index=True)
    cost_usd: Mapped[Decimal] = mapped_column(server_default=text("0"))
    retrieval: Mapped[bool | None]
    """Whether its proposer was shown what is known (`knowledge_uses` says what); None where nobody looked."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        one_of("operator", Operator),
        one_of("proposer", Proposer),
        one_of("state", CandidateState),
        UniqueConstraint("job_id", "ordinal"),
        # A source is evaluated once per job; the rejected duplicate keeps its hash for the record.
        Index(
            "uq_candidates_job_id_source_hash",
            "job_id",
            "source_hash",
            unique=True,
            postgresql_where=text("state <> 'rejected'"),
        ),
    )


class Evaluation(Base):
    """What the judge found about a candidate: exactly one row each, whatever is killed when."""

    __tablename__ = "evaluations"

    id: Mapped[str] = mapped_column(primary_key=True)
    candidate_id: Mapped[str] = mapped_column(ForeignKey("candidates.id"), unique=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    verdict: Mapped[str]
    reason: Mapped[str | None]
    timed: Mapped[bool] = mapped_column(server_default=text("false"))
    latency_us: Mapped[float | None]
    speedup: Mapped[float | None]
    ci95_low: Mapped[float | None]
    ci95_high: Mapped[float | None]
    baseline: Mapped[str | None]
    report: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)
    gpu_s: Mapped[float] = mapped_column(server_default=text("0"))
    wall_s: Mapped[float] = mapped_column(server_default=text("0"))
    environment: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)
    worker_id: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        one_of("verdict", Verdict),
        Index("ix_evaluations_created_at", "created_at", postgresql_include=["gpu_s"]),
        Index(
            "ix_evaluations_disbelieved",
            "job_id",
            postgresql_where=text("verdict <> 'ok' AND speedup IS NOT NULL"),
        ),
    )


class Work(Base):
    """The queue of record: one row for each unit of work; Redis only carries its id as a doorbell."""

    __tablename__ = "work"

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    queue: Mapped[str]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    candidate_id: Mapped[str | None] = mapped_column(ForeignKey("candidates.id"))
    state: Mapped[str] = mapped_column(server_default=text("'queued'"))
    attempt: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    max_attempts: Mapped[int] = mapped_column(Integer, server_default=text("3"))
    returned: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """How often it came back for a fault that was not its own (an attempt that did not count)."""
    lease_owner: Mapped[str | None]
    lease_token: Mapped[UUID | None]
    lease_expires_at: Mapped[datetime | None]
    not_before: Mapped[datetime] = mapped_column(server_default=NOW)
    priority: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    share_of: Mapped[str] = mapped_column(server_default=text("''"))
    """The API key of its job, empty without one: keys take turns at the workers."""
    rung_at: Mapped[datetime | None]
    claimed_at: Mapped[datetime | None]
    """When it was claimed last; keys take turns by it. It had waited since `not_before`, unless that is later: then it
    was given back."""
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        one_of("kind", WorkKind),
        one_of("state", WorkState),
        CheckConstraint("(state = 'running') = (lease_token IS NOT NULL)", name="lease"),
        CheckConstraint("(kind IN ('advance', 'admit', 'learn')) = (candidate_id IS NULL)", name="candidate"),
        # Ringing an advance twice is one advance: whoever changes a candidate may enqueue without looking.
        Index(
            "uq_work_queued_advance",
            "job_id",
            unique=True,
            postgresql_where=text("kind = 'advance' AND state = 'queued'"),
        ),
        # A problem is examined once for a job.
        Index("uq_work_admit", "job_id", unique=True, postgresql_where=text("kind = 'admit'")),
        # And its candidates teach once.
        Index("uq_work_learn", "job_id", unique=True, postgresql_where=text("kind = 'learn'")),
        # A candidate is proposed by one unit of work, evaluated by one and certified by one.
        UniqueConstraint("candidate_id", "kind"),
        Index(
            "ix_work_ready",
            "queue",
            text("priority DESC"),
            text("share_of DESC"),
            "id",
            postgresql_where=text("state = 'queued'"),
        ),
        Index("ix_work_running", "queue", "share_of", postgresql_where=text("state = 'running'")),
        Index("ix_work_served", "queue", "share_of", "claimed_at", postgresql_where=text("claimed_at IS NOT NULL")),
        Index("ix_work_leases", "lease_expires_at", postgresql_where=text("state = 'running'")),
        Index("ix_work_claimed_at", "claimed_at", postgresql_where=text("claimed_at IS NOT NULL")),
    )


class Event(Base):
    """The append-only log of a job. Within one job, the order of `seq` is the order of the commits."""

    __tablename__ = "events"

    seq: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    type: Mapped[str]
    at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))
    data: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)

    __table_args__ = (Index("ix_events_job_id_seq", "job_id", "seq"),)


class LlmCall(Base):
    """One paid call: `started` is written before it, `finished` after, so that a re-run reuses what was paid for."""

    __tablename__ = "llm_calls"

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    candidate_id: Mapped[str] = mapped_column(ForeignKey("candidates.id"), index=True)
    key: Mapped[str]
    """What the call is for, whatever the attempt: `propose` or `diagnose`."""
    state: Mapped[str] = mapped_column(server_default=text("'started'"))
    model: Mapped[str]
    request: Mapped[Json | None] = mapped_column(JSON(none_as_null=True))
    """What the prompt was made from (`search.recording`), so that it can be made again."""
    prompt: Mapped[str | None]
    answer: Mapped[str | None]
    tokens_in: Mapped[int | None] = mapped_column(Integer)
    tokens_out: Mapped[int | None] = mapped_column(Integer)
    cost_usd: Mapped[Decimal | None]
    cost_source: Mapped[str | None]
    latency_s: Mapped[float | None]
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    """Requests to the provider, retries included."""
    prompt_version: Mapped[str | None]
    finish_reason: Mapped[str | None]
    error: Mapped[str | None]
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        one_of("state", LlmCallState),
        Index("ix_llm_calls_model_id", "model", "id"),
        Index(
            "ix_llm_calls_finished_at",
            "finished_at",
            postgresql_include=["cost_usd"],
            postgresql_where=text("finished_at IS NOT NULL"),
        ),
        Index("uq_llm_calls_finished", "candidate_id", "key", unique=True, postgresql_where=text("state = 'finished'")),
    )


class Worker(Base):
    """A worker process, what it serves and what it measured about its device."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(primary_key=True)
    hostname: Mapped[str]
    pid: Mapped[int] = mapped_column(Integer)
    queues: Mapped[list[str]]
    hardware: Mapped[str | None]
    device: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)
    state: Mapped[str] = mapped_column(server_default=text("'active'"))
    current_work: Mapped[str | None]
    state_reason: Mapped[str | None]
    """Why it was quarantined."""
    device_state: Mapped[Json | None]
    """How its GPU was at the last beat: clocks, power, temperature, and what held the clocks down."""
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    heartbeat_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (one_of("state", WorkerState), Index("ix_workers_heartbeat_at", "heartbeat_at"))


class Kernel(Base):
    """A champion: the verified best of a finished job, with enough to serve it without the job.

    What follows `environment` is filled in when the job is learned from; what is not `current` is retrieved by nobody.
    """

    __tablename__ = "kernels"

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), unique=True)
    candidate_id: Mapped[str] = mapped_column(ForeignKey("candidates.id"), unique=True)
    problem_hash: Mapped[str] = mapped_column(ForeignKey("problems.hash"))
    problem_name: Mapped[str]
    hardware: Mapped[str]
    language: Mapped[str]
    source: Mapped[str]
    source_hash: Mapped[str]
    latency_us: Mapped[float | None]
    speedup: Mapped[float | None]
    ci95_low: Mapped[float | None]
    ci95_high: Mapped[float | None]
    environment: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)
    op_family: Mapped[str] = mapped_column(server_default=text("''"))
    hardware_kin: Mapped[str] = mapped_column(server_default=text("''"))
    """The family of hardware within which kernels are shared: `hopper`, `x86`."""
    bound: Mapped[str] = mapped_column(server_default=text("''"))
    params: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)
    """The values of its tunables."""
    title: Mapped[str] = mapped_column(server_default=text("''"))
    story: Mapped[str] = mapped_column(server_default=text("''"))
    """What a prompt shows of it."""
    terms: Mapped[str] = mapped_column(server_default=text("''"))
    """The normalised words of its problem and its plan, each once."""
    terms_vector: Mapped[str] = mapped_column(TSVECTOR(), server_default=text("''"))
    embedder: Mapped[str | None]
    embedding: Mapped[bytes | None]
    current: Mapped[bool] = mapped_column(server_default=text("false"))
    """The fastest certified kernel of its problem and target."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        one_of("language", Language),
        Index("ix_kernels_problem_target", "problem_hash", "hardware", "language", text("speedup DESC")),
        Index(
            "ix_kernels_family",
            "language",
            "hardware_kin",
            "op_family",
            text("speedup DESC NULLS LAST"),
            postgresql_where=text("current"),
        ),
        Index("ix_kernels_problem_name", "problem_name", "hardware", "language"),
        Index("ix_kernels_current", "id", postgresql_where=text("current")),
        Index("ix_kernels_terms_vector", "terms_vector", postgresql_using="gin", postgresql_where=text("current")),
        Index(
            "ix_kernels_title",
            "title",
            postgresql_using="gin",
            postgresql_ops={"title": "gin_trgm_ops"},
            postgresql_where=text("current"),
        ),
    )


class Certificate(Base):
    """A finalist's certificate, or the document that says why it got none. At most one for each candidate."""

    __tablename__ = "certificates"

    id: Mapped[str] = mapped_column(primary_key=True)
    candidate_id: Mapped[str] = mapped_column(ForeignKey("candidates.id"), unique=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    certified: Mapped[bool]
    verdict: Mapped[str]
    reason: Mapped[str | None]
    sha256: Mapped[str]
    document: Mapped[Json] = mapped_column(JSON())
    """JSON and not JSONB: the hash is over the text of the numbers, and JSONB rewrites 1e+22, 1e-7 and -0.0."""
    page: Mapped[str]
    """The document as HTML, made where the judge's code is: the API has none of it."""
    speedup: Mapped[float | None]
    """The document's, with its interval: the smaller of two measurements. None where it certifies none."""
    ci95_low: Mapped[float | None]
    ci95_high: Mapped[float | None]
    gpu_s: Mapped[float] = mapped_column(server_default=text("0"))
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        one_of("verdict", Verdict),
        Index("ix_certificates_created_at", "created_at", postgresql_include=["gpu_s"]),
        Index("ix_certificates_refused", "job_id", postgresql_where=text("NOT certified")),
    )


class IdempotencyKeyRow(Base):
    """A submission that was accepted under a key: the same key and body give the same job again."""

    __tablename__ = "idempotency_keys"

    key: Mapped[str] = mapped_column(primary_key=True)
    request_hash: Mapped[str]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


# Tables with a subject of their own belong to the same metadata, whichever module is imported first.
from db import account_models as _account_models  # noqa: E402, F401
