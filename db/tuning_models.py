"""The table of what tuning measured. Apart from `db.models` for its one clear subject."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from db.models import EMPTY_OBJECT, NOW, Base, Json


class Tuning(Base):
    """The configurations that one `tune` measured, whatever became of its candidate: the next one goes on from them."""

    __tablename__ = "tunings"

    id: Mapped[str] = mapped_column(primary_key=True)
    candidate_id: Mapped[str] = mapped_column(ForeignKey("candidates.id"), unique=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    parent_id: Mapped[str] = mapped_column(ForeignKey("candidates.id"))
    problem_hash: Mapped[str] = mapped_column(ForeignKey("problems.hash"))
    hardware: Mapped[str]
    source_hash: Mapped[str]
    """Of the parent: what was measured holds for the same source on the same hardware, in any job."""
    measured: Mapped[Json] = mapped_column(server_default=EMPTY_OBJECT)
    """`trials`: params, ratios by workload, verdict; `signatures`: dtype and sizes of the inputs, by workload."""
    gpu_s: Mapped[float] = mapped_column(server_default=text("0"))
    wall_s: Mapped[float] = mapped_column(server_default=text("0"))
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)

    __table_args__ = (
        Index("ix_tunings_content", "problem_hash", "hardware", "source_hash"),
        Index("ix_tunings_created_at", "created_at", postgresql_include=["gpu_s"]),
    )
