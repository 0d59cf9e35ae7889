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
    op.drop_constraint(op.f("ck_workers_state"), "workers", type_="check")
    op.create_check_constraint(op.f("ck_workers_state"), "workers", _STATES.format(more=more))
