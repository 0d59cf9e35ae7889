"""/v1/knowledge: what earlier searches taught, for whom it is looked up, and what knowing it was worth."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.orm import Session

from api import knowledge_examples as examples
from api import knowledge_views as views
from api.deps import ServicesDep, StoreDep, known_parameters
from api.errors import UnknownCandidate, UnknownLesson, UnknownProblem, invalid
from api.knowledge_schemas import (
    FoundItems,
    LessonDetail,
    LessonKindWord,
    LessonPage,
    LessonStateWord,
    Recalled,
    Uplift,
)
from api.openapi import answers, example
from api.paging import Cursor, Limit, link_next
from db import knowledge, knowledge_listing, uplift
from db.knowledge_listing import LessonFilter
from db.models import Candidate
from db.paging import InvalidCursor
from db.vocabulary import Language
from problems.catalog import bundled
from search.knowledge.asking import Question
from search.types import Operator

router = APIRouter(tags=["knowledge"], dependencies=[Depends(known_parameters)])

Bound = Literal["memory", "compute", "latency", "launch"]
Word = Annotated[str | None, Query(max_length=64, pattern=r"^[\w.-]+$")]

_FOUND = example("Of each kind, best first", examples.FOUND)


@router.get(
    "/v1/knowledge",
    summary="Look up what is known for a task",
    responses=answers({200: _FOUND}, UnknownProblem),
)
async def look_up(
    services: ServicesDep,
    store: StoreDep,
    hardware: Annotated[str, Query(max_length=64, pattern=r"^[\w.-]+$", examples=["nvidia-h100"])],
    language: Language,
    q: Annotated[str, Query(max_length=2_000, description="words, code or an error message")] = "",
    problem: Annotated[str | None, Query(description="a bundled problem, in place of words")] = None,
    op_family: Word = None,
    bound: Bound | None = None,
    limit: Annotated[int, Query(ge=1, le=50, description="at most this many of each kind")] = 5,
) -> FoundItems:
    """Certified kernels, confirmed lessons and facts, as a proposal would find them, with the ranks of each part."""
    question = Question(
        hardware=hardware,
        language=language,
        operator=Operator.SEED,
        text=q,
        title=q[:80],
        op_family=op_family,
        bound=bound,
        error_message=q,
    )
    if problem is not None:
        question = _for_problem(question, problem)
    return await store.read(views.found_items, question, limit, services.settings.embedding_model)


@router.get(
    "/v1/knowledge/lessons",
    summary="List lessons",
    responses=answers({200: example("Newest first", examples.LESSON_PAGE)}),
)
async def list_lessons(
    request: Request,
    response: Response,
    store: StoreDep,
    state: LessonStateWord | None = None,
    kind: LessonKindWord | None = None,
    language: Language | None = None,
    hardware: Word = None,
    op_family: Word = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> LessonPage:
    """Tentative and quarantined ones too; `hardware` is a family, such as `hopper` or `x86`."""
    where = LessonFilter(state, kind, language, hardware, op_family)
    page = await store.read(_lessons, where, limit, cursor)
    link_next(request, response, page.next_cursor)
    return page


@router.get(
    "/v1/knowledge/lessons/{lesson_id}",
    summary="Look at a lesson and its evidence",
    responses=answers({200: example("The lesson", examples.LESSON_DETAIL)}, UnknownLesson),
)
async def show_lesson(lesson_id: str, store: StoreDep) -> LessonDetail:
    """Each piece of evidence names the candidate, its parent and the job that it comes from."""
    return await store.read(_lesson, lesson_id)


@router.get(
    "/v1/knowledge/uplift",
    summary="See what retrieval is worth",
    responses=answers({200: example("With intervals", examples.UPLIFT)}),
)
async def show_uplift(store: StoreDep, limit: Limit = 50) -> Uplift:
    """Proposals that were shown something against those from which dice withheld it, overall and item by item."""
    return await store.read(views.uplift_of, limit)


@router.get(
    "/v1/candidates/{candidate_id}/knowledge",
    summary="See what came up for a candidate's proposal",
    responses=answers({200: example("In the prompt's order", examples.RECALLED)}, UnknownCandidate),
)
async def show_recalled(candidate_id: str, store: StoreDep) -> Recalled:
    """The texts are those of that moment; an item that is not `shown` was withheld, to be measured against."""
    return await store.read(_recalled, candidate_id)


def _for_problem(question: Question, name: str) -> Question:
    outline = bundled().get(name)
    if outline is None:
        raise UnknownProblem(f'no bundled problem is called "{name}"; there are {", ".join(bundled())}')
    return Question(
        hardware=question.hardware,
        language=question.language,
        operator=question.operator,
        text=outline.source,
        title=name,
        op_family=question.op_family or outline.op_family,
        bound=question.bound,
        problem_hash=outline.source_hash,
    )


def _lessons(session: Session, where: LessonFilter, limit: int, cursor: str | None) -> LessonPage:
    try:
        page = knowledge_listing.list_lessons(session, where, limit=limit, cursor=cursor)
    except InvalidCursor as error:
        raise invalid("?cursor", str(error)) from error
    retired = _retired(session)
    data = [views.lesson(row, retired) for row in page.items]
    return LessonPage(data=data, next_cursor=page.next_cursor, has_more=page.has_more)


def _lesson(session: Session, lesson_id: str) -> LessonDetail:
    found = knowledge_listing.get_lesson(session, lesson_id)
    if found is None:
        raise UnknownLesson
    row, evidence = found
    return views.lesson_detail(row, evidence, _retired(session))


def _recalled(session: Session, candidate_id: str) -> Recalled:
    candidate = session.get(Candidate, candidate_id)
    if candidate is None:
        raise UnknownCandidate
    return views.recalled(candidate.retrieval, knowledge.uses_of(session, candidate_id))


def _retired(session: Session) -> dict[str, str]:
    return {item_id: found.reason for item_id, found in uplift.retirements(session).items()}
