"""What earlier searches taught: looked up as a proposal would find it, listed, and what telling it was worth."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from api import knowledge
from api.deps import ServicesDep, StoreDep
from api.errors import FieldError, invalid
from api.knowledge_schemas import FoundItems, LessonStateWord
from api.pages.frame import render
from api.paging import Cursor
from api.targets import is_hardware
from db.vocabulary import Language
from problems.catalog import bundled

PAGE_SIZE = 25
FOUND = 8
"""Of each kind, as many as one reads."""

router = APIRouter()

Words = Annotated[str, Query(max_length=2_000)]


@router.get("/knowledge")
async def show_knowledge(
    request: Request,
    services: ServicesDep,
    store: StoreDep,
    q: Words = "",
    hardware: Words = "cpu",
    language: Language = Language.CPP,
    problem: Words = "",
    state: LessonStateWord | None = None,
    cursor: Cursor = None,
) -> Response:
    """The answer to a question where there is one; below it every lesson."""
    asked = {"q": q, "hardware": hardware, "language": language.value, "problem": problem}
    errors: list[FieldError] = []
    found: FoundItems | None = None
    if not is_hardware(hardware):
        refused = invalid("?hardware", "is no hardware id: write cpu, or vendor and device such as nvidia-h100")
        errors = refused.errors
    elif q or problem:
        found = await knowledge.look_up(services, store, hardware, language, q, problem or None, limit=FOUND)
    page = await knowledge.list_lessons(request, Response(), store, state=state, limit=PAGE_SIZE, cursor=cursor)
    kept = {"state": state} if state is not None else {}
    following = {**kept, "cursor": page.next_cursor} if page.next_cursor else None
    return render(
        request,
        "knowledge.html.j2",
        asked=asked,
        errors=errors,
        found=found,
        problems=list(bundled()),
        languages=list(Language),
        lessons=page.data,
        state=state,
        first="/knowledge?" + urlencode(kept) if cursor is not None else None,
        following="/knowledge?" + urlencode(following) if following is not None else None,
    )


@router.get("/knowledge/lessons/{lesson_id}")
async def show_lesson(lesson_id: str, request: Request, store: StoreDep) -> Response:
    """One lesson with the candidates that speak for it and against it."""
    return render(request, "lesson.html.j2", lesson=await knowledge.show_lesson(lesson_id, store))


@router.get("/uplift")
async def show_uplift(request: Request, store: StoreDep) -> Response:
    """What retrieval was worth, overall and item by item."""
    return render(request, "uplift.html.j2", uplift=await knowledge.show_uplift(store))
