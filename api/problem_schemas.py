"""Bundled problems on the wire."""

from __future__ import annotations

from typing import Any

from api.schemas import Resource
from problems.catalog import Outline


class WorkloadOutline(Resource):
    """One configuration that is judged; `device` says for which kind of hardware it is sized: cpu, gpu or any."""

    name: str
    device: str
    params: dict[str, Any]


class ProblemOutline(Resource):
    """A problem as the server reads it, without running it."""

    name: str
    hash: str
    summary: str
    op_family: str
    workloads: list[WorkloadOutline]
    backward: bool


class ProblemSource(ProblemOutline):
    """A problem with its source."""

    source: str


class ProblemList(Resource):
    data: list[ProblemOutline]


def outlined(outline: Outline) -> ProblemOutline:
    """The resource of a problem."""
    workloads = [WorkloadOutline(name=w.name, device=w.device, params=dict(w.params)) for w in outline.spec.workloads]
    return ProblemOutline(
        name=outline.name,
        hash=outline.source_hash,
        summary=outline.summary,
        op_family=outline.op_family,
        workloads=workloads,
        backward=outline.spec.backward,
    )
