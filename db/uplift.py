"""What showing something did: proposals counted by whether they were shown it, and the retirement of what does harm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from sqlalchemy import bindparam, select
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.orm import Session
from sqlalchemy.types import Boolean, Text

from db.knowledge import SQL
from db.knowledge_models import KnowledgeRetirement, KnowledgeUse
from db.models import Candidate
from db.storable import storable_json

_ARMS: Final = SQL["arms"].bindparams(
    bindparam("items", type_=ARRAY(Text())),
    bindparam("everything", type_=Boolean()),
    bindparam("overall", type_=Boolean()),
)

_TITLES: Final = SQL["titles"].bindparams(bindparam("items", type_=ARRAY(Text())))


@dataclass(frozen=True, slots=True)
class ArmRow:
    """Proposals that were shown an item, or were not: how many, how many were right, and moments of gain and cost.

    `gained` is in log-speedup over the best parent (over the fastest baseline without one), 0 for a failure; `cost` in
    US dollars, of those whose price is known. Variances are of the sample.
    """

    proposals: int = 0
    correct: int = 0
    gained_n: int = 0
    gained_mean: float = 0.0
    gained_variance: float = 0.0
    cost_n: int = 0
    cost_mean: float = 0.0
    cost_variance: float = 0.0


@dataclass(frozen=True, slots=True)
class Arms:
    """The two groups that the dice made."""

    shown: ArmRow
    withheld: ArmRow


def overall_arms(session: Session) -> Arms:
    """Proposals with retrieval and without."""
    return _arms(session, overall=True).get("", Arms(ArmRow(), ArmRow()))


def item_arms(session: Session, items: Sequence[str] | None = None) -> Mapping[str, Arms]:
    """For each item the proposals for which it came up: those that were shown it and those that were not.

    All items, or those of the given ids.
    """
    return _arms(session, items=items)


def items_of_job(session: Session, job_id: str) -> list[str]:
    """The items that came up in a job: only their figures have changed by it."""
    query = (
        select(KnowledgeUse.item_id)
        .join(Candidate, Candidate.id == KnowledgeUse.candidate_id)
        .where(Candidate.job_id == job_id)
        .distinct()
        .order_by(KnowledgeUse.item_id)
    )
    return list(session.scalars(query))


def titles_of(session: Session, items: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Kind and title of items, as they were when they last came up."""
    return {row.item_id: (row.kind, row.title) for row in session.execute(_TITLES, {"items": list(items)})}


def retire(session: Session, item_id: str, reason: str, lift: Mapping[str, Any]) -> None:
    """Show the item to nobody any more. The first reason stays."""
    values = {"item_id": item_id, "reason": reason, "lift": storable_json(lift)}
    session.execute(insert(KnowledgeRetirement).values(values).on_conflict_do_nothing())


def retirements(session: Session) -> dict[str, KnowledgeRetirement]:
    """The retired items by id."""
    return {found.item_id: found for found in session.scalars(select(KnowledgeRetirement))}


def _arms(session: Session, *, overall: bool = False, items: Sequence[str] | None = None) -> dict[str, Arms]:
    parameters = {"overall": overall, "everything": overall or items is None, "items": list(items or ())}
    found: dict[str, dict[bool, ArmRow]] = {}
    for row in session.execute(_ARMS, parameters):
        found.setdefault(row.item_id, {})[row.shown] = ArmRow(**{name: getattr(row, name) for name in _FIGURES})
    return {item: Arms(arms.get(True, ArmRow()), arms.get(False, ArmRow())) for item, arms in found.items()}


_FIGURES: Final = tuple(field.name for field in fields(ArmRow))
