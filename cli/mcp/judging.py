"""Tools for the judge alone: evaluate a candidate, admit a problem.

On this machine where it has torch and the hardware, else by the service: a job of `ask/tell` to which the candidate is
told and which is cancelled when the verdict is there.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from cli.client import AsyncClient, CandidateDetail, Language
from cli.mcp import local_judge
from cli.mcp.asking import AGENT, judged_in_time
from cli.mcp.jobs import Hardware, ProblemName, Source
from cli.mcp.results import Admitted, Judged, JudgedWorkload
from cli.mcp.session import Tools, client_of, explained
from cli.mcp.words import MAX_LOG, foreign, one_line

Where = Annotated[
    Literal["auto", "here", "service"],
    Field(description="auto: on this machine if it has torch and the hardware, else by the service"),
]
TimeoutS = Annotated[float, Field(gt=0, le=1800, description="give up after so many seconds")]


@explained
async def evaluate(
    ctx: Tools,
    problem: ProblemName,
    candidate: Annotated[str, Field(description="the candidate's file, with a class ModelNew")],
    hardware: Hardware = "cpu",
    language: Language = "cpp",
    source: Source = None,
    where: Where = "auto",
    timeout_s: TimeoutS = 600.0,
) -> Judged:
    """Have a candidate judged without a search: built, checked against an fp64 truth on many inputs, timed against
    eager and torch.compile. Speedups of the judge are the only ones to believe. Takes a minute or so."""
    if where == "here" or (where == "auto" and local_judge.fits(hardware)):
        await ctx.report_progress(0, None, "judging on this machine")
        with local_judge.files(problem, source, candidate) as (name, file):
            arguments = ["evaluate", "--problem", name, "--target", hardware, "--language", language, file]
            return _report("here", await local_judge.judge(arguments, timeout_s))
    judged = await _by_service(ctx, problem, source, candidate, hardware, language, timeout_s)
    return _report("service", judged["report"] or dict(judged))


@explained
async def admit(
    ctx: Tools,
    problem: ProblemName,
    hardware: Hardware = "cpu",
    language: Language = "cpp",
    source: Source = None,
    where: Where = "auto",
    timeout_s: TimeoutS = 600.0,
) -> Admitted:
    """Say whether a problem can be judged, and which wrong answers would pass: to be asked before a search on an
    operation of your own. Warnings mean that the reference or its inputs are weak; improve them."""
    if where == "here" or (where == "auto" and local_judge.fits(hardware)):
        await ctx.report_progress(0, None, "examining on this machine")
        with local_judge.files(problem, source, None) as (name, _):
            found = await local_judge.judge(["admit", name, "--target", hardware], timeout_s)
        return _admitted("here", found)
    body: dict[str, Any] = {
        "problem": problem if source is None else {"name": problem, "source": source},
        "target": {"hardware": hardware, "language": language},
    }
    admission = (await client_of(ctx).dry_run(body))["admission"]
    if admission is None:
        raise ToolError(
            f"this machine cannot examine for {hardware} (it needs torch and the hardware), and the service has not "
            "examined this problem yet: `submit` it; the service examines it first, and refuses what cannot be judged"
        )
    return _admitted("service", dict(admission))


async def _by_service(
    ctx: Tools, problem: str, source: str | None, candidate: str, hardware: str, language: str, timeout_s: float
) -> CandidateDetail:
    client, until = client_of(ctx), time.monotonic() + timeout_s
    body = {
        "problem": problem if source is None else {"name": problem, "source": source},
        "target": {"hardware": hardware, "language": language},
        # One is the search's own seed.
        "budget": {"candidates": 2, "wall_s": timeout_s},
        "models": ["ask/tell"],
        "admit": False,
        "certify": False,
        "labels": {"from": "mcp-evaluate"},
    }
    job = await client.submit(body)
    try:
        candidate_id = await _tell(client, job["id"], candidate, until)
        judged = await judged_in_time(ctx, client, job["id"], candidate_id, until - time.monotonic())
    finally:
        with anyio.CancelScope(shield=True):
            await client.cancel(job["id"], reason="the candidate was all there was to judge")
    if judged is None or judged["verdict"] is None:
        raise ToolError(f"not judged within {timeout_s:.0f} s: does `kernelwright workers` list one for {hardware}?")
    return judged


async def _tell(client: AsyncClient, job_id: str, candidate: str, until: float) -> str:
    """Tell the candidate to the first question; its id."""
    questions = await client.ask(job_id, agent=AGENT)
    while not questions:
        if time.monotonic() >= until:
            raise ToolError("the service opened no question in time: is its control worker alive?")
        await anyio.sleep(1.0)
        questions = await client.ask(job_id, agent=AGENT)
    question = questions[0]
    told = await client.tell(job_id, question["candidate_id"], question["token"], source=candidate, agent=AGENT)
    if not told["accepted"]:
        raise ToolError(f"the candidate was not taken: {told['failure']}: {one_line(told['failure_detail'])}")
    return told["candidate_id"]


def _report(where: str, report: dict[str, Any]) -> Judged:
    ok = report["verdict"] == "ok"
    log = report.get("log")
    return Judged(
        where=where,
        verdict=report["verdict"],
        reason_text=one_line(report.get("reason"), 1000),
        speedup=report.get("speedup"),
        ci95=report.get("ci95"),
        latency_us=report.get("latency_us"),
        baseline=report.get("baseline"),
        workloads=[
            JudgedWorkload(
                name=each["name"],
                latency_us=each.get("latency_us"),
                speedup=each.get("speedup"),
                baseline=each.get("baseline"),
            )
            for each in report.get("workloads") or []
        ],
        log_text=foreign(str(log), MAX_LOG, "text") if log else None,
        next="`submit` a search if it should be faster still"
        if ok
        else "read reason_text and log_text, then try again",
    )


def _admitted(where: str, found: dict[str, Any]) -> Admitted:
    return Admitted(
        where=where,
        verdict=found["verdict"],
        reason=one_line(found["reason"], 1000),
        warnings=[one_line(each, 500) or "" for each in found["warnings"]],
        notes=[one_line(each, 500) or "" for each in found["notes"]],
    )
