"""From rows and rankings of the knowledge base to resources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from api import knowledge_schemas as wire
from db import uplift
from db.knowledge import Shelf
from db.knowledge_models import KnowledgeUse, LessonEvidence
from db.knowledge_models import Lesson as LessonRow
from search.knowledge.asking import Question
from search.knowledge.ranking import ranked_items
from search.knowledge.recall import ANYTHING, knowledge_for
from search.knowledge.uplift import Arm, Difference, arm_of, lift
from search.retrieval import Found


def found_items(session: Session, question: Question, limit: int, embedder: str | None) -> wire.FoundItems:
    """The first `limit` of each kind, best first."""
    shelf = Shelf(session, embedder)
    ranked = ranked_items(question, shelf)
    chosen = [(kind, rank, hit) for kind in ANYTHING for rank, hit in enumerate(ranked[kind][:limit], start=1)]
    known = knowledge_for([hit.id for _kind, _rank, hit in chosen], shelf)
    data = [_found(kind, rank, hit, known[hit.id].title, known[hit.id].text) for kind, rank, hit in chosen]
    return wire.FoundItems(data=data)


def _found(kind: str, rank: int, hit: Found, title: str, text: str) -> wire.FoundItem:
    fields = {"id": hit.id, "kind": kind, "rank": rank, "score": hit.score, "ranks": dict(hit.ranks)}
    return wire.FoundItem.model_validate(fields | {"title": title, "text": text})


def recalled(retrieval: bool | None, uses: Sequence[KnowledgeUse]) -> wire.Recalled:
    """What came up for a candidate."""
    data = [
        wire.RecalledItem.model_validate(
            {
                "id": use.item_id,
                "kind": use.kind,
                "rank": use.rank,
                "score": use.score,
                "ranks": use.parts,
                "title": use.title,
                "text": use.text,
                "shown": use.shown,
            }
        )
        for use in uses
    ]
    return wire.Recalled(retrieval=retrieval, data=data)


def lesson(row: LessonRow, retired: Mapping[str, str]) -> wire.Lesson:
    """A lesson of a list."""
    return wire.Lesson.model_validate(_lesson_fields(row, retired))


def lesson_detail(row: LessonRow, evidence: Sequence[LessonEvidence], retired: Mapping[str, str]) -> wire.LessonDetail:
    """A lesson with its evidence."""
    rows = [_evidence(each) for each in evidence]
    return wire.LessonDetail.model_validate(_lesson_fields(row, retired) | {"evidence_rows": rows})


def _lesson_fields(row: LessonRow, retired: Mapping[str, str]) -> dict[str, Any]:
    plain = ("id", "kind", "state", "language", "title", "text", "supporting", "opposing", "evidence")
    return {
        **{name: getattr(row, name) for name in (*plain, "last_confirmed", "created_at")},
        **_effect(row),
        "hardware": row.hardware_kin,
        "op_family": row.op_family or None,
        "bound": row.bound or None,
        "retired": retired.get(row.id),
    }


def _evidence(row: LessonEvidence) -> dict[str, Any]:
    plain = ("candidate_id", "parent_id", "job_id", "says", "note", "created_at")
    return {name: getattr(row, name) for name in plain} | _effect(row)


def _effect(row: LessonRow | LessonEvidence) -> dict[str, Any]:
    if row.effect_log is None or row.effect_low is None or row.effect_high is None:
        return {"effect": None, "effect_ci95": None}
    return {"effect": math.exp(row.effect_log), "effect_ci95": (math.exp(row.effect_low), math.exp(row.effect_high))}


def uplift_of(session: Session, limit: int) -> wire.Uplift:
    """What retrieval was worth, and the items that came up most often."""
    arms = uplift.item_arms(session)
    often = sorted(arms, key=lambda item: (-_came_up(arms[item]), item))[:limit]
    named, retired = uplift.titles_of(session, often), uplift.retirements(session)
    items = [
        wire.ItemLift.model_validate(
            {
                **_lift(arms[item]),
                "id": item,
                "kind": named[item][0],
                "title": named[item][1],
                "retired": retired[item].reason if item in retired else None,
            }
        )
        for item in often
    ]
    return wire.Uplift(overall=wire.Lift.model_validate(_lift(uplift.overall_arms(session))), items=items)


def _came_up(arms: uplift.Arms) -> int:
    return arms.shown.proposals + arms.withheld.proposals


def _lift(arms: uplift.Arms) -> dict[str, Any]:
    found = lift(arm_of(arms.shown), arm_of(arms.withheld))
    return {
        "shown": _group(found.shown),
        "withheld": _group(found.withheld),
        "correctness": _difference(found.correctness),
        "gained": _difference(found.gained),
        "cost_usd": _difference(found.cost_usd),
    }


def _group(arm: Arm) -> dict[str, Any]:
    return {
        "proposals": arm.proposals,
        "correct": arm.correct,
        "gained": arm.gained.mean if arm.gained.n else None,
        "cost_usd": arm.cost_usd.mean if arm.cost_usd.n else None,
    }


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {"estimate": difference.estimate, "ci95": (difference.low, difference.high)}
