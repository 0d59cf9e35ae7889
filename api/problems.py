"""/v1/problems: the bundled operations, and the leaderboards of all that were ever searched."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field
from sqlalchemy.orm import Session

from api import examples, service_examples
from api.deps import StoreDep, known_parameters
from api.errors import UnknownProblem
from api.leaderboard_schemas import Leaderboard, board_view
from api.openapi import answers, example
from api.problem_schemas import ProblemList, ProblemSource, outlined
from api.schemas import Text
from db import leaderboard
from db.vocabulary import Language
from problems.catalog import bundled

router = APIRouter(prefix="/v1/problems", tags=["problems"], dependencies=[Depends(known_parameters)])


_ALL = example("All of them", {"data": [examples.PROBLEM]})


@router.get("", summary="List the bundled problems", responses=answers({200: _ALL}))
async def list_problems() -> ProblemList:
    """Each can be named in a job's `problem`."""
    return ProblemList(data=[outlined(outline) for outline in bundled().values()])


@router.get(
    "/{name}",
    summary="Look at a bundled problem",
    responses=answers({200: example("With its source", examples.PROBLEM_SOURCE)}, UnknownProblem),
)
async def show_problem(name: str) -> ProblemSource:
    """With its source: a pattern for a problem of your own."""
    outline = bundled().get(name)
    if outline is None:
        raise UnknownProblem(f'no bundled problem is called "{name}"; there are {", ".join(bundled())}')
    return ProblemSource(**dict(outlined(outline)), source=outline.source)


@router.get(
    "/{name}/leaderboard",
    summary="Who is fastest",
    responses=answers({200: example("The boards", service_examples.LEADERBOARD)}, UnknownProblem),
)
async def show_leaderboard(
    name: Text,
    store: StoreDep,
    hardware: Annotated[Text, Field(max_length=256)] | None = None,
    language: Language | None = None,
    limit: Annotated[int, Query(ge=1, le=100, description="places per board")] = 20,
) -> Leaderboard:
    """The champions of ended jobs for each source and target, and why a faster candidate is not among them.

    The name may also be that of a problem of your own; each source that was searched under it has its own boards.
    """
    return await store.read(_leaderboard, name, hardware, language, limit)


def _leaderboard(
    session: Session, name: str, hardware: str | None, language: Language | None, limit: int
) -> Leaderboard:
    known = bundled().get(name)
    if known is None and not leaderboard.is_searched(session, name):
        raise UnknownProblem(
            f'no problem called "{name}" was ever searched; the bundled ones are {", ".join(bundled())}'
        )
    own = known.source_hash if known else None
    found = leaderboard.leaderboards(session, name, hardware=hardware, language=language, places=limit)
    boards = sorted((board_view(each, own) for each in found), key=lambda board: not board.bundled)
    return Leaderboard(problem=name, boards=boards)
