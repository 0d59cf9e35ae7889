"""Questions to outside agents, and what a replay needs: each decision, each request to a model, the judge's seed.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_JSON = postgresql.JSON(astext_type=sa.Text())
_TIME = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    _create_asks()
    _create_decisions()
    op.add_column("llm_calls", sa.Column("request", _JSON, nullable=True))
    # Of a job that is older, the seed follows from its id: in the middle of a job it must not change.
    op.add_column("jobs", sa.Column("judge_seed", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    # The version before serves no such queue; there the built-in proposer answers what is still open.
    op.execute(
        "UPDATE work SET queue = CASE jobs.hardware WHEN 'cpu' THEN 'cpu' ELSE 'gpu.' || jobs.hardware END"
        " FROM jobs WHERE jobs.id = work.job_id AND work.queue = 'ask' AND work.state IN ('queued', 'running')"
    )
    op.drop_column("jobs", "judge_seed")
    op.drop_column("llm_calls", "request")
    op.drop_table("decisions")
    op.drop_table("asks")


def _create_asks() -> None:
    op.create_table(
        "asks",
        sa.Column("candidate_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("prompt_version", sa.Text(), nullable=False),
        sa.Column("edits", sa.Boolean(), nullable=False),
        sa.Column("token", sa.Uuid(), nullable=True),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("asked_at", _TIME, nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("told_hash", sa.Text(), nullable=True),
        sa.Column("told_at", _TIME, nullable=True),
        sa.CheckConstraint("(told_at IS NULL) = (told_hash IS NULL)", name=op.f("ck_asks_told")),
        sa.CheckConstraint("told_at IS NULL OR token IS NOT NULL", name=op.f("ck_asks_told_by_token")),
        sa.ForeignKeyConstraint(["candidate_id"], ["candidates.id"], name=op.f("fk_asks_candidate_id_candidates")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_asks_job_id_jobs")),
        sa.PrimaryKeyConstraint("candidate_id", name=op.f("pk_asks")),
    )
    op.create_index(op.f("ix_asks_job_id"), "asks", ["job_id"], unique=False)


def _create_decisions() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("view", _JSON, nullable=False),
        sa.Column("decision", _JSON, nullable=False),
        sa.Column("at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_decisions_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
    )
    op.create_index("ix_decisions_job_id_id", "decisions", ["job_id", "id"], unique=False)
