"""The trace of a job: that of the request that submitted it, for the workers to continue.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("traceparent", sa.Text()))


def downgrade() -> None:
    op.drop_column("jobs", "traceparent")
