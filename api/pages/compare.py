"""Two candidates side by side: what differs in their sources, and what that did to their times."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from api import candidates
from api.deps import StoreDep
from api.pages import timings
from api.pages.code import changes
from api.pages.frame import render

router = APIRouter()


@router.get("/compare")
async def compare(request: Request, store: StoreDep, left: str, right: str) -> Response:
    """The candidates may be of two jobs, as long as both exist."""
    pair = [await candidates.show_candidate(each, store) for each in (left, right)]
    diff = await asyncio.to_thread(changes, pair[0].source or "", pair[1].source or "")
    names = [f"#{each.ordinal}" for each in pair]
    if names[0] == names[1]:
        names = ["left", "right"]
    rows = _side_by_side(*((each.report or {}).get("workloads") or [] for each in pair))
    return render(
        request,
        "compare.html.j2",
        pair=list(zip(names, pair, strict=True)),
        diff=diff,
        rows=rows,
        plots=[each for each in (_plot(name, both, names) for name, both in rows.items()) if each is not None],
    )


def _side_by_side(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> dict[str, list[dict[str, Any] | None]]:
    """By workload: what was measured of either."""
    rows: dict[str, list[dict[str, Any] | None]] = {}
    for place, workloads in enumerate((left, right)):
        for row in workloads:
            rows.setdefault(str(row["name"]), [None, None])[place] = row
    return rows


def _plot(workload: str, both: list[dict[str, Any] | None], names: list[str]) -> timings.Boxes | None:
    samples: dict[str, list[float]] = {}
    for name, row in zip(names, both, strict=True):
        measured: Mapping[str, list[float]] = (row or {}).get("samples_us") or {}
        samples |= {name: measured["candidate"]} if "candidate" in measured else {}
    return timings.boxes(workload, samples, names)
