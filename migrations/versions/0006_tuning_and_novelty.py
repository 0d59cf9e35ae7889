"""What tuning measured, and the hash of what a candidate was built into.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("candidates", sa.Column("artefact_hash", sa.Text(), nullable=True))
    op.create_table(
        "tunings",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("candidate_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=False),
        sa.Column("problem_hash", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("source_hash", sa.Text(), nullable=False),
        sa.Column(
            "measured",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("gpu_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("wall_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["candidate_id"], ["candidates.id"], name=op.f("fk_tunings_candidate_id_candidates")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_tunings_job_id_jobs")),
        sa.ForeignKeyConstraint(["parent_id"], ["candidates.id"], name=op.f("fk_tunings_parent_id_candidates")),
        sa.ForeignKeyConstraint(["problem_hash"], ["problems.hash"], name=op.f("fk_tunings_problem_hash_problems")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tunings")),
        sa.UniqueConstraint("candidate_id", name=op.f("uq_tunings_candidate_id")),
    )
    op.create_index(op.f("ix_tunings_job_id"), "tunings", ["job_id"], unique=False)
    op.create_index("ix_tunings_content", "tunings", ["problem_hash", "hardware", "source_hash"], unique=False)


def downgrade() -> None:
    op.drop_table("tunings")
    op.drop_column("candidates", "artefact_hash")
