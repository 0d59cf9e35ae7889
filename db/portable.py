"""Kernels that a job may carry over: certified for the same problem, for another target, before the job was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from db.models import Certificate, Job, Kernel

MAX_KERNELS: Final = 8


@dataclass(frozen=True, slots=True)
class PortableRow:
    """A certified kernel of another target. `candidate_id` is a candidate of the job that found it."""

    candidate_id: str
    hardware: str
    language: str


def portable_kernels(session: Session, job: Job) -> Sequence[PortableRow]:
    """The best certified kernel of each other target, the job's own language first, then by speedup.

    What was certified after the job was made is left out, so that a job sees the same kernels from beginning to end.
    """
    best = (
        select(Kernel.candidate_id, Kernel.hardware, Kernel.language, Kernel.speedup)
        .ext(distinct_on(Kernel.hardware, Kernel.language))
        .join(Certificate, Certificate.candidate_id == Kernel.candidate_id)
        .where(Certificate.certified.is_(True), Kernel.problem_hash == job.problem_hash)
        .where(or_(Kernel.hardware != job.hardware, Kernel.language != job.language))
        .where(Kernel.created_at <= job.created_at)
        .order_by(Kernel.hardware, Kernel.language, Kernel.speedup.desc().nulls_last(), Kernel.id)
        .subquery()
    )
    ranked = (
        select(best.c.candidate_id, best.c.hardware, best.c.language)
        .order_by((best.c.language != job.language), best.c.speedup.desc().nulls_last(), best.c.candidate_id)
        .limit(MAX_KERNELS)
    )
    return [PortableRow(*row) for row in session.execute(ranked)]
