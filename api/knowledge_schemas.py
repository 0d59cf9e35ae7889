"""The knowledge base on the wire: items found, lessons with their evidence, and what showing them was worth."""

from __future__ import annotations

from typing import Literal

from api.schemas import Resource, UtcTime
from db.vocabulary import ItemKind, LessonKind, LessonState, Says

Interval = tuple[float, float]


class FoundItem(Resource):
    """An item that fits the question: its place among its kind, and its rank in each part that ranked it."""

    id: str
    kind: ItemKind
    rank: int
    score: float
    ranks: dict[str, int]
    title: str
    text: str


class FoundItems(Resource):
    data: list[FoundItem]


class RecalledItem(FoundItem):
    """An item that came up for a candidate; `shown` false: the dice withheld it, to be measured against."""

    shown: bool


class Recalled(Resource):
    """What came up for a candidate's proposal. `retrieval` is null where nobody looked, as for the built-in one."""

    retrieval: bool | None
    data: list[RecalledItem]


class Lesson(Resource):
    """A rule learned. Only `confirmed` ones are told to proposers; counts are of independent jobs.

    `effect` is the factor in speed that a change had, pooled over jobs, with its 95 % interval.
    """

    id: str
    kind: LessonKind
    state: LessonState
    language: str
    hardware: str
    op_family: str | None
    bound: str | None
    title: str
    text: str
    supporting: int
    opposing: int
    evidence: int
    effect: float | None
    effect_ci95: Interval | None
    retired: str | None
    last_confirmed: UtcTime | None
    created_at: UtcTime


class Evidence(Resource):
    """One candidate's word on a lesson."""

    candidate_id: str
    parent_id: str | None
    job_id: str
    says: Says
    effect: float | None
    effect_ci95: Interval | None
    note: str | None
    created_at: UtcTime


class LessonDetail(Lesson):
    """A lesson with all evidence on it."""

    evidence_rows: list[Evidence]


class LessonPage(Resource):
    data: list[Lesson]
    next_cursor: str | None
    has_more: bool


class Group(Resource):
    """Proposals of one group: how many, how many of them correct at once, what they gained and cost on average.

    `gained` is in log-speedup over the parent, a failure counting as 0; `cost_usd` of those whose price is known.
    """

    proposals: int
    correct: int
    gained: float | None
    cost_usd: float | None


class Difference(Resource):
    """Shown minus withheld, with the 95 % interval."""

    estimate: float
    ci95: Interval


class Lift(Resource):
    """What showing something was worth; a difference is null while there is too little to say."""

    shown: Group
    withheld: Group
    correctness: Difference | None
    gained: Difference | None
    cost_usd: Difference | None


class ItemLift(Lift):
    """The lift of one item among the proposals for which it came up; `retired` says why it is shown no more."""

    id: str
    kind: ItemKind
    title: str
    retired: str | None


class Uplift(Resource):
    """Proposals with retrieval against those that the dice kept without, then item by item, most often up first."""

    overall: Lift
    items: list[ItemLift]


LessonStateWord = Literal["tentative", "confirmed", "quarantined"]
LessonKindWord = Literal["change", "failure"]
