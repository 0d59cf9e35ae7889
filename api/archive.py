"""/v1/candidates: every candidate of the service, page by page, for whoever builds a data set of them.

Pages and no stream: each answer is whole or an error, a broken connection costs one page that is asked for again, no
transaction is open between two of them, and the OpenAPI document says what comes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.orm import Session

from api import archive_examples as examples
from api.archive_schemas import ArchivedCandidate, ArchivedCertificate, ArchivePage
from api.candidate_views import candidate_view
from api.deps import StoreDep, known_parameters
from api.errors import invalid
from api.job_parts import ProblemRef, Target
from api.jobs import Short
from api.openapi import answers, example
from api.paging import Cursor, link_next
from api.schemas import TimeIn
from db import archive
from db.archive import ArchiveFilter, ArchiveRow
from db.paging import InvalidCursor
from db.vocabulary import Language, Verdict

router = APIRouter(prefix="/v1/candidates", tags=["candidates"], dependencies=[Depends(known_parameters)])

ManyLimit = Annotated[int, Query(ge=1, le=1000, description="at most this many")]
Include = Annotated[
    list[Literal["source", "workloads", "profile"]] | None, Query(description="what is large; may be repeated")
]

_LOG_CHARS = 2_000


@router.get(
    "",
    summary="List all candidates of the service",
    responses=answers({200: example("A page", examples.ARCHIVE_PAGE)}),
)
async def list_all_candidates(
    request: Request,
    response: Response,
    store: StoreDep,
    job: Short | None = None,
    problem: Short | None = None,
    hardware: Short | None = None,
    language: Language | None = None,
    verdict: Verdict | None = None,
    created_after: Annotated[TimeIn | None, Query(examples=["2026-11-21T00:00:00Z"])] = None,
    include: Include = None,
    limit: ManyLimit = 200,
    cursor: Cursor = None,
) -> ArchivePage:
    """Oldest first. Follow `next_cursor` until it is null: each candidate that was stored before comes once."""
    where = ArchiveFilter(job, problem, hardware, language, verdict, created_after)
    page = await store.read(_page, where, include or [], limit, cursor)
    link_next(request, response, page.next_cursor)
    return page


def _page(
    session: Session, where: ArchiveFilter, parts: list[Literal["source", "workloads", "profile"]], limit: int,
    cursor: str | None,
) -> ArchivePage:  # fmt: skip
    try:
        page = archive.list_archive(session, where, parts, limit=limit, cursor=cursor)
    except InvalidCursor as error:
        raise invalid("?cursor", str(error)) from error
    data = [archived(row) for row in page.items]
    return ArchivePage(data=data, next_cursor=page.next_cursor, has_more=page.has_more)


def archived(row: ArchiveRow) -> ArchivedCandidate:
    """The resource of a row."""
    candidate, evaluation, job = row.found.candidate, row.found.evaluation, row.job
    certificate = None
    if row.certificate_id is not None:
        certificate = ArchivedCertificate(id=row.certificate_id, certified=bool(row.certified))
    more: dict[str, Any] = {
        "problem": ProblemRef(name=job.problem_name, hash=job.problem_hash),
        "target": Target(hardware=job.hardware, language=job.language),
        "labels": job.labels,
        "retrieval": candidate.retrieval,
        "prompt_version": row.prompt_version,
        "tokens_in": row.tokens_in,
        "tokens_out": row.tokens_out,
        "source_hash": candidate.source_hash,
        "source_bytes": row.source_bytes,
        "source": row.source,
        "baselines_us": row.reported.get("baselines_us") or {},
        "speedups": row.reported.get("speedups") or {},
        "max_relative_error": _largest_error(row.reported.get("checks") or []),
        "log": _end_of(row.reported.get("log")),
        "gpu_s": evaluation.gpu_s if evaluation else None,
        "wall_s": evaluation.wall_s if evaluation else None,
        "environment": evaluation.environment if evaluation else None,
        "certificate": certificate,
        "workloads": row.reported.get("workloads"),
        "profile": row.reported.get("profile"),
    }
    return ArchivedCandidate.model_validate(dict(candidate_view(row.found)) | more)


def _largest_error(checks: list[dict[str, Any]]) -> float | None:
    """Over all comparisons with the truth. An error that is not finite is stored as a string, and no number."""
    found = [(check.get("figures") or {}).get("error") for check in checks]
    return max((error for error in found if isinstance(error, int | float)), default=None)


def _end_of(log: Any) -> str | None:
    return log[-_LOG_CHARS:] if isinstance(log, str) else None
