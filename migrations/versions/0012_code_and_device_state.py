"""Generated code of candidates (texts by their digests, and which candidate has which), and how workers' devices are.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TIME = postgresql.TIMESTAMP(timezone=True)
_KINDS = "'ttgir', 'llvm', 'ptx', 'sass', 'assembly'"


def upgrade() -> None:
    op.create_table(
        "code_texts",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("compressed", sa.LargeBinary(), nullable=False),
        sa.Column("used_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_code_texts")),
    )
    # What is compressed already is neither compressed again nor kept in the row.
    op.execute("ALTER TABLE code_texts ALTER COLUMN compressed SET STORAGE EXTERNAL")
    op.create_table(
        "candidate_code",
        sa.Column("candidate_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(f"kind IN ({_KINDS})", name=op.f("ck_candidate_code_kind")),
        sa.ForeignKeyConstraint(
            ["candidate_id"], ["candidates.id"], name=op.f("fk_candidate_code_candidate_id_candidates")
        ),
        sa.ForeignKeyConstraint(["sha256"], ["code_texts.sha256"], name=op.f("fk_candidate_code_sha256_code_texts")),
        sa.PrimaryKeyConstraint("candidate_id", "kind", name=op.f("pk_candidate_code")),
    )
    op.create_index("ix_candidate_code_sha256", "candidate_code", ["sha256"])
    op.create_index("ix_candidate_code_created_at", "candidate_code", ["created_at"])
    op.add_column("workers", sa.Column("device_state", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "device_state")
    op.drop_table("candidate_code")
    op.drop_table("code_texts")
