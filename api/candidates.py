"""/v1/candidates and a job's candidates: what was tried, what was found, and the best of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from sqlalchemy.orm import Session

from api import examples
from api.candidate_schemas import Candidate, CandidateDetail, CandidatePage
from api.candidate_views import candidate_detail, candidate_view
from api.deps import StoreDep, known_parameters
from api.errors import NoBestYet, NoLog, NoSource, UnknownCandidate, UnknownJob, invalid
from api.negotiation import negotiate
from api.openapi import answers, example
from api.paging import Cursor, Limit, link_next
from db import generated, jobs, listing, tunings
from db.paging import InvalidCursor
from db.vocabulary import CandidateState, Verdict

PYTHON = "text/x-python"
TEXT = "text/plain"

router = APIRouter(tags=["candidates"], dependencies=[Depends(known_parameters)])

_SOURCE = example("The source", examples.SOURCE, PYTHON)
_BEST = example("The best candidate", examples.CANDIDATE_DETAIL)
_BEST["content"] |= {PYTHON: {"example": examples.SOURCE}, TEXT: {"example": examples.SOURCE}}


@router.get(
    "/v1/jobs/{job_id}/candidates",
    summary="List a job's candidates",
    responses=answers({200: example("A page", examples.CANDIDATE_PAGE)}, UnknownJob),
)
async def list_candidates(
    job_id: str,
    request: Request,
    response: Response,
    store: StoreDep,
    verdict: Verdict | None = None,
    state: CandidateState | None = None,
    sort: Annotated[Literal["ordinal", "-ordinal", "-speedup"], Query(description="-: largest first")] = "ordinal",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> CandidatePage:
    """In the order they were made, or the fastest first; those without a speedup then come last."""
    page = await store.read(_page, job_id, verdict=verdict, state=state, sort=sort, limit=limit, cursor=cursor)
    link_next(request, response, page.next_cursor)
    return page


@router.get(
    "/v1/jobs/{job_id}/best",
    summary="Take a job's best kernel",
    response_model=CandidateDetail,
    responses=answers({200: _BEST}, UnknownJob, NoBestYet),
)
async def show_best(job_id: str, store: StoreDep, accept: Annotated[str | None, Header()] = None) -> Any:
    """The best verified candidate with its evidence; with `Accept: text/x-python` (or text/plain) just its source."""
    best = await store.read(_best, job_id)
    wanted = negotiate(accept, "application/json", PYTHON, TEXT)
    if wanted == "application/json":
        return best
    return Response(_source(best), media_type=f"{wanted}; charset=utf-8", headers={"Vary": "Accept"})


@router.get(
    "/v1/candidates/{candidate_id}",
    summary="Look at a candidate",
    responses=answers({200: example("The candidate", examples.CANDIDATE_DETAIL)}, UnknownCandidate),
)
async def show_candidate(candidate_id: str, store: StoreDep) -> CandidateDetail:
    """With its source and the judge's whole report."""
    return await store.read(_candidate, candidate_id)


@router.get(
    "/v1/candidates/{candidate_id}/source",
    summary="Take a candidate's source",
    response_class=Response,
    responses=answers({200: _SOURCE}, UnknownCandidate, NoSource),
)
async def show_source(candidate_id: str, store: StoreDep) -> Response:
    """The Python file as text."""
    candidate = await store.read(_candidate, candidate_id)
    return Response(_source(candidate), media_type=f"{PYTHON}; charset=utf-8")


@router.get(
    "/v1/candidates/{candidate_id}/log",
    summary="Read what the compiler and the runner said",
    response_class=Response,
    responses=answers({200: example("The log", examples.LOG, TEXT)}, UnknownCandidate, NoLog),
)
async def show_log(candidate_id: str, store: StoreDep) -> Response:
    """The tail of it, as text."""
    candidate = await store.read(_candidate, candidate_id)
    return Response(_log(candidate), media_type=f"{TEXT}; charset=utf-8")


def _page(session: Session, /, job_id: str, **options: Any) -> CandidatePage:
    if jobs.get_job(session, job_id) is None:
        raise UnknownJob
    try:
        page = listing.list_candidates(session, job_id, **options)
    except InvalidCursor as error:
        raise invalid("?cursor", str(error)) from error
    data: list[Candidate] = [candidate_view(row) for row in page.items]
    return CandidatePage(data=data, next_cursor=page.next_cursor, has_more=page.has_more)


def _best(session: Session, job_id: str) -> CandidateDetail:
    job = jobs.get_job(session, job_id)
    if job is None:
        raise UnknownJob
    if job.best_candidate_id is None:
        raise NoBestYet
    return _candidate(session, job.best_candidate_id)


def _candidate(session: Session, candidate_id: str) -> CandidateDetail:
    row = listing.get_candidate(session, candidate_id)
    if row is None:
        raise UnknownCandidate
    twin = listing.get_candidate(session, row.candidate.duplicate_of) if row.candidate.duplicate_of else None
    tuning = tunings.tuning_of(session, candidate_id)
    return candidate_detail(row, twin, tuning, generated.listed(session, candidate_id))


def _source(candidate: CandidateDetail) -> str:
    if candidate.source is None:
        raise NoSource
    return candidate.source


def _log(candidate: CandidateDetail) -> str:
    if candidate.report is None:
        raise NoLog
    return str(candidate.report.get("log") or "")
