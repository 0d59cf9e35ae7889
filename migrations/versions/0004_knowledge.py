"""The knowledge base: lessons with their evidence, kernels that can be found, what was shown to whom.

Needs the extension pg_trgm, which comes with Postgres and which the owner of a database may create. Jobs that have
ended, other than in error, are queued to be learned from.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TIME = postgresql.TIMESTAMP(timezone=True)
_JSONB = postgresql.JSONB(astext_type=sa.Text())
_KERNEL_TEXTS = ("op_family", "hardware_kin", "bound", "title", "story", "terms")


def upgrade() -> None:
    op.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    _extend_kernels()
    _create_lessons()
    _create_evidence()
    _create_uses()
    op.add_column("candidates", sa.Column("retrieval", sa.Boolean(), nullable=True))
    _allow_work(
        "'advance', 'admit', 'propose', 'evaluate', 'certify', 'learn'",
        without_candidate="kind IN ('advance', 'admit', 'learn')",
    )
    op.create_index("uq_work_learn", "work", ["job_id"], unique=True, postgresql_where=sa.text("kind = 'learn'"))
    op.execute(
        "INSERT INTO work (id, kind, queue, job_id, priority)"
        " SELECT 'work_' || replace(gen_random_uuid()::text, '-', ''), 'learn', 'control', jobs.id, -1000 FROM jobs"
        " WHERE finished_at IS NOT NULL AND stop_reason <> 'error'"
        " AND EXISTS (SELECT FROM evaluations WHERE evaluations.job_id = jobs.id)"
    )


def downgrade() -> None:
    op.execute("DELETE FROM work WHERE kind = 'learn'")
    op.drop_index("uq_work_learn", "work")
    _allow_work(
        "'advance', 'admit', 'propose', 'evaluate', 'certify'", without_candidate="kind IN ('advance', 'admit')"
    )
    op.drop_column("candidates", "retrieval")
    for table in ("knowledge_terms", "knowledge_retirements", "knowledge_uses", "lesson_evidence", "lessons"):
        op.drop_table(table)
    for index in ("ix_kernels_title", "ix_kernels_terms_vector", "ix_kernels_family"):
        op.drop_index(index, "kernels")
    for column in ("current", "embedding", "embedder", "terms_vector", "params", *_KERNEL_TEXTS):
        op.drop_column("kernels", column)
    # The extension stays: others may use it by now.


def _text(name: str, default: str | None = "''") -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=sa.text(default) if default else None, nullable=False)


def _vector() -> sa.Column[str]:
    return sa.Column("terms_vector", postgresql.TSVECTOR(), server_default=sa.text("''"), nullable=False)


def _made_at(name: str = "created_at") -> sa.Column[object]:
    return sa.Column(name, _TIME, server_default=sa.text("now()"), nullable=False)


def _extend_kernels() -> None:
    for name in _KERNEL_TEXTS:
        op.add_column("kernels", _text(name))
    op.add_column("kernels", sa.Column("params", _JSONB, server_default=sa.text("'{}'::jsonb"), nullable=False))
    op.add_column("kernels", _vector())
    op.add_column("kernels", sa.Column("embedder", sa.Text(), nullable=True))
    op.add_column("kernels", sa.Column("embedding", sa.LargeBinary(), nullable=True))
    op.add_column("kernels", sa.Column("current", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    current = sa.text("current")
    op.create_index(
        "ix_kernels_family",
        "kernels",
        ["language", "hardware_kin", "op_family", sa.text("speedup DESC NULLS LAST")],
        postgresql_where=current,
    )
    op.create_index(
        "ix_kernels_terms_vector", "kernels", ["terms_vector"], postgresql_using="gin", postgresql_where=current
    )
    op.create_index(
        "ix_kernels_title",
        "kernels",
        ["title"],
        postgresql_using="gin",
        postgresql_ops={"title": "gin_trgm_ops"},
        postgresql_where=current,
    )


def _create_lessons() -> None:
    op.create_table(
        "lessons",
        *(_text(name, None) for name in ("id", "kind", "language", "hardware_kin")),
        *(_text(name) for name in ("op_family", "bound")),
        *(_text(name, None) for name in ("key", "statement")),
        _text("state", "'tentative'"),
        *(_text(name) for name in ("title", "text", "terms")),
        _vector(),
        sa.Column("embedder", sa.Text(), nullable=True),
        sa.Column("embedding", sa.LargeBinary(), nullable=True),
        *(
            sa.Column(name, sa.Integer(), server_default=sa.text("0"), nullable=False)
            for name in ("evidence", "supporting", "opposing")
        ),
        *(sa.Column(name, sa.Double(), nullable=True) for name in ("effect_log", "effect_low", "effect_high")),
        sa.Column("notes", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column("last_confirmed", _TIME, nullable=True),
        _made_at(),
        sa.CheckConstraint("kind IN ('change', 'failure')", name=op.f("ck_lessons_kind")),
        sa.CheckConstraint("state IN ('tentative', 'confirmed', 'quarantined')", name=op.f("ck_lessons_state")),
        sa.CheckConstraint("language IN ('cpp', 'triton', 'cuda')", name=op.f("ck_lessons_language")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lessons")),
        sa.UniqueConstraint(
            *("kind", "language", "hardware_kin", "op_family", "bound", "key"),
            name=op.f("uq_lessons_kind_language_hardware_kin_op_family_bound_key"),
        ),
    )
    op.create_index(
        "ix_lessons_target",
        "lessons",
        ["language", "hardware_kin", "op_family", sa.text("supporting DESC")],
        postgresql_where=sa.text("state = 'confirmed'"),
    )
    op.create_index(
        "ix_lessons_title",
        "lessons",
        ["title"],
        postgresql_using="gin",
        postgresql_ops={"title": "gin_trgm_ops"},
    )


def _create_evidence() -> None:
    op.create_table(
        "lesson_evidence",
        _text("lesson_id", None),
        _text("candidate_id", None),
        sa.Column("parent_id", sa.Text(), nullable=True),
        *(_text(name, None) for name in ("job_id", "origin", "says")),
        *(sa.Column(name, sa.Double(), nullable=True) for name in ("effect_log", "effect_low", "effect_high")),
        sa.Column("note", sa.Text(), nullable=True),
        _made_at(),
        sa.CheckConstraint(
            "says IN ('faster', 'slower', 'unclear', 'occurred', 'fixed', 'not_fixed')",
            name=op.f("ck_lesson_evidence_says"),
        ),
        *(
            sa.ForeignKeyConstraint(
                [column], [target], name=op.f(f"fk_lesson_evidence_{column}_{target.split('.')[0]}")
            )
            for column, target in (
                ("lesson_id", "lessons.id"),
                ("candidate_id", "candidates.id"),
                ("parent_id", "candidates.id"),
                ("job_id", "jobs.id"),
            )
        ),
        sa.PrimaryKeyConstraint("lesson_id", "candidate_id", name=op.f("pk_lesson_evidence")),
    )
    for column in ("candidate_id", "job_id"):
        op.create_index(op.f(f"ix_lesson_evidence_{column}"), "lesson_evidence", [column])


def _create_uses() -> None:
    op.create_table(
        "knowledge_uses",
        *(_text(name, None) for name in ("candidate_id", "item_id", "kind")),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("parts", _JSONB, server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("shown", sa.Boolean(), nullable=False),
        *(_text(name, None) for name in ("title", "text")),
        sa.CheckConstraint("kind IN ('kernel', 'lesson', 'fact')", name=op.f("ck_knowledge_uses_kind")),
        sa.CheckConstraint("place > 0 AND rank > 0", name=op.f("ck_knowledge_uses_ranks")),
        sa.ForeignKeyConstraint(
            ["candidate_id"], ["candidates.id"], name=op.f("fk_knowledge_uses_candidate_id_candidates")
        ),
        sa.PrimaryKeyConstraint("candidate_id", "item_id", name=op.f("pk_knowledge_uses")),
    )
    op.create_index("ix_knowledge_uses_item_id", "knowledge_uses", ["item_id"])
    op.create_table(
        "knowledge_retirements",
        *(_text(name, None) for name in ("item_id", "reason")),
        sa.Column("lift", _JSONB, server_default=sa.text("'{}'::jsonb"), nullable=False),
        _made_at("retired_at"),
        sa.PrimaryKeyConstraint("item_id", name=op.f("pk_knowledge_retirements")),
    )
    op.create_table(
        "knowledge_terms",
        _text("term", None),
        sa.Column("holders", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("term", name=op.f("pk_knowledge_terms")),
    )


def _allow_work(kinds: str, *, without_candidate: str) -> None:
    for name in ("kind", "candidate"):
        op.drop_constraint(op.f(f"ck_work_{name}"), "work", type_="check")
    op.create_check_constraint(op.f("ck_work_kind"), "work", f"kind IN ({kinds})")
    op.create_check_constraint(op.f("ck_work_candidate"), "work", f"({without_candidate}) = (candidate_id IS NULL)")
