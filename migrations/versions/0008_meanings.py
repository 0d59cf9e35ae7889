"""Vectors of the knowledge base's texts by an embedding model, with what they cost.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_TIME = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.create_table(
        "meanings",
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column("embedder", sa.Text(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=True),
        sa.Column("text_hash", sa.Text(), nullable=True),
        sa.Column("usd", sa.Numeric(), nullable=True),
        sa.Column("claimed_until", _TIME, nullable=True),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("(vector IS NULL) = (text_hash IS NULL)", name=op.f("ck_meanings_embedded")),
        sa.PrimaryKeyConstraint("item_id", "embedder", name=op.f("pk_meanings")),
    )
    for name, column in (("ix_meanings_embedded", "vector"), ("ix_meanings_claimed", "claimed_until")):
        op.create_index(name, "meanings", ["embedder", "item_id"], postgresql_where=sa.text(f"{column} IS NOT NULL"))
    op.create_index("ix_kernels_current", "kernels", ["id"], postgresql_where=sa.text("current"))


def downgrade() -> None:
    op.drop_index("ix_kernels_current", table_name="kernels")
    op.drop_table("meanings")
