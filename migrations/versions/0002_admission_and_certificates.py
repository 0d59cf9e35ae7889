"""Admissions, certificates, the evaluation policy, and the two kinds of work that make the first two.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_admissions()
    _create_certificates()
    _extend_jobs()
    _allow_work(
        "'advance', 'admit', 'propose', 'evaluate', 'certify'", without_candidate="kind IN ('advance', 'admit')"
    )
    op.create_index("uq_work_admit", "work", ["job_id"], unique=True, postgresql_where=sa.text("kind = 'admit'"))


def downgrade() -> None:
    op.drop_index("uq_work_admit", "work")
    op.execute("DELETE FROM work WHERE kind IN ('admit', 'certify')")
    _allow_work("'advance', 'propose', 'evaluate'", without_candidate="kind = 'advance'")
    # A search that had ended and waited for a certificate is the search's to end again.
    op.execute("UPDATE jobs SET stop_reason = NULL WHERE finished_at IS NULL")
    for column in ("admission_id", "certify", "admit", "own_kernel_share"):
        op.drop_column("jobs", column)
    op.drop_table("certificates")
    op.drop_table("admissions")


def _create_admissions() -> None:
    op.create_table(
        "admissions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("problem_hash", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("judge_hash", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("report", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "verdict IN ('admitted', 'admitted with warnings', 'refused')", name=op.f("ck_admissions_verdict")
        ),
        sa.ForeignKeyConstraint(["problem_hash"], ["problems.hash"], name=op.f("fk_admissions_problem_hash_problems")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_admissions")),
        sa.UniqueConstraint(
            "problem_hash", "hardware", "judge_hash", name=op.f("uq_admissions_problem_hash_hardware_judge_hash")
        ),
    )


def _create_certificates() -> None:
    op.create_table(
        "certificates",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("candidate_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("certified", sa.Boolean(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("document", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("page", sa.Text(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "verdict IN ('ok', 'build_error', 'launch_error', 'illegal_access', 'timeout', "
            "'incorrect', 'nondeterministic', 'suspicious', 'infra_error')",
            name=op.f("ck_certificates_verdict"),
        ),
        sa.ForeignKeyConstraint(
            ["candidate_id"], ["candidates.id"], name=op.f("fk_certificates_candidate_id_candidates")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_certificates_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_certificates")),
        sa.UniqueConstraint("candidate_id", name=op.f("uq_certificates_candidate_id")),
    )
    op.create_index(op.f("ix_certificates_job_id"), "certificates", ["job_id"], unique=False)


def _extend_jobs() -> None:
    op.add_column("jobs", sa.Column("own_kernel_share", sa.Double(), server_default=sa.text("0.9"), nullable=False))
    op.add_column("jobs", sa.Column("admit", sa.Boolean(), server_default=sa.text("true"), nullable=False))
    op.add_column("jobs", sa.Column("certify", sa.Boolean(), server_default=sa.text("true"), nullable=False))
    op.add_column("jobs", sa.Column("admission_id", sa.Text(), nullable=True))
    op.create_foreign_key(op.f("fk_jobs_admission_id_admissions"), "jobs", "admissions", ["admission_id"], ["id"])
    op.create_index(op.f("ix_jobs_admission_id"), "jobs", ["admission_id"], unique=False)


def _allow_work(kinds: str, *, without_candidate: str) -> None:
    """Which kinds of work there are, and which of them are about a job and not about a candidate."""
    for name in ("kind", "candidate"):
        op.drop_constraint(op.f(f"ck_work_{name}"), "work", type_="check")
    op.create_check_constraint(op.f("ck_work_kind"), "work", f"kind IN ({kinds})")
    op.create_check_constraint(op.f("ck_work_candidate"), "work", f"({without_candidate}) = (candidate_id IS NULL)")
