"""Tools for ask and tell: the agent is the model that makes the candidates (docs/ask-tell.md)."""

from __future__ import annotations

import time
from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from cli.client import AsyncClient, CandidateDetail, Question, Told
from cli.mcp.jobs import JobId, tell_progress, wait_a_while
from cli.mcp.results import Answered, OpenQuestion, OpenQuestions
from cli.mcp.session import Tools, client_of, explained
from cli.mcp.words import one_line

AGENT = "mcp"
_SETTLED = frozenset({"evaluated", "rejected", "cancelled"})


@explained
async def ask(
    ctx: Tools,
    job_id: JobId,
    limit: Annotated[int, Field(ge=1, le=8, description="at most so many questions")] = 1,
    lease_s: Annotated[float, Field(gt=0, description="seconds for which they are yours")] = 1800.0,
    wait_s: Annotated[float, Field(ge=0, le=600, description="wait so long for one to be opened")] = 0.0,
) -> OpenQuestions:
    """Take open questions of a search submitted with models ["ask/tell"]: each is the prompt for one candidate, which
    you make and bring back with `tell`. A question is yours until its lease ends."""
    client = client_of(ctx)
    until = time.monotonic() + wait_s
    found = await client.ask(job_id, limit=limit, lease_s=lease_s, agent=AGENT)
    while not found and time.monotonic() < until:
        job = await client.job(job_id)
        await tell_progress(ctx, job)
        await wait_a_while(client, job)
        found = await client.ask(job_id, limit=limit, lease_s=lease_s, agent=AGENT)
    if found:
        said = "write what the prompt asks for, then `tell` it with candidate_id and token"
    else:
        said = "nothing is open now: `status` with wait_s, then ask again; a question follows when something was judged"
    return OpenQuestions(questions=[_question(each) for each in found], next=said)


@explained
async def tell(
    ctx: Tools,
    job_id: JobId,
    candidate_id: str,
    token: str,
    source: Annotated[str | None, Field(description="the whole file, with a class ModelNew")] = None,
    answer: Annotated[
        str | None, Field(description="instead: a plan in words and one fenced block, or edits, as the prompt says")
    ] = None,
    plan: Annotated[str | None, Field(description="with `source`: what you changed and why")] = None,
    exhausted: Annotated[bool, Field(description="instead: you have nothing more to propose in this job")] = False,
    wait_s: Annotated[float, Field(ge=0, le=600, description="wait so long for the verdict")] = 120.0,
) -> Answered:
    """Answer a question with `source` or with `answer`, and wait for the judge. Telling the same again is harmless."""
    if (source is not None) + (answer is not None) + exhausted != 1:
        raise ToolError("give one of `source` (the whole file), `answer` (text as the prompt asks for it), `exhausted`")
    client = client_of(ctx)
    said = {"exhausted": True} if exhausted else {"source": source, "answer": answer, "plan": plan}
    told = await client.tell(job_id, candidate_id, token, **said, agent=AGENT)
    if exhausted:
        return _answered(told, None, "you will be asked no more: `status` with wait_s until the job ends, then `best`")
    if not told["accepted"]:
        return _answered(told, None, "read failure_text, then `ask` for another question")
    judged = await judged_in_time(ctx, client, job_id, candidate_id, wait_s)
    if judged is None:
        return _answered(told, None, "it is not judged yet: see `candidates`, or go on with `ask`")
    return _answered(told, judged, "`ask` for the next question, or `best` if this will do")


async def judged_in_time(
    ctx: Tools, client: AsyncClient, job_id: str, candidate_id: str, wait_s: float
) -> CandidateDetail | None:
    """The candidate when it is through; None when the time is over first."""
    until = time.monotonic() + wait_s
    while True:
        # The job first: what changes after this look is news to the long-poll.
        job = await client.job(job_id)
        candidate = await client.candidate(candidate_id)
        if candidate["state"] in _SETTLED:
            return candidate
        if time.monotonic() >= until:
            return None
        await tell_progress(ctx, job)
        await wait_a_while(client, job)


def _question(question: Question) -> OpenQuestion:
    return OpenQuestion(
        candidate_id=question["candidate_id"],
        token=question["token"],
        lease_expires_at=question["lease_expires_at"],
        operator=question["operator"],
        answer_format=question["answer_format"],
        # The service has fenced what is foreign in it.
        prompt="\n\n".join(message["content"] for message in question["messages"]),
    )


def _answered(told: Told, judged: CandidateDetail | None, next_step: str) -> Answered:
    return Answered(
        candidate_id=told["candidate_id"],
        accepted=told["accepted"],
        failure=told["failure"],
        failure_text=one_line(told["failure_detail"]),
        duplicate_of=told["duplicate_of"],
        verdict=judged["verdict"] if judged else None,
        reason_text=one_line(judged["reason"]) if judged else None,
        speedup=judged["speedup"] if judged else None,
        next=next_step,
    )
