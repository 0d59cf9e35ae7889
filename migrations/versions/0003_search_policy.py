"""The search policy of a job.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("search_policy", sa.Text(), server_default=sa.text("'default'"), nullable=False))
    op.create_check_constraint(
        op.f("ck_jobs_search_policy"),
        "jobs",
        "search_policy IN ('default', 'uct', 'islands', 'archive', 'greedy', 'best_of_n', 'random')",
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_jobs_search_policy"), "jobs", type_="check")
    op.drop_column("jobs", "search_policy")
