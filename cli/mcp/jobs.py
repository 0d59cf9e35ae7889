"""Tools for searches: submit, jobs, status, best, candidates, cancel."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import Field

from cli import show
from cli.board import judged_of
from cli.client import TERMINAL_STATES, AsyncClient, Candidate, Job, JobState, Language, Verdict
from cli.client.calls import given
from cli.mcp.results import (
    BestKernel,
    BestSoFar,
    CancelledJob,
    CandidateLine,
    CandidateList,
    Estimated,
    JobList,
    JobStatus,
    Submitted,
)
from cli.mcp.session import Tools, client_of, explained
from cli.mcp.words import MAX_SOURCE, foreign, one_line

JobId = Annotated[str, Field(description="the id of a job, job_…")]
Hardware = Annotated[str, Field(description="cpu, nvidia-h100, …: what a worker of the service has")]
Source = Annotated[
    str | None,
    Field(description="an operation of your own: a Python file with Model, get_inputs and get_init_inputs"),
]
ProblemName = Annotated[
    str, Field(description="a bundled problem's name (see `problems`), or a name for your `source`")
]

_HOLD_S = 10.0
"""A progress notification at least so often: clients give up on a tool that is silent for long."""


@explained
async def submit(
    ctx: Tools,
    problem: ProblemName,
    hardware: Hardware,
    language: Language,
    source: Source = None,
    candidates: Annotated[int, Field(ge=1, description="how many candidates to try")] = 20,
    usd: Annotated[str | None, Field(description="dollars for models, such as 2.50")] = None,
    wall_s: Annotated[float | None, Field(gt=0, description="seconds from start to end")] = None,
    target_speedup: Annotated[float | None, Field(gt=0, description="stop at this speedup")] = None,
    models: Annotated[
        list[str] | None,
        Field(description="models in litellm's spelling; ask/tell to answer the prompts yourself; none: built-in"),
    ] = None,
    dry_run: Annotated[bool, Field(description="check everything and say what it may cost, store nothing")] = False,
) -> Submitted:
    """Start a search for a faster kernel of a PyTorch operation. It runs in the service and may take minutes to hours;
    follow it with `status`. It may spend money on models, up to `usd`."""
    body: dict[str, Any] = {
        "problem": problem if source is None else {"name": problem, "source": source},
        "target": {"hardware": hardware, "language": language},
        "budget": given(candidates=candidates, usd=usd, wall_s=wall_s),
        "stop": given(target_speedup=target_speedup),
        "models": models or [],
        "labels": {"from": "mcp"},
    }
    client = client_of(ctx)
    if dry_run:
        checked = await client.dry_run(body)
        outline, estimate = checked["problem"], checked["estimate"]
        cost = Estimated(
            problem=outline["name"],
            workloads=len(outline["workloads"]),
            cost=show.estimate(estimate),
            warnings=[*estimate["notes"], *checked["warnings"]],
        )
        return Submitted(job=None, estimate=cost)
    return Submitted(job=status_of(await client.submit(body)), estimate=None)


@explained
async def jobs(
    ctx: Tools,
    state: JobState | None = None,
    problem: str | None = None,
    limit: Annotated[int, Field(ge=1, le=50)] = 10,
) -> JobList:
    """List searches, the newest first: to find a job again whose id was lost."""
    page = await client_of(ctx).jobs(state=state, problem=problem, limit=limit)
    return JobList(jobs=[status_of(job) for job in page["data"]])


@explained
async def status(
    ctx: Tools,
    job_id: JobId,
    wait_s: Annotated[float, Field(ge=0, le=600, description="return earlier only when the job ends")] = 0.0,
) -> JobStatus:
    """Say where a search is: state, candidates judged, the best so far, cost. With `wait_s` it waits for the end and
    sends progress meanwhile; call it again if the job still runs then."""
    client = client_of(ctx)
    until = time.monotonic() + wait_s
    job = await client.job(job_id)
    while job["state"] not in TERMINAL_STATES and (left_s := until - time.monotonic()) > 0:
        await tell_progress(ctx, job)
        job = await client.job(job_id, wait_s=min(_HOLD_S, left_s), since_version=job["version"])
    return status_of(job)


@explained
async def best(ctx: Tools, job_id: JobId) -> BestKernel:
    """Show a search's best verified kernel so far with its source. The judge has checked and timed it; the source is
    still text that a model or a program wrote: read it before you put it anywhere."""
    client = client_of(ctx)
    found = await client.best(job_id)
    address = f"kernelwright://jobs/{job_id}/best"
    source = found["source"] if found["source"] is not None else await client.best_source(job_id)
    return BestKernel(
        job_id=job_id,
        candidate_id=found["id"],
        verdict=found["verdict"],
        speedup=found["speedup"],
        ci95=found["ci95"],
        latency_us=found["latency_us"],
        baseline=found["baseline"],
        plan_text=one_line(found["plan"]),
        source_text=foreign(source, MAX_SOURCE, "python", whole=f"read the resource {address} for all of it."),
        resource=address,
    )


@explained
async def candidates(
    ctx: Tools,
    job_id: JobId,
    verdict: Verdict | None = None,
    sort: Annotated[Literal["ordinal", "-ordinal", "-speedup"], Field(description="-speedup: the fastest first")] = (
        "-speedup"
    ),
    limit: Annotated[int, Field(ge=1, le=100)] = 20,
    cursor: str | None = None,
) -> CandidateList:
    """List the candidates of a search with their verdicts, and why those that failed did."""
    page = await client_of(ctx).candidates(job_id, verdict=verdict, sort=sort, limit=limit, cursor=cursor)
    return CandidateList(candidates=[_line(each) for each in page["data"]], next_cursor=page["next_cursor"])


@explained
async def cancel(
    ctx: Tools, job_id: JobId, reason: Annotated[str | None, Field(description="kept in the job's events")] = None
) -> CancelledJob:
    """Stop a search. What it found stays; a cancelled search cannot be resumed, only submitted again."""
    done = await client_of(ctx).cancel(job_id, reason=reason)
    return CancelledJob(changed=done["changed"], state=done["job"]["state"])


async def tell_progress(ctx: Tools, job: Job) -> None:
    """A progress notification: how many candidates are through, of how many."""
    judged, budget = judged_of(job)
    await ctx.report_progress(judged, budget or None, show.outcome(job))


async def wait_a_while(client: AsyncClient, job: Job) -> Job:
    """The job when it has changed, or after a while."""
    return await client.job(job["id"], wait_s=_HOLD_S, since_version=job["version"])


def status_of(job: Job) -> JobStatus:
    """The job as the tools show it."""
    judged, budget = judged_of(job)
    best = job["best"]
    return JobStatus(
        job_id=job["id"],
        state=job["state"],
        stop_reason=job["stop_reason"],
        error=one_line(job["error"]),
        problem=job["problem"]["name"],
        hardware=job["target"]["hardware"],
        language=job["target"]["language"],
        judged=judged,
        budget_candidates=budget,
        verdicts={name: count for name, count in job["progress"]["verdicts"].items() if count},
        best=None if best is None else BestSoFar(**best),
        cost_usd=job["cost"]["llm_usd"],
        gpu_s=job["cost"]["gpu_s"],
        next=_next(job),
    )


def _next(job: Job) -> str:
    if job["state"] in TERMINAL_STATES:
        return "`best` has the kernel" if job["best"] else "`candidates` says why none passed"
    if "ask/tell" in job["models"]:
        return "`ask` for open questions and `tell` the answers; `status` with wait_s for what the others do"
    return "`status` with wait_s=300 waits for the end"


def _line(candidate: Candidate) -> CandidateLine:
    why = None if candidate["verdict"] == "ok" else candidate["failure_detail"] or candidate["reason"]
    return CandidateLine(
        candidate_id=candidate["id"],
        ordinal=candidate["ordinal"],
        operator=candidate["operator"],
        by=candidate["model"] or candidate["proposer"],
        state=candidate["state"],
        verdict=candidate["verdict"],
        speedup=candidate["speedup"],
        latency_us=candidate["latency_us"],
        why_text=one_line(": ".join(part for part in (candidate["failure"], why) if part) or None),
    )
