"""Quarantine: a worker whose device failed claims nothing more, and its row says why.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_STATES = "state IN ('active', 'draining', {more}'gone')"


def upgrade() -> None:
    op.add_column("workers", sa.Column("state_reason", sa.Text()))
    _states("'quarantined', ")


def downgrade() -> None:
    op.execute("UPDATE workers SET state = 'draining' WHERE state = 'quarantined'")
    _states("")
    op.drop_column("workers", "state_reason")


def _states(more: str) -> None:
    """Widened, so what old code writes still fits; workers are few rows."""
    op.execute(
        "-- squawk-ignore ban-drop-constraint, constraint-missing-not-valid\n"
        "ALTER TABLE workers DROP CONSTRAINT ck_workers_state,"
        f" ADD CONSTRAINT ck_workers_state CHECK ({_STATES.format(more=more)})"
    )
