"""What a job that has ended teaches, in rows: its candidates are read, lessons and evidence written, its kernel
described so that it can be found.

What the evidence amounts to is the search's to say: it reads `evidence_of` a lesson and hands `Settled` back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import false, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.ids import new_id
from db.knowledge import SQL
from db.knowledge_models import KnowledgeTerm, Lesson, LessonEvidence
from db.models import Candidate, Certificate, Evaluation, Kernel
from db.storable import storable_json, storable_text

_LEARNERS: Final = text("SELECT pg_advisory_xact_lock(hashtextextended('kernelwright learners', 0))")


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate and what was found about it."""

    candidate: Candidate
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class NewEvidence:
    """One candidate's word on a lesson. Effects are in log-speedup."""

    candidate_id: str
    parent_id: str | None
    says: str
    effect_log: float | None = None
    effect_low: float | None = None
    effect_high: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """A lesson as its evidence stands: what it says, and how it is found."""

    state: str
    title: str
    text: str
    terms: str
    evidence: int
    supporting: int
    opposing: int
    effect_log: float | None
    effect_low: float | None
    effect_high: float | None
    notes: tuple[str, ...]
    last_confirmed: datetime | None
    embedder: str
    embedding: bytes


@dataclass(frozen=True, slots=True)
class Described:
    """A kernel as it is found: its facets, its words and what a prompt shows of it."""

    op_family: str
    hardware_kin: str
    bound: str
    title: str
    story: str
    terms: str
    embedder: str
    embedding: bytes
    params: dict[str, Any] = field(default_factory=dict)


def lock_learners(session: Session) -> None:
    """One learner at a time until the transaction ends: two could settle a lesson on half of its evidence each."""
    session.execute(_LEARNERS)


def judged_of(session: Session, job_id: str) -> list[Judged]:
    """The job's evaluated candidates, by ordinal."""
    query = (
        select(Candidate, Evaluation)
        .join(Evaluation, Evaluation.candidate_id == Candidate.id)
        .where(Candidate.job_id == job_id)
        .order_by(Candidate.ordinal)
    )
    return [Judged(candidate, evaluation) for candidate, evaluation in session.execute(query)]


def origin_of(session: Session, job_id: str) -> str:
    """The job, or the first in the chain of reruns that it belongs to."""
    return str(session.execute(SQL["origin_of"], {"job_id": job_id}).scalar_one())


def store_lesson(session: Session, statement: str, **key: str) -> str:
    """The id of the lesson with this key (kind, language, hardware_kin, op_family, bound, key), made if need be."""
    parameters = {"id": new_id("lesson"), "statement": storable_text(statement), **key}
    return str(session.execute(SQL["upsert_lesson"], parameters).scalar_one())


def add_evidence(session: Session, lesson_id: str, job_id: str, origin: str, new: Sequence[NewEvidence]) -> None:
    """Add what a job's candidates say. What is known already is passed over, so learning twice is learning once."""
    rows = [
        {
            "lesson_id": lesson_id,
            "candidate_id": each.candidate_id,
            "parent_id": each.parent_id,
            "job_id": job_id,
            "origin": origin,
            "says": each.says,
            "effect_log": each.effect_log,
            "effect_low": each.effect_low,
            "effect_high": each.effect_high,
            "note": storable_text(each.note) if each.note else None,
        }
        for each in new
    ]
    session.execute(insert(LessonEvidence).values(rows).on_conflict_do_nothing())


def evidence_of(session: Session, lesson_id: str) -> Sequence[LessonEvidence]:
    """All evidence on a lesson, in the order in which it came."""
    query = (
        select(LessonEvidence)
        .where(LessonEvidence.lesson_id == lesson_id)
        .order_by(LessonEvidence.created_at, LessonEvidence.candidate_id)
    )
    return session.scalars(query).all()


def settle_lesson(session: Session, lesson_id: str, settled: Settled) -> None:
    """Write what the lesson says now."""
    values = {
        name: getattr(settled, name)
        for name in ("state", "evidence", "supporting", "opposing", "effect_log", "effect_low", "effect_high")
    }
    values |= {
        "title": storable_text(settled.title),
        "text": storable_text(settled.text),
        "notes": [storable_text(note) for note in settled.notes],
        "last_confirmed": settled.last_confirmed,
    }
    session.execute(
        update(Lesson).where(Lesson.id == lesson_id).values(**values, **_found_by(settled)),
        execution_options={"synchronize_session": False},
    )


def kernel_of(session: Session, job_id: str) -> Kernel | None:
    """The champion of a job."""
    return session.scalars(select(Kernel).where(Kernel.job_id == job_id)).one_or_none()


def evaluation_of(session: Session, kernel: Kernel) -> Evaluation:
    """What was found about a kernel when it was a candidate."""
    return session.scalars(select(Evaluation).where(Evaluation.candidate_id == kernel.candidate_id)).one()


def describe_kernel(session: Session, kernel: Kernel, described: Described) -> bool:
    """Write how a kernel is found. It is current, and retrieved, when it is certified and none of its problem and
    target is faster; whether it is.

    Learning a kernel twice counts its words once.
    """
    known = kernel.hardware_kin != ""
    kernel.op_family, kernel.hardware_kin = described.op_family, described.hardware_kin
    kernel.bound, kernel.params = described.bound, storable_json(described.params)
    kernel.title, kernel.story = storable_text(described.title), storable_text(described.story)
    session.flush()
    session.execute(
        update(Kernel).where(Kernel.id == kernel.id).values(**_found_by(described)),
        execution_options={"synchronize_session": False},
    )
    if not known:
        _count_terms(session, described.terms.split())
    _choose_current(session, kernel)
    session.refresh(kernel)
    return kernel.current


def _found_by(item: Settled | Described) -> dict[str, Any]:
    terms = storable_text(item.terms)
    return {
        "terms": terms,
        "terms_vector": func.to_tsvector("simple", terms),
        "embedder": item.embedder,
        "embedding": item.embedding,
    }


def _count_terms(session: Session, terms: Sequence[str]) -> None:
    if not terms:
        return
    rows = [{"term": term, "holders": 1} for term in sorted(set(terms))]
    more = {"holders": KnowledgeTerm.holders + 1}
    session.execute(insert(KnowledgeTerm).values(rows).on_conflict_do_update(index_elements=["term"], set_=more))


def _choose_current(session: Session, kernel: Kernel) -> None:
    """Of the certified kernels of a problem and target the fastest is current; the older of equals.

    Rows that say so already are not written again: each of a problem's kernels anew for each job that ends had made 22
    dead rows of 10 KB to one live one after 160 jobs.
    """
    same = (
        Kernel.problem_hash == kernel.problem_hash,
        Kernel.hardware == kernel.hardware,
        Kernel.language == kernel.language,
    )
    best = session.scalar(
        select(Kernel.id)
        .join(Certificate, Certificate.candidate_id == Kernel.candidate_id)
        .where(*same, Certificate.certified, Kernel.hardware_kin != "")
        .order_by(Kernel.speedup.desc().nulls_last(), Kernel.id)
        .limit(1)
    )
    current = Kernel.id == best if best else false()
    session.execute(
        update(Kernel).where(*same, Kernel.current != current).values(current=current),
        execution_options={"synchronize_session": False},
    )
