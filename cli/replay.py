"""`kernelwright replay CANDIDATE` and `kernelwright replay --job JOB`: what was found once, found again.

    kernelwright replay cand_...            # judged again on this machine, beside what was found then; needs torch
    kernelwright replay --job job_...       # the search run again on its record; needs no GPU and no model

Exit 0 when nothing differs; 1 when a verdict, a decision, a prompt or an answer does. Timings never count: they are
shown side by side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from cli import completion, record, show
from cli.client import TERMINAL_STATES, CandidateDetail, Client, Judging
from cli.errors import CliError
from cli.service import DEFAULT_URL, JsonOption, UnusableInput, UrlOption, service
from search.replay import Recording, Replayed, replayed

CandidateArgument = Annotated[str | None, typer.Argument(metavar="[CANDIDATE]", help="The id of one, cand_… .")]
JobOption = Annotated[
    str | None,
    typer.Option("--job", metavar="JOB", help="Replay the search of this job instead.", autocompletion=completion.jobs),
]
Home = Annotated[Path | None, typer.Option(help="Folder for caches. Default: $KERNELWRIGHT_HOME.")]
Sandbox = Annotated[
    str,
    typer.Option(help="Weakest sandbox accepted: namespaces, landlock, process.", autocompletion=completion.sandboxes),
]

_DIFFERENT = 1


class NothingToJudge(CliError):
    """{candidate} has no source to judge: it is {state}{why}."""

    exit_code: ClassVar[int] = 2


class CannotJudge(CliError):
    """The problem of {candidate} cannot be judged on this machine: {why}"""


class NoTemplates(CliError):
    """Replaying a search makes its prompts again. That needs the Python package {package}, which is not installed: pip
    install 'kernelwright[api]'."""


class Unreadable(CliError):
    """The record of {job} cannot be read: {why}. Is this command of the same version as the service?"""


def replay(
    candidate: CandidateArgument = None,
    job: JobOption = None,
    home: Home = None,
    sandbox: Sandbox = "process",
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Judge a stored candidate again on this machine, or run a job's search again on its record."""
    if (candidate is None) == (job is None):
        raise UnusableInput(problem="name either a candidate, or a job with --job")
    if job is not None:
        same = _replay_job(job, url, as_json=json)
    else:
        same = _replay_candidate(str(candidate), url, home, sandbox, as_json=json)
    if not same:
        raise typer.Exit(_DIFFERENT)


def _replay_job(job_id: str, url: str, *, as_json: bool) -> bool:
    with service(url) as client:
        recording = fetch(client, job_id)
    try:
        found = replayed(recording)
    except ModuleNotFoundError as error:
        raise NoTemplates(package=error.name) from error
    except (ValueError, KeyError) as error:
        raise Unreadable(job=job_id, why=error) from error
    _show_search(job_id, found, as_json=as_json)
    # A job without a single decision on record was searched before they were recorded: nothing was shown.
    return found.decisions > 0 and not found.differences


def fetch(client: Client, job_id: str) -> Recording:
    """All that is on record of a job's search."""
    ended = client.job(job_id)["state"] in TERMINAL_STATES
    # The decisions first: what a running job adds meanwhile is then newer than all of them.
    decisions = record.decisions(client, job_id)
    events, nodes = record.events(client, job_id), client.tree(job_id)["nodes"]
    proposals = record.proposals(client, job_id)
    return Recording(
        problem_source=client.judging(job_id)["problem"]["source"],
        decisions=decisions,
        events=events,
        nodes=nodes,
        proposals=proposals,
        elsewhere=record.elsewhere(client, proposals),
        ended=ended,
    )


def _show_search(job_id: str, found: Replayed, *, as_json: bool) -> None:
    counts = {name: getattr(found, name) for name in ("decisions", "expansions", "prompts", "answers")}
    if as_json:
        differences = [{"where": each.where, "what": each.what} for each in found.differences]
        show.put_json({"job": job_id, **counts, "differences": differences})
        return
    for each in found.differences:
        show.say(f"{each.where}: {each.what}")
    went = ", ".join(f"{count} {name}" for name, count in counts.items())
    if not found.decisions:
        show.note(f"{job_id}: no decision is on record")
    elif found.differences:
        show.note(f"{job_id}: {went}; {len(found.differences)} differences")
    else:
        show.note(f"{job_id}: {went}; all the same")


def _replay_candidate(candidate_id: str, url: str, home: Path | None, sandbox: str, *, as_json: bool) -> bool:
    with service(url) as client:
        stored = client.candidate(candidate_id)
        asked = client.judging(stored["job_id"])
    if stored["source"] is None:
        why = f" ({stored['failure']})" if stored["failure"] else ""
        raise NothingToJudge(candidate=candidate_id, state=stored["state"], why=why)
    if asked["seed"] is None:
        show.note("the job still runs and its judge's seed is secret: judged with another seed")
    report = _judge(stored, stored["source"], asked, home, sandbox)
    if as_json:
        show.put_json({"candidate": candidate_id, "stored": stored["report"], "replayed": report})
    else:
        _show_side_by_side(stored, report)
    return bool(report["verdict"] == stored["verdict"])


def _judge(stored: CandidateDetail, source: str, asked: Judging, home: Path | None, sandbox: str) -> dict[str, Any]:
    # Only here: replaying a search needs no torch.
    from cli.evaluate import local_judge
    from problems.catalog import ProblemError
    from worker.judge.report import EvaluationRequest
    from worker.judge.verdict import ReferenceFailed

    problem, target = asked["problem"], asked["target"]
    request = EvaluationRequest(
        candidate_id=stored["id"],
        candidate_source=source,
        problem_name=problem["name"],
        problem_source=problem["source"],
        hardware=target["hardware"],
        language=target["language"],
        seed=asked["seed"] or 0,
        own_kernel_share=asked["own_kernel_share"],
    )
    with local_judge(home, target["hardware"], sandbox) as judge:
        try:
            return judge.evaluate(request)
        except (ReferenceFailed, ProblemError) as refused:
            raise CannotJudge(candidate=stored["id"], why=refused) from refused


def _show_side_by_side(stored: CandidateDetail, now: dict[str, Any]) -> None:
    was: dict[str, Any] = stored["report"] or dict(stored)
    rows = [
        ("verdict", was.get("verdict") or "not judged", now["verdict"]),
        ("reason", was.get("reason") or "-", now["reason"] or "-"),
        ("speedup", _gain(was), _gain(now)),
        ("latency", show.latency(was.get("latency_us")), show.latency(now["latency_us"])),
        ("fastest baseline", was.get("baseline") or "-", now["baseline"] or "-"),
        *_workload_rows(was.get("workloads") or [], now["workloads"]),
        *_environment_rows(was.get("environment") or {}, now["environment"]),
    ]
    show.table(("", "then", "now"), rows, empty="")


def _gain(report: dict[str, Any]) -> str:
    return f"{show.speedup(report.get('speedup'))} {show.interval(report.get('ci95'))}".rstrip()


def _workload_rows(was: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    before, after = ({row["name"]: row for row in rows} for rows in (was, now))
    return [(f"workload {name}", _timing(before.get(name)), _timing(after.get(name))) for name in {**before, **after}]


def _timing(row: dict[str, Any] | None) -> str:
    return "-" if row is None else f"{show.latency(row['latency_us'])}, {_gain(row)} over {row['baseline']}"


def _environment_rows(was: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What is another machine or toolchain: that explains much of what differs."""
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return [(name, _short(was.get(name)), _short(now.get(name))) for name in names]


def _short(value: object) -> str:
    return "-" if value is None else str(value)[:60]
