"""What is on record of a search, to look into it or to run it again (`kernelwright replay`)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.orm import Session

from api import recording_examples as examples
from api.deps import StoreDep, known_parameters
from api.errors import UnknownCandidate, UnknownJob, invalid
from api.job_parts import Target
from api.openapi import answers, example
from api.paging import Cursor, Limit, link_next
from api.recording_schemas import (
    Decision,
    DecisionPage,
    JudgedProblem,
    Judging,
    Proposal,
    ProposalPage,
    SearchTree,
)
from db import candidates, decisions, jobs, proposals
from db.judging import judge_seed
from db.models import Job, Problem
from db.paging import InvalidCursor
from db.proposals import ProposalRow
from db.recording_models import Ask
from search.recording import record_of
from search.rows import node

router = APIRouter(tags=["record"], dependencies=[Depends(known_parameters)])

FewLimit = Annotated[int, Query(ge=1, le=100, description="at most this many; each has its whole prompt")]


@router.get(
    "/v1/jobs/{job_id}/decisions",
    summary="Read what the search decided, and why",
    responses=answers({200: example("A page", examples.DECISION_PAGE)}, UnknownJob),
)
async def list_decisions(
    job_id: str, request: Request, response: Response, store: StoreDep, limit: Limit = 50, cursor: Cursor = None
) -> DecisionPage:
    """Every look at the job is one, also when there was nothing to start."""
    page = await store.read(_decisions, job_id, limit, cursor)
    link_next(request, response, page.next_cursor)
    return page


@router.get(
    "/v1/jobs/{job_id}/proposals",
    summary="Read the prompts and the answers of a job",
    responses=answers({200: example("A page", examples.PROPOSAL_PAGE)}, UnknownJob),
)
async def list_proposals(
    job_id: str, request: Request, response: Response, store: StoreDep, limit: FewLimit = 20, cursor: Cursor = None
) -> ProposalPage:
    """How each candidate came to its source, by ordinal."""
    page = await store.read(_proposals, job_id, limit, cursor)
    link_next(request, response, page.next_cursor)
    return page


@router.get(
    "/v1/candidates/{candidate_id}/proposal",
    summary="Read a candidate's prompt and answer",
    responses=answers({200: example("The proposal", examples.PROPOSAL)}, UnknownCandidate),
)
async def show_proposal(candidate_id: str, store: StoreDep) -> Proposal:
    """How one candidate came to its source."""
    return await store.read(_proposal, candidate_id)


@router.get(
    "/v1/jobs/{job_id}/tree",
    summary="Look at a job's tree as the search sees it",
    responses=answers({200: example("The tree", examples.SEARCH_TREE)}, UnknownJob),
)
async def show_tree(job_id: str, store: StoreDep) -> SearchTree:
    """All nodes at once, by ordinal."""
    return await store.read(_tree, job_id)


@router.get(
    "/v1/jobs/{job_id}/judging",
    summary="Read what the judge of a job is asked",
    responses=answers({200: example("The question", examples.JUDGING)}, UnknownJob),
)
async def show_judging(job_id: str, store: StoreDep) -> Judging:
    """With it and a candidate's source anybody can judge again what was judged."""
    return await store.read(_judging, job_id)


def _job(session: Session, job_id: str) -> Job:
    job = jobs.get_job(session, job_id)
    if job is None:
        raise UnknownJob
    return job


def _decisions(session: Session, job_id: str, limit: int, cursor: str | None) -> DecisionPage:
    _job(session, job_id)
    try:
        page = decisions.list_decisions(session, job_id, limit=limit, cursor=cursor)
    except InvalidCursor as error:
        raise invalid("?cursor", str(error)) from error
    data = [Decision(seq=row.seq, at=row.at, view=row.view, decision=row.decision) for row in page.items]
    return DecisionPage(data=data, next_cursor=page.next_cursor, has_more=page.has_more)


def _proposals(session: Session, job_id: str, limit: int, cursor: str | None) -> ProposalPage:
    _job(session, job_id)
    try:
        page = proposals.list_proposals(session, job_id, limit=limit, cursor=cursor)
    except InvalidCursor as error:
        raise invalid("?cursor", str(error)) from error
    data = [_proposal_view(row) for row in page.items]
    return ProposalPage(data=data, next_cursor=page.next_cursor, has_more=page.has_more)


def _proposal(session: Session, candidate_id: str) -> Proposal:
    row = proposals.get_proposal(session, candidate_id)
    if row is None:
        raise UnknownCandidate
    return _proposal_view(row)


def _proposal_view(row: ProposalRow) -> Proposal:
    candidate, call, ask = row.candidate, row.call, row.ask
    return Proposal.model_validate(
        {
            "job_id": candidate.job_id,
            "candidate_id": candidate.id,
            "ordinal": candidate.ordinal,
            "operator": candidate.operator,
            "proposer": candidate.proposer,
            "model": candidate.model,
            "agent": ask.agent if ask else None,
            "parents": candidate.parents,
            "state": candidate.state,
            "request": row.request,
            "prompt_version": row.recorded.prompt_version if row.recorded else None,
            "messages": row.messages,
            "answer": row.recorded.answer if row.recorded else None,
            "finish_reason": call.finish_reason if call else None,
            "error": call.error if call else None,
            "told_source": _told_source(ask),
            "source": candidate.source,
            "plan": candidate.plan,
            "failure": candidate.failure,
            "failure_detail": candidate.failure_detail,
        }
    )


def _told_source(ask: Ask | None) -> bool:
    return ask is not None and ask.told_at is not None and ask.answer is None


def _tree(session: Session, job_id: str) -> SearchTree:
    _job(session, job_id)
    return SearchTree(nodes=[record_of(node(row)) for row in candidates.load_tree(session, job_id)])


def _judging(session: Session, job_id: str) -> Judging:
    job = _job(session, job_id)
    problem = session.get_one(Problem, job.problem_hash)
    return Judging(
        job_id=job.id,
        problem=JudgedProblem(name=job.problem_name, hash=job.problem_hash, source=problem.source),
        target=Target(hardware=job.hardware, language=job.language),
        own_kernel_share=job.own_kernel_share,
        seed=judge_seed(job) if job.finished_at is not None else None,
    )
