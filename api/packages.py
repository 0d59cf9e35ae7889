"""/v1/jobs/{id}/package and /v1/candidates/{id}/package: a certified kernel as a package that pip installs."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Response
from sqlalchemy.orm import Session

from api import examples
from api.deps import StoreDep, known_parameters
from api.errors import NoBestYet, NoCertificate, NotPackable, UnknownCandidate, UnknownJob, invalid
from api.negotiation import negotiate
from api.openapi import answers, example
from api.packaging import Archive, CannotPackage, Package, Winner, make_package, sdist, wheel
from db import jobs, listing
from db.certificates import candidate_certificate
from db.models import Problem

GZIP, ZIP = "application/gzip", "application/zip"
MAX_KERNELS = 8

router = APIRouter(tags=["candidates"], dependencies=[Depends(known_parameters)])

Format = Annotated[
    Literal["sdist", "wheel"] | None,
    Query(description="Left out: what Accept says, application/gzip (sdist) or application/zip (wheel); else sdist."),
]
Also = Annotated[
    list[str] | None,
    Query(
        max_length=MAX_KERNELS - 1,
        description="Further jobs or candidates of the same problem, for other hardware say, that go into the package.",
    ),
]
_PACKAGE = example("The source distribution, or the wheel", examples.PACKAGE, GZIP)
_PACKAGE["content"] |= {ZIP: {"example": examples.PACKAGE}}
_ERRORS = (UnknownJob, UnknownCandidate, NoBestYet, NoCertificate, NotPackable)


@router.get(
    "/v1/jobs/{job_id}/package",
    summary="Take a job's best kernel as a pip-installable package",
    response_class=Response,
    responses=answers({200: _PACKAGE}, *_ERRORS),
)
async def package_job(
    job_id: str,
    store: StoreDep,
    format: Format = None,
    also: Also = None,
    accept: Annotated[str | None, Header()] = None,
) -> Response:
    """A custom op with the reference as its fallback, the certificate and tests inside; the same bytes every time.

    `curl -OJ` saves it under its name, and `pip install` takes that file.
    """
    package = await store.read(_package, job_id, tuple(also or ()))
    return await _answer(package, format, accept)


@router.get(
    "/v1/candidates/{candidate_id}/package",
    summary="Take a certified candidate as a pip-installable package",
    response_class=Response,
    responses=answers({200: _PACKAGE}, *_ERRORS),
)
async def package_candidate(
    candidate_id: str,
    store: StoreDep,
    format: Format = None,
    also: Also = None,
    accept: Annotated[str | None, Header()] = None,
) -> Response:
    """As of a job, for a candidate that has a certificate of its own."""
    package = await store.read(_package, candidate_id, tuple(also or ()))
    return await _answer(package, format, accept)


async def _answer(package: Package, format: str | None, accept: str | None) -> Response:
    media = {"sdist": GZIP, "wheel": ZIP}[format] if format else negotiate(accept, GZIP, ZIP)
    pack = wheel if media == ZIP else sdist
    archive: Archive = await asyncio.to_thread(pack, package)
    headers = {"Content-Disposition": f'attachment; filename="{archive.name}"', "Vary": "Accept"}
    return Response(archive.data, media_type=media, headers=headers)


def _package(session: Session, first: str, also: tuple[str, ...]) -> Package:
    winner, problem_hash, problem_name = _winner(session, first)
    winners = [winner]
    for place, other in enumerate(dict.fromkeys(also)):
        try:
            more, their_hash, _name = _winner(session, other)
        except _ERRORS as error:
            raise invalid("?also", f"{other}: {error}") from error
        if their_hash != problem_hash:
            raise invalid("?also", f"{other} (number {place + 1}) is for another problem than {first}")
        if more.candidate_id not in {each.candidate_id for each in winners}:
            winners.append(more)
    source = session.get_one(Problem, problem_hash).source
    try:
        return make_package(problem_name, source, winners)
    except CannotPackage as error:
        raise NotPackable(str(error)) from error


def _winner(session: Session, id: str) -> tuple[Winner, str, str]:
    """(a certified candidate, or the best of a job; hash and name of its problem)."""
    if not id.startswith("cand_"):
        job = jobs.get_job(session, id)
        if job is None:
            raise UnknownJob
        if job.best_candidate_id is None:
            raise NoBestYet
        id = job.best_candidate_id
    row = listing.get_candidate(session, id)
    if row is None:
        raise UnknownCandidate
    job = jobs.fetch_job(session, row.candidate.job_id)
    certificate = candidate_certificate(session, id)
    if certificate is None:
        raise NoCertificate(
            f"{id} has none, and only certified kernels are packaged: see GET /v1/jobs/{job.id}/certificate"
        )
    if not certificate.certified:
        raise NotPackable(f"{id} was refused its certificate: {certificate.reason}")
    winner = Winner(id, job.hardware, job.language, certificate.document, certificate.page)
    return winner, job.problem_hash, job.problem_name
