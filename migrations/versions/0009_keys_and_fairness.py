"""API keys with scopes, an end, a rotation and quotas; the audit log; keys take turns at the workers.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TIME = postgresql.TIMESTAMP(timezone=True)
_QUOTAS = ("budget_jobs", "budget_jobs_per_day")
_KEY_COLUMNS = ("prefix", "previous_hash", "previous_until", "scopes", "expires_at", "revoked_at", "last_used_at")
_ACTIONS = (
    "'job.submit', 'job.cancel', 'key.create', 'key.change', 'key.rotate', 'key.revoke', "
    "'worker.drain', 'worker.resume'"
)


def upgrade() -> None:
    _extend_keys()
    _count_jobs_of_keys()
    _create_audit()
    _share_work()


def downgrade() -> None:
    for name in ("ix_work_served", "ix_work_running", "ix_work_ready"):
        op.drop_index(name, "work")
    _index_ready("queue", sa.text("priority DESC"), "id")
    op.drop_column("work", "claimed_at")
    op.drop_column("work", "share_of")
    op.drop_table("audit")
    op.create_index(op.f("ix_jobs_key_id"), "jobs", ["key_id"])
    op.drop_index("ix_jobs_in_flight", "jobs")
    op.drop_index("ix_jobs_key_id_created_at", "jobs")
    for column in (*_KEY_COLUMNS, *_QUOTAS):
        op.drop_column("api_keys", column)


def _extend_keys() -> None:
    for name in ("prefix", "previous_hash"):
        op.add_column("api_keys", sa.Column(name, sa.Text()))
    for name in ("previous_until", "expires_at", "revoked_at", "last_used_at"):
        op.add_column("api_keys", sa.Column(name, _TIME))
    scopes: sa.Column[list[str]] = sa.Column(
        "scopes", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{submit,read}'::text[]"), nullable=False
    )
    op.add_column("api_keys", scopes)
    for name in _QUOTAS:
        op.add_column("api_keys", sa.Column(name, sa.Integer()))
    op.create_unique_constraint(op.f("uq_api_keys_previous_hash"), "api_keys", ["previous_hash"])
    known = "scopes <@ ARRAY['submit', 'read', 'admin']::text[] AND cardinality(scopes) > 0"
    op.create_check_constraint(op.f("ck_api_keys_scopes"), "api_keys", known)


def _count_jobs_of_keys() -> None:
    op.create_index("ix_jobs_key_id_created_at", "jobs", ["key_id", "created_at"])
    op.create_index("ix_jobs_in_flight", "jobs", ["key_id"], postgresql_where=sa.text("finished_at IS NULL"))
    op.drop_index(op.f("ix_jobs_key_id"), "jobs")


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column(
            "data", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False
        ),
        sa.CheckConstraint(f"action IN ({_ACTIONS})", name=op.f("ck_audit_action")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_audit_key_id_api_keys")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit")),
    )
    for column in ("key_id", "subject"):
        op.create_index(f"ix_audit_{column}_seq", "audit", [column, "seq"])


def _share_work() -> None:
    op.add_column("work", sa.Column("share_of", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column("work", sa.Column("claimed_at", _TIME))
    op.execute(
        "UPDATE work SET share_of = jobs.key_id FROM jobs"
        " WHERE jobs.id = work.job_id AND jobs.key_id IS NOT NULL AND work.state IN ('queued', 'running')"
    )
    op.drop_index("ix_work_ready", "work")
    _index_ready("queue", sa.text("priority DESC"), sa.text("share_of DESC"), "id")
    running, served = sa.text("state = 'running'"), sa.text("claimed_at IS NOT NULL")
    op.create_index("ix_work_running", "work", ["queue", "share_of"], postgresql_where=running)
    op.create_index("ix_work_served", "work", ["queue", "share_of", "claimed_at"], postgresql_where=served)


def _index_ready(*columns: str | sa.TextClause) -> None:
    op.create_index("ix_work_ready", "work", list(columns), postgresql_where=sa.text("state = 'queued'"))
