"""/v1/jobs/{id}/certificate: the champion's certificate, as the document that was signed with its hash or as a page."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Response
from sqlalchemy.orm import Session

from api import examples
from api.deps import StoreDep, known_parameters
from api.errors import NoCertificate, UnknownJob
from api.negotiation import negotiate
from api.openapi import answers, example
from db import jobs
from db.certificates import job_certificate
from db.models import Certificate, Job
from db.vocabulary import JobState

HTML = "text/html"
# The page quotes names and sources of strangers. It escapes them; should it ever fail to, nothing of theirs runs.
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"

router = APIRouter(tags=["candidates"], dependencies=[Depends(known_parameters)])

_CERTIFICATE = example("The certificate, or the document that says why there is none", examples.CERTIFICATE)
_CERTIFICATE["content"] |= {HTML: {"example": "<!doctype html>..."}}


@router.get(
    "/v1/jobs/{job_id}/certificate",
    summary="Take the champion's certificate",
    response_class=Response,
    responses=answers({200: _CERTIFICATE}, UnknownJob, NoCertificate),
)
async def show_certificate(job_id: str, store: StoreDep, accept: Annotated[str | None, Header()] = None) -> Response:
    """Every check with its figures, as JSON whose `sha256` can be checked; with `Accept: text/html` as a page.

    Of a job whose finalists were all refused it is the last refusal: `certified` is then false.
    """
    certificate = await store.read(_certificate, job_id)
    headers = {"Vary": "Accept"}
    if negotiate(accept, "application/json", HTML) == HTML:
        headers["Content-Security-Policy"] = _PAGE_POLICY
        return Response(certificate.page, media_type=f"{HTML}; charset=utf-8", headers=headers)
    # As ASCII: a source may hold lone surrogates, which are JSON but no UTF-8.
    return Response(json.dumps(certificate.document), media_type="application/json", headers=headers)


def _certificate(session: Session, job_id: str) -> Certificate:
    job = jobs.get_job(session, job_id)
    if job is None:
        raise UnknownJob
    certificate = job_certificate(session, job)
    if certificate is None:
        raise NoCertificate(_why_none(job))
    return certificate


def _why_none(job: Job) -> str:
    if not job.certify:
        return "There is none: this job was submitted with certify=false."
    if JobState(job.state).terminal:
        why = "was not certified (see the job's events)" if job.best_candidate_id else "found no verified kernel"
        return f"There will be none: this job ended ({job.stop_reason}) and {why}."
    after = f"GET /v1/jobs/{job.id}?wait=30 tells when that changes."
    if job.stop_reason is not None:
        return f"The search has ended ({job.stop_reason}) and its champion is being certified. {after}"
    return f"The champion is certified when the search has ended; it is {job.state} now. {after}"
