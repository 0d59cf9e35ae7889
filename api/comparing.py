"""/v1/candidates/{id}/compare/{other}: two candidates side by side, and the diff of their sources."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Response
from sqlalchemy.orm import Session

from api import service_examples as examples
from api.candidate_views import candidate_view
from api.comparison_schemas import Comparison, Ratio, Timing, WorkloadPair
from api.deps import StoreDep, known_parameters
from api.errors import NoSource, UnknownCandidate
from api.negotiation import negotiate
from api.openapi import answers, example
from db import jobs, listing
from db.listing import CandidateRow
from db.models import Job

DIFF = "text/x-diff"
LONGEST_LINES = 20_000
"""Of both sources together: a diff of more takes seconds of a processor that others wait for."""

router = APIRouter(tags=["candidates"], dependencies=[Depends(known_parameters)])

_COMPARED = example("Both, and what lies between them", examples.COMPARISON)
_COMPARED["content"] |= {DIFF: {"example": examples.COMPARISON["diff"]}}


@dataclass(frozen=True, slots=True)
class _Side:
    """A candidate with its job."""

    row: CandidateRow
    job: Job


@router.get(
    "/v1/candidates/{candidate_id}/compare/{other_id}",
    summary="Compare two candidates",
    response_model=Comparison,
    responses=answers({200: _COMPARED}, UnknownCandidate, NoSource),
)
async def compare_candidates(
    candidate_id: str, other_id: str, store: StoreDep, accept: Annotated[str | None, Header()] = None
) -> Any:
    """Speedups, intervals and timings of each workload side by side; with `Accept: text/x-diff` just the diff.

    They may be of different jobs. Speedups of different problems or targets have no ratio.
    """
    first, second = await store.read(_sides, candidate_id, other_id)
    diff = await asyncio.to_thread(_diff, first.row, second.row)
    if negotiate(accept, "application/json", DIFF) == DIFF:
        if diff is None:
            raise NoSource("There is no diff: one of the two has no source, or they are very long.")
        return Response(diff, media_type=f"{DIFF}; charset=utf-8", headers={"Vary": "Accept"})
    return _comparison(first, second, diff)


def _sides(session: Session, *candidate_ids: str) -> list[_Side]:
    sides = []
    for candidate_id in candidate_ids:
        row = listing.get_candidate(session, candidate_id)
        if row is None:
            raise UnknownCandidate(f"{UnknownCandidate.default_detail()} Not known: {candidate_id}")
        sides.append(_Side(row, jobs.fetch_job(session, row.candidate.job_id)))
    return sides


def _comparison(first: _Side, second: _Side, diff: str | None) -> Comparison:
    notes = list(_obstacles(first, second))
    one, two = candidate_view(first.row), candidate_view(second.row)
    ratio = None if notes else _ratio(one, two)
    if first.job.id != second.job.id:
        notes.append("they were judged in different jobs, with inputs of different seeds")
    return Comparison(
        first=one,
        second=two,
        ratio=ratio,
        workloads=_pairs(first.row, second.row, comparable=ratio is not None),
        environment=_differences(first.row, second.row),
        notes=notes,
        diff=diff,
    )


def _obstacles(first: _Side, second: _Side) -> Iterator[str]:
    """Why their speedups have no ratio."""
    if first.job.problem_hash != second.job.problem_hash:
        yield f"they are for different problems: {first.job.problem_name} and {second.job.problem_name} (by source)"
    if first.job.hardware != second.job.hardware:
        yield f"they are for different hardware: {first.job.hardware} and {second.job.hardware}"
    for name, side in (("first", first), ("second", second)):
        found = side.row.evaluation
        if found is None:
            yield f"the {name} was not judged: it is {side.row.candidate.state}"
        elif found.verdict != "ok":
            yield f"the {name} was not accepted: its verdict is {found.verdict}"
        elif found.speedup is None:
            yield f"the {name} was not timed"


def _ratio(first: Any, second: Any) -> Ratio | None:
    if not first.speedup or second.speedup is None:
        return None
    low = high = None
    if first.ci95 and second.ci95 and min(first.ci95) > 0:
        low, high = second.ci95[0] / first.ci95[1], second.ci95[1] / first.ci95[0]
    clear = low is not None and high is not None and not low <= 1 <= high
    return Ratio(value=second.speedup / first.speedup, low=low, high=high, clear=clear)


def _pairs(first: CandidateRow, second: CandidateRow, *, comparable: bool) -> list[WorkloadPair]:
    one, two = _timings(first), _timings(second)
    return [
        WorkloadPair(
            name=name,
            first=one.get(name),
            second=two.get(name),
            ratio=_ratio(one[name], two[name]) if comparable and name in one and name in two else None,
        )
        for name in dict.fromkeys([*one, *two])
    ]


def _timings(row: CandidateRow) -> dict[str, Timing]:
    report = row.evaluation.report if row.evaluation else {}
    fields = tuple(Timing.model_fields)
    return {str(each["name"]): Timing(**{f: each.get(f) for f in fields}) for each in report.get("workloads") or []}


def _differences(first: CandidateRow, second: CandidateRow) -> dict[str, tuple[Any, Any]]:
    one, two = _environment(first), _environment(second)
    if not one or not two:
        return {}
    keys = sorted({*one, *two})
    return {key: (one.get(key), two.get(key)) for key in keys if one.get(key) != two.get(key)}


def _environment(row: CandidateRow) -> Mapping[str, Any]:
    return row.evaluation.environment if row.evaluation else {}


def _diff(first: CandidateRow, second: CandidateRow) -> str | None:
    if first.candidate.source is None or second.candidate.source is None:
        return None
    one, two = (row.candidate.source.splitlines() for row in (first, second) if row.candidate.source is not None)
    if len(one) + len(two) > LONGEST_LINES:
        return None
    lines = difflib.unified_diff(one, two, first.candidate.id, second.candidate.id, lineterm="")
    return "".join(f"{line}\n" for line in lines)
