"""Tools that look things up: problems, leaderboard, search."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cli import show
from cli.client import Language
from cli.client.types import Board
from cli.mcp.jobs import Hardware
from cli.mcp.results import Knowledge, Known, Leaders, Placed, ProblemLine, ProblemLines
from cli.mcp.session import Tools, client_of, explained
from cli.mcp.words import MAX_LOG, foreign, one_line


@explained
async def problems(ctx: Tools) -> ProblemLines:
    """List the bundled problems, whose names `submit`, `evaluate` and `leaderboard` take. Read the resource
    kernelwright://problems/{name} for the source of one."""
    found = await client_of(ctx).problems()
    lines = [
        ProblemLine(
            name=each["name"],
            op_family=each["op_family"],
            summary=each["summary"],
            workloads=[workload["name"] for workload in each["workloads"]],
            backward=each["backward"],
        )
        for each in found
    ]
    return ProblemLines(problems=lines)


@explained
async def leaderboard(
    ctx: Tools,
    problem: Annotated[str, Field(description="the name of a problem")],
    hardware: Annotated[str | None, Field(description="only on this")] = None,
    language: Language | None = None,
) -> Leaders:
    """Show who is fastest at a problem, for each of its sources and targets: what a new search has to beat."""
    found = await client_of(ctx).leaderboard(problem, hardware=hardware, language=language)
    return Leaders(
        problem=found["problem"],
        places=[place for board in found["boards"] for place in _places(board)],
        left_out=[
            f"{each['candidate_id']}, {show.speedup(each['speedup'])}: {each['verdict']}, {one_line(each['why'])}"
            for board in found["boards"]
            for each in board["left_out"]
        ],
    )


@explained
async def search(
    ctx: Tools,
    hardware: Hardware,
    language: Language,
    query: Annotated[str | None, Field(description="words, code or an error message")] = None,
    problem: Annotated[str | None, Field(description="for this bundled problem")] = None,
    op_family: str | None = None,
    limit: Annotated[int, Field(ge=1, le=20)] = 5,
) -> Knowledge:
    """Look up certified kernels, confirmed lessons and facts for a task, as earlier searches left them. Search here
    before you write a kernel, and again with the error message when one fails."""
    found = await client_of(ctx).knowledge(
        hardware, language, q=query, problem=problem, op_family=op_family, limit=limit
    )
    items = [
        Known(
            id=each["id"],
            kind=each["kind"],
            score=each["score"],
            title_text=one_line(each["title"]) or "",
            item_text=foreign(each["text"], MAX_LOG, "text"),
        )
        for each in found
    ]
    return Knowledge(items=items)


def _places(board: Board) -> list[Placed]:
    return [
        Placed(
            rank=each["rank"],
            hardware=board["target"]["hardware"],
            language=board["target"]["language"],
            source_hash=board["hash"][:8],
            candidate_id=each["candidate_id"],
            speedup=each["speedup"],
            ci95=each["ci95"],
            latency_us=each["latency_us"],
            certified=each["certified"],
            by=each["model"] or each["proposer"],
        )
        for each in board["entries"]
    ]
