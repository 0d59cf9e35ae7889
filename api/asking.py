"""/v1/jobs/{id}/ask, /tell and /renew: an outside agent, a person or an offline batch as one of a job's proposers."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Response
from sqlalchemy.orm import Session

from api import recording_examples as examples
from api import telling
from api.asking_schemas import AskBody, Question, Questions, RenewBody, Renewed, TellBody, Told
from api.deps import StoreDep, known_parameters
from api.errors import (
    BodyTooLarge,
    BrokenJson,
    Invalid,
    JobEnded,
    NotAsking,
    NotJson,
    StaleToken,
    ToldBefore,
    UnknownJob,
    UnknownQuestion,
)
from api.openapi import answers, example
from db import asks, events, jobs
from db.vocabulary import Operator, Proposer

RETRY_AFTER_S: Final = 2
"""A question follows a verdict, and the quickest verdict takes about so long."""

router = APIRouter(prefix="/v1/jobs", tags=["ask/tell"], dependencies=[Depends(known_parameters)])

_BODY_ERRORS = (BrokenJson, BodyTooLarge, NotJson, Invalid)
_ASKED = {
    200: example("Questions, each with its prompt and a lease", examples.QUESTIONS),
    204: {"description": "Nothing is open now; Retry-After says when to ask again"},
}
_STALE = (UnknownJob, UnknownQuestion, JobEnded, StaleToken)


@router.post(
    "/{job_id}/ask",
    summary="Take open questions of a job",
    response_model=Questions,
    responses=answers(_ASKED, UnknownJob, JobEnded, NotAsking, *_BODY_ERRORS),
)
async def ask(job_id: str, store: StoreDep, body: Annotated[AskBody | None, Body()] = None) -> Any:
    """The job must have `ask/tell` among its models. Each question is yours until its lease runs out."""
    questions = await store.write(_ask, job_id, body or AskBody())
    if not questions.data:
        return Response(status_code=204, headers={"Retry-After": str(RETRY_AFTER_S)})
    return questions


@router.post(
    "/{job_id}/tell",
    summary="Answer a question",
    responses=answers({200: example("What became of it", examples.TOLD)}, *_STALE, ToldBefore, *_BODY_ERRORS),
)
async def tell(job_id: str, body: TellBody, response: Response, store: StoreDep) -> Told:
    """An answer that holds no candidate is a rejected candidate, as a language model's would be. May be repeated: the
    same answer with the same token gives the same result."""
    told, replayed = await store.write(telling.tell, job_id, body)
    if replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return told


@router.post(
    "/{job_id}/renew",
    summary="Keep a question for longer",
    responses=answers({200: example("The lease", examples.RENEWED)}, *_STALE, *_BODY_ERRORS),
)
async def renew(job_id: str, body: RenewBody, store: StoreDep) -> Renewed:
    """The lease then ends `lease_s` from now."""
    return await store.write(telling.renew, job_id, body)


def _ask(session: Session, job_id: str, body: AskBody) -> Questions:
    events.lock_job(session, job_id)
    job = jobs.get_job(session, job_id)
    if job is None:
        raise UnknownJob
    if Proposer.ASK_TELL not in job.models:
        raise NotAsking
    if telling.ended(job):
        raise JobEnded
    handed = asks.hand_out(session, job_id, agent=body.agent, lease_s=body.lease_s, count=body.limit)
    return Questions(data=[_question(each) for each in handed])


def _question(handed: asks.Handed) -> Question:
    candidate, own = handed.candidate, f"/v1/jobs/{handed.ask.job_id}"
    return Question(
        job_id=handed.ask.job_id,
        candidate_id=candidate.id,
        token=handed.token,
        lease_expires_at=handed.expires_at,
        operator=Operator(candidate.operator),
        parents=candidate.parents,
        answer_format="edits" if handed.ask.edits else "file",
        prompt_version=handed.ask.prompt_version,
        messages=json.loads(handed.ask.prompt),
        links={"tell": f"{own}/tell", "renew": f"{own}/renew", "candidate": f"/v1/candidates/{candidate.id}"},
    )
