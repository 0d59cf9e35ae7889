"""What was spent today, from two indexes: the metrics endpoint sums it every minute.

On tables too large to index within a migration's time limit, build the same indexes by hand first, with CONCURRENTLY:
this migration then finds them and does nothing.

Revision ID: 0011
Revises: 0008
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_evaluations_created_at", "evaluations", ["created_at"], postgresql_include=["gpu_s"], if_not_exists=True
    )
    op.create_index(
        "ix_llm_calls_finished_at", "llm_calls", ["finished_at"], postgresql_include=["cost_usd"], if_not_exists=True
    )


def downgrade() -> None:
    op.drop_index("ix_llm_calls_finished_at", table_name="llm_calls")
    op.drop_index("ix_evaluations_created_at", table_name="evaluations")
