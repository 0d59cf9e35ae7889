"""A candidate: its source, what it changed, what the judge found, how fast it is, and how it was made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from api import candidates, knowledge, recording
from api.candidate_schemas import Candidate, CandidateDetail
from api.code_examples import NAMES
from api.deps import StoreDep
from api.pages import timings
from api.pages.code import changes, coloured
from api.pages.frame import render
from api.waiting import load_job

FEW = 40
"""Candidates that the comparison offers: the fastest."""

router = APIRouter()


@router.get("/candidates/{candidate_id}")
async def show_candidate(candidate_id: str, request: Request, store: StoreDep) -> Response:
    """Everything that is known of one candidate."""
    found = await candidates.show_candidate(candidate_id, store)
    job = await store.read(load_job, found.job_id)
    parents = [await candidates.show_candidate(each, store) for each in found.parents]
    proposal = await recording.show_proposal(candidate_id, store)
    recalled = await knowledge.show_recalled(candidate_id, store)
    fastest = await candidates.list_candidates(found.job_id, request, Response(), store, sort="-speedup", limit=FEW)
    lines, diffs = await asyncio.to_thread(_sources, found, parents, job.target.language)
    report = found.report or {}
    return render(
        request,
        "candidate.html.j2",
        found=found,
        job=job,
        parents=parents,
        lines=lines,
        diffs=diffs,
        checks=_checks(report.get("checks") or []),
        workloads=report.get("workloads") or [],
        plots=timings.of_report(report),
        profile=report.get("profile") or {},
        roofline=(report.get("profile") or {}).get("roofline") or {},
        log=report.get("log") or "",
        environment=report.get("environment") or {},
        stages=report.get("stages_s") or {},
        proposal=proposal,
        recalled=recalled,
        code_names=NAMES,
        others=_others(fastest.data, found, parents),
    )


def _sources(found: CandidateDetail, parents: Sequence[CandidateDetail], language: str) -> tuple[Any, Any]:
    """The coloured lines, and for each parent what changed since: work for a thread, they may be long."""
    if found.source is None:
        return [], []
    diffs = [(each, changes(each.source, found.source)) for each in parents if each.source is not None]
    return coloured(found.source, language), diffs


def _checks(checks: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """What failed, then what says how far values are off, then the rest."""
    passed = [check for check in checks if check["passed"]]
    return {
        "failed": [check for check in checks if not check["passed"]],
        "numerics": [check for check in passed if "threshold" in (check.get("figures") or {})],
        "others": [check for check in passed if "threshold" not in (check.get("figures") or {})],
    }


def _others(
    fastest: Sequence[Candidate], found: CandidateDetail, parents: Sequence[CandidateDetail]
) -> list[Candidate]:
    """Candidates of the job to compare with: its parents, then the fastest."""
    others = {each.id: each for each in (*parents, *fastest) if each.id != found.id and each.verdict is not None}
    return list(others.values())
