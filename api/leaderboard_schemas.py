"""Leaderboards on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.job_parts import Target
from api.job_views import ci95
from api.schemas import Resource, UtcTime
from db.leaderboard import Board as BoardRows
from db.vocabulary import Operator, Proposer, Verdict

_LIVE = "its job is still running: a best comes on the board when its job has ended"


class Place(Resource):
    """A champion. `certified` ones come first; the others ended jobs that asked for no certificate or could get none.

    `own_kernel_share` is what its job demanded: the least share of the device's time in the candidate's own kernels.
    """

    rank: int
    candidate_id: str
    job_id: str
    certified: bool
    speedup: float
    ci95: tuple[float, float] | None
    latency_us: float | None
    baseline: str | None
    operator: Operator
    proposer: Proposer
    model: str | None
    own_kernel_share: float
    found_at: UtcTime
    links: dict[str, str]


class LeftOut(Resource):
    """A candidate that was measured faster than the first and is not on the board: the verdict and why."""

    candidate_id: str
    job_id: str
    speedup: float
    verdict: Verdict
    why: str
    links: dict[str, str]


class Board(Resource):
    """The champions for one source of the problem on one target. Only within a board is a speedup comparable.

    `bundled`: the source is the one that the service knows under this name now.
    """

    hash: str
    bundled: bool
    target: Target
    entries: list[Place]
    left_out: list[LeftOut]


class Leaderboard(Resource):
    """All boards of a problem, the bundled source's first."""

    problem: str
    boards: list[Board]


def board_view(board: BoardRows, bundled_hash: str | None) -> Board:
    """The resource of one board."""
    return Board(
        hash=board.key.problem_hash,
        bundled=board.key.problem_hash == bundled_hash,
        target=Target(hardware=board.key.hardware, language=board.key.language),
        entries=[_place(row) for row in board.entries],
        left_out=[_left_out(row) for row in board.left_out],
    )


def _place(row: Mapping[str, Any]) -> Place:
    return Place(
        rank=row["place"],
        found_at=row["created_at"],
        ci95=ci95(row["ci95_low"], row["ci95_high"]),
        links=_links(row) | {"certificate": f"/v1/jobs/{row['job_id']}/certificate"},
        **{name: row[name] for name in _SAME},
    )


def _left_out(row: Mapping[str, Any]) -> LeftOut:
    return LeftOut(
        candidate_id=row["candidate_id"],
        job_id=row["job_id"],
        speedup=row["speedup"],
        verdict=Verdict(row["verdict"]),
        why=_LIVE if row["live"] else row["reason"] or f"the judge's verdict is {row['verdict']}",
        links=_links(row),
    )


_SAME = (
    "candidate_id",
    "job_id",
    "certified",
    "speedup",
    "latency_us",
    "baseline",
    "operator",
    "proposer",
    "model",
    "own_kernel_share",
)


def _links(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "candidate": f"/v1/candidates/{row['candidate_id']}",
        "source": f"/v1/candidates/{row['candidate_id']}/source",
        "job": f"/v1/jobs/{row['job_id']}",
    }
