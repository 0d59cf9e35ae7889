"""The first schema: problems, jobs, candidates, evaluations, the work ledger and the event log.

Revision ID: 0001
Revises: nothing
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "problems",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_problems")),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("hostname", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("queues", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=True),
        sa.Column(
            "device", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.Column("state", sa.Text(), server_default=sa.text("'active'"), nullable=False),
        sa.Column("current_work", sa.Text(), nullable=True),
        sa.Column("started_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("heartbeat_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("state IN ('active', 'draining', 'gone')", name=op.f("ck_workers_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index("ix_workers_heartbeat_at", "workers", ["heartbeat_at"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("problem_hash", sa.Text(), nullable=False),
        sa.Column("problem_name", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("budget_candidates", sa.Integer(), nullable=False),
        sa.Column("budget_usd", sa.Numeric(precision=14, scale=6), nullable=True),
        sa.Column("budget_wall_s", sa.Double(), nullable=True),
        sa.Column("budget_gpu_s", sa.Double(), nullable=True),
        sa.Column("target_speedup", sa.Double(), nullable=True),
        sa.Column("stagnation", sa.Integer(), nullable=True),
        sa.Column("models", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column(
            "labels", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.Column("priority", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("seed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'queued'"), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("best_candidate_id", sa.Text(), nullable=True),
        sa.Column("best_speedup", sa.Double(), nullable=True),
        sa.Column("cost_usd", sa.Numeric(precision=14, scale=6), server_default=sa.text("0"), nullable=False),
        sa.Column("gpu_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("finished_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.CheckConstraint("language IN ('cpp', 'triton', 'cuda')", name=op.f("ck_jobs_language")),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'cancelling', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_jobs_state"),
        ),
        sa.CheckConstraint(
            "stop_reason IN ('target_reached', 'budget_candidates', 'budget_usd', 'budget_wall', "
            "'budget_gpu', 'stagnated', 'exhausted', 'cancelled', 'error')",
            name=op.f("ck_jobs_stop_reason"),
        ),
        sa.ForeignKeyConstraint(["parent_id"], ["jobs.id"], name=op.f("fk_jobs_parent_id_jobs")),
        sa.ForeignKeyConstraint(["problem_hash"], ["problems.hash"], name=op.f("fk_jobs_problem_hash_problems")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_created_at_id", "jobs", ["created_at", "id"], unique=False)
    op.create_index("ix_jobs_labels", "jobs", ["labels"], unique=False, postgresql_using="gin")
    op.create_index("ix_jobs_live", "jobs", ["state"], unique=False, postgresql_where=sa.text("finished_at IS NULL"))
    op.create_index(op.f("ix_jobs_parent_id"), "jobs", ["parent_id"], unique=False)
    op.create_index(op.f("ix_jobs_problem_hash"), "jobs", ["problem_hash"], unique=False)
    op.create_table(
        "candidates",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("operator", sa.Text(), nullable=False),
        sa.Column("proposer", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("parents", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("params", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("tunable", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("source_hash", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), server_default=sa.text("'proposing'"), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("failure_detail", sa.Text(), nullable=True),
        sa.Column("duplicate_of", sa.Text(), nullable=True),
        sa.Column("cost_usd", sa.Numeric(precision=14, scale=6), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "operator IN ('seed', 'translate', 'repair', 'refine', 'rewrite', 'crossover', 'tune', 'port')",
            name=op.f("ck_candidates_operator"),
        ),
        sa.CheckConstraint("proposer IN ('builtin', 'llm', 'ask/tell')", name=op.f("ck_candidates_proposer")),
        sa.CheckConstraint(
            "state IN ('proposing', 'queued', 'evaluating', 'evaluated', 'rejected', 'cancelled')",
            name=op.f("ck_candidates_state"),
        ),
        sa.ForeignKeyConstraint(
            ["duplicate_of"], ["candidates.id"], name=op.f("fk_candidates_duplicate_of_candidates")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_candidates_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_candidates")),
        sa.UniqueConstraint("job_id", "ordinal", name=op.f("uq_candidates_job_id_ordinal")),
    )
    op.create_index(op.f("ix_candidates_duplicate_of"), "candidates", ["duplicate_of"], unique=False)
    op.create_index(
        "uq_candidates_job_id_source_hash",
        "candidates",
        ["job_id", "source_hash"],
        unique=True,
        postgresql_where=sa.text("state <> 'rejected'"),
    )
    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column(
            "at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column(
            "data", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id_jobs")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
    )
    op.create_index("ix_events_job_id_seq", "events", ["job_id", "seq"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_hash", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_idempotency_keys_job_id_jobs")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_job_id"), "idempotency_keys", ["job_id"], unique=False)
    op.create_table(
        "evaluations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("candidate_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("timed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("latency_us", sa.Double(), nullable=True),
        sa.Column("speedup", sa.Double(), nullable=True),
        sa.Column("ci95_low", sa.Double(), nullable=True),
        sa.Column("ci95_high", sa.Double(), nullable=True),
        sa.Column("baseline", sa.Text(), nullable=True),
        sa.Column(
            "report", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.Column("gpu_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("wall_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "environment",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "verdict IN ('ok', 'build_error', 'launch_error', 'illegal_access', 'timeout', "
            "'incorrect', 'nondeterministic', 'suspicious', 'infra_error')",
            name=op.f("ck_evaluations_verdict"),
        ),
        sa.ForeignKeyConstraint(
            ["candidate_id"], ["candidates.id"], name=op.f("fk_evaluations_candidate_id_candidates")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_evaluations_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
        sa.UniqueConstraint("candidate_id", name=op.f("uq_evaluations_candidate_id")),
    )
    op.create_index(op.f("ix_evaluations_job_id"), "evaluations", ["job_id"], unique=False)
    op.create_table(
        "kernels",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("candidate_id", sa.Text(), nullable=False),
        sa.Column("problem_hash", sa.Text(), nullable=False),
        sa.Column("problem_name", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("source_hash", sa.Text(), nullable=False),
        sa.Column("latency_us", sa.Double(), nullable=True),
        sa.Column("speedup", sa.Double(), nullable=True),
        sa.Column("ci95_low", sa.Double(), nullable=True),
        sa.Column("ci95_high", sa.Double(), nullable=True),
        sa.Column(
            "environment",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("language IN ('cpp', 'triton', 'cuda')", name=op.f("ck_kernels_language")),
        sa.ForeignKeyConstraint(["candidate_id"], ["candidates.id"], name=op.f("fk_kernels_candidate_id_candidates")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_kernels_job_id_jobs")),
        sa.ForeignKeyConstraint(["problem_hash"], ["problems.hash"], name=op.f("fk_kernels_problem_hash_problems")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kernels")),
        sa.UniqueConstraint("candidate_id", name=op.f("uq_kernels_candidate_id")),
        sa.UniqueConstraint("job_id", name=op.f("uq_kernels_job_id")),
    )
    op.create_index(
        "ix_kernels_problem_target",
        "kernels",
        ["problem_hash", "hardware", "language", sa.literal_column("speedup DESC")],
        unique=False,
    )
    op.create_table(
        "llm_calls",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("candidate_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'started'"), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("tokens_in", sa.Integer(), nullable=True),
        sa.Column("tokens_out", sa.Integer(), nullable=True),
        sa.Column("cost_usd", sa.Numeric(precision=14, scale=6), nullable=True),
        sa.Column("cost_source", sa.Text(), nullable=True),
        sa.Column("latency_s", sa.Double(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("prompt_version", sa.Text(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("started_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('started', 'finished', 'superseded')", name=op.f("ck_llm_calls_state")),
        sa.ForeignKeyConstraint(["candidate_id"], ["candidates.id"], name=op.f("fk_llm_calls_candidate_id_candidates")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_llm_calls_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_llm_calls")),
    )
    op.create_index(op.f("ix_llm_calls_candidate_id"), "llm_calls", ["candidate_id"], unique=False)
    op.create_index(op.f("ix_llm_calls_job_id"), "llm_calls", ["job_id"], unique=False)
    op.create_index(
        "uq_llm_calls_finished",
        "llm_calls",
        ["candidate_id", "key"],
        unique=True,
        postgresql_where=sa.text("state = 'finished'"),
    )
    op.create_table(
        "work",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("candidate_id", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), server_default=sa.text("'queued'"), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_attempts", sa.Integer(), server_default=sa.text("3"), nullable=False),
        sa.Column("returned", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_token", sa.Uuid(), nullable=True),
        sa.Column("lease_expires_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("not_before", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("priority", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("rung_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("(kind = 'advance') = (candidate_id IS NULL)", name=op.f("ck_work_candidate")),
        sa.CheckConstraint("(state = 'running') = (lease_token IS NOT NULL)", name=op.f("ck_work_lease")),
        sa.CheckConstraint("kind IN ('advance', 'propose', 'evaluate')", name=op.f("ck_work_kind")),
        sa.CheckConstraint("state IN ('queued', 'running', 'done', 'dead', 'cancelled')", name=op.f("ck_work_state")),
        sa.ForeignKeyConstraint(["candidate_id"], ["candidates.id"], name=op.f("fk_work_candidate_id_candidates")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_work_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_work")),
        sa.UniqueConstraint("candidate_id", "kind", name=op.f("uq_work_candidate_id_kind")),
    )
    op.create_index(op.f("ix_work_job_id"), "work", ["job_id"], unique=False)
    op.create_index(
        "ix_work_leases", "work", ["lease_expires_at"], unique=False, postgresql_where=sa.text("state = 'running'")
    )
    op.create_index(
        "ix_work_ready",
        "work",
        ["queue", sa.literal_column("priority DESC"), "id"],
        unique=False,
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index(
        "uq_work_queued_advance",
        "work",
        ["job_id"],
        unique=True,
        postgresql_where=sa.text("kind = 'advance' AND state = 'queued'"),
    )


def downgrade() -> None:
    for table in (
        "work",
        "llm_calls",
        "kernels",
        "evaluations",
        "idempotency_keys",
        "events",
        "candidates",
        "jobs",
        "workers",
        "problems",
    ):
        op.drop_table(table)
