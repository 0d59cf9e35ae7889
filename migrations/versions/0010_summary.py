"""What the summary and the leaderboard read without counting whole tables: indexes by time.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# Name, table, columns, what is carried along, and which rows.
_INDEXES: tuple[tuple[str, str, list[str], list[str], str | None], ...] = (
    ("ix_work_claimed_at", "work", ["claimed_at"], [], "claimed_at IS NOT NULL"),
    ("ix_jobs_finished_at", "jobs", ["finished_at"], ["state"], "finished_at IS NOT NULL"),
    ("ix_jobs_problem_name", "jobs", ["problem_name", "created_at", "id"], [], None),
    ("ix_jobs_hardware", "jobs", ["hardware", "created_at", "id"], [], None),
    ("ix_llm_calls_finished_at", "llm_calls", ["finished_at"], ["cost_usd"], "finished_at IS NOT NULL"),
    ("ix_requests_finished_at", "requests", ["finished_at"], ["cost_usd"], "finished_at IS NOT NULL"),
    ("ix_meanings_created_at", "meanings", ["created_at"], ["usd"], "usd IS NOT NULL"),
    ("ix_evaluations_created_at", "evaluations", ["created_at"], ["gpu_s"], None),
    ("ix_evaluations_disbelieved", "evaluations", ["job_id"], [], "verdict <> 'ok' AND speedup IS NOT NULL"),
    ("ix_certificates_refused", "certificates", ["job_id"], [], "NOT certified"),
    ("ix_kernels_problem_name", "kernels", ["problem_name", "hardware", "language"], [], None),
    ("ix_tunings_created_at", "tunings", ["created_at"], ["gpu_s"], None),
    ("ix_certificates_created_at", "certificates", ["created_at"], ["gpu_s"], None),
)


def upgrade() -> None:
    op.add_column("certificates", sa.Column("gpu_s", sa.Double(), server_default=sa.text("0"), nullable=False))
    op.execute("UPDATE certificates SET gpu_s = coalesce((document #>> '{judge,device_held_s}')::float8, 0)")
    for name, table, columns, carried, which in _INDEXES:
        where = None if which is None else sa.text(which)
        op.create_index(name, table, columns, postgresql_include=carried or None, postgresql_where=where)


def downgrade() -> None:
    for name, table, *_ in reversed(_INDEXES):
        op.drop_index(name, table_name=table)
    op.drop_column("certificates", "gpu_s")
