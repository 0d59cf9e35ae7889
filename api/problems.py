"""/v1/problems: the bundled operations."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from api import examples
from api.deps import known_parameters
from api.errors import UnknownProblem
from api.openapi import answers, example
from api.problem_schemas import ProblemList, ProblemSource, outlined
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
