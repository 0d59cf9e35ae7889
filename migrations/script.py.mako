"""${message}

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}

The previous version of the code is still running while this migrates. Therefore: add columns as nullable or with a
default, never rename or drop what that version reads, and build indexes on large tables CONCURRENTLY inside
`with op.get_context().autocommit_block():`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
