"""A certificate's speedup, the smaller of its two measurements, beside its document: what a job's best is said to be.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_COLUMNS = ("speedup", "ci95_low", "ci95_high")


def upgrade() -> None:
    for name in _COLUMNS:
        op.add_column("certificates", sa.Column(name, sa.Double()))
    op.execute(
        "UPDATE certificates SET speedup = (document->'timing'->>'speedup')::double precision,"
        " ci95_low = (document->'timing'->'ci95'->>0)::double precision,"
        " ci95_high = (document->'timing'->'ci95'->>1)::double precision"
        " WHERE certified AND json_typeof(document->'timing') = 'object'"
    )


def downgrade() -> None:
    for name in _COLUMNS:
        op.drop_column("certificates", name)
