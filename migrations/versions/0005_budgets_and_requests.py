"""Caps on calls and tokens, API keys with caps of their own, a judge model, and requests in plain words.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

OLD_REASONS = (
    "'target_reached', 'budget_candidates', 'budget_usd', 'budget_wall', 'budget_gpu', 'stagnated', 'exhausted', "
    "'cancelled', 'error'"
)
NEW_REASONS = OLD_REASONS.replace("'budget_gpu',", "'budget_gpu', 'budget_calls', 'budget_tokens', 'budget_key',")


def upgrade() -> None:
    _create_api_keys()
    _extend_jobs()
    _create_requests()
    op.create_index("ix_llm_calls_model_id", "llm_calls", ["model", "id"])


def downgrade() -> None:
    op.drop_index("ix_llm_calls_model_id", "llm_calls")
    op.drop_table("requests")
    op.execute(
        "UPDATE jobs SET stop_reason = 'budget_usd'"
        " WHERE stop_reason IN ('budget_calls', 'budget_tokens', 'budget_key')"
    )
    _allow_reasons(OLD_REASONS)
    for column in ("key_id", "llm_tokens", "llm_calls", "diagnosis_model", "budget_tokens", "budget_calls"):
        op.drop_column("jobs", column)
    op.drop_table("api_keys")


def _create_api_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("budget_usd", sa.Numeric(14, 6), nullable=True),
        sa.Column("budget_tokens", sa.BigInteger(), nullable=True),
        sa.Column("budget_calls", sa.Integer(), nullable=True),
        sa.Column("budget_gpu_s", sa.Double(), nullable=True),
        sa.Column("budget_wall_s", sa.Double(), nullable=True),
        sa.Column("budget_candidates", sa.Integer(), nullable=True),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("name", name=op.f("uq_api_keys_name")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_api_keys_token_hash")),
    )


def _extend_jobs() -> None:
    op.add_column("jobs", sa.Column("budget_calls", sa.Integer()))
    op.add_column("jobs", sa.Column("budget_tokens", sa.BigInteger()))
    op.add_column("jobs", sa.Column("diagnosis_model", sa.Text()))
    op.add_column("jobs", sa.Column("llm_calls", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("jobs", sa.Column("llm_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("jobs", sa.Column("key_id", sa.Text()))
    op.create_index(op.f("ix_jobs_key_id"), "jobs", ["key_id"])
    op.create_foreign_key(op.f("fk_jobs_key_id_api_keys"), "jobs", "api_keys", ["key_id"], ["id"])
    _allow_reasons(NEW_REASONS)
    op.execute(
        """
        UPDATE jobs SET llm_calls = made.calls, llm_tokens = made.tokens
        FROM (SELECT job_id, count(*) AS calls, sum(coalesce(tokens_in, 0) + coalesce(tokens_out, 0)) AS tokens
              FROM llm_calls GROUP BY job_id) AS made
        WHERE made.job_id = jobs.id
        """
    )


def _allow_reasons(words: str) -> None:
    op.drop_constraint(op.f("ck_jobs_stop_reason"), "jobs", type_="check")
    op.create_check_constraint(op.f("ck_jobs_stop_reason"), "jobs", f"stop_reason IN ({words})")


def _create_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("proposal", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "rest", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("prompt", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("calls", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=True),
        sa.Column("tokens_out", sa.BigInteger(), nullable=True),
        sa.Column("cost_usd", sa.Numeric(14, 6), nullable=True),
        sa.Column("cost_source", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_token", sa.Uuid(), nullable=True),
        sa.Column("lease_expires_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("rung_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'writing', 'proposed', 'confirmed', 'failed')", name=op.f("ck_requests_state")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_requests_job_id_jobs")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_requests_key_id_api_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
    )
    op.create_index(op.f("ix_requests_job_id"), "requests", ["job_id"])
    op.create_index(op.f("ix_requests_key_id"), "requests", ["key_id"])
    op.create_index(
        "ix_requests_waiting", "requests", ["id"], postgresql_where=sa.text("state IN ('queued', 'writing')")
    )
