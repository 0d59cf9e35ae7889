"""`kernelwright jobs | best | certificate | cancel | candidates`: what became of jobs, the winner and its evidence."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli import completion, show
from cli.board import judged_of
from cli.client import Candidate, CandidateDetail, CandidatePage, Job, JobPage, JobState, Verdict
from cli.service import DEFAULT_URL, JobArgument, JsonOption, UnusableInput, UrlOption, key_value, service

Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")]
State = Annotated[JobState | None, typer.Option("--state", help="Only those.")]
ProblemFilter = Annotated[
    str | None, typer.Option("--problem", help="Only those of this problem.", autocompletion=completion.problems)
]
LabelFilter = Annotated[str | None, typer.Option("--label", metavar="KEY=VALUE", help="Only those with this label.")]
VerdictFilter = Annotated[Verdict | None, typer.Option("--verdict", help="Only those.")]
Fastest = Annotated[bool, typer.Option("--fastest", help="The fastest first, not in the order they were made.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the source to this file.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; it is kept in the job's events.")]

Folder = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Write certificate.json and certificate.html there.")
]

# What the API gives at once; longer lists come page by page.
_PAGE = 100
_REFUSED = 3


def jobs(
    state: State = None,
    problem: ProblemFilter = None,
    label: LabelFilter = None,
    limit: Limit = 20,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """List the jobs, the newest first."""
    wanted = None if label is None else ":".join(key_value(label))

    with service(url) as client:

        def page(count: int, cursor: str | None) -> JobPage:
            return client.jobs(state=state, problem=problem, label=wanted, cursor=cursor, limit=count)

        found = _collect(page, limit)
    if json:
        for job in found:
            show.put_json(job)
        return
    heads = ("job", "created", "problem", "target", "state", "stopped by", "judged", "best")
    show.table(heads, [_job_cells(job) for job in found], empty="no such jobs")


def candidates(
    job: JobArgument,
    verdict: VerdictFilter = None,
    fastest: Fastest = False,
    limit: Limit = 100,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """List a job's candidates with their verdicts."""
    order: Literal["-speedup", "ordinal"] = "-speedup" if fastest else "ordinal"
    with service(url) as client:

        def page(count: int, cursor: str | None) -> CandidatePage:
            return client.candidates(job, verdict=verdict, sort=order, cursor=cursor, limit=count)

        found = _collect(page, limit)
    if json:
        for candidate in found:
            show.put_json(candidate)
        return
    heads = ("#", "candidate", "operator", "by", "state", "verdict", "speedup", "latency", "why")
    show.table(heads, [_candidate_cells(candidate) for candidate in found], empty="no such candidates")


def best(job: JobArgument, output: Output = None, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """Show a job's best verified kernel: its source on stdout or in a file, its numbers on stderr."""
    with service(url) as client:
        champion = client.best(job)
        source = champion["source"] if champion["source"] is not None else client.best_source(job)
    if output is not None:
        _write(output, source)
    if json:
        show.put_json(champion)
    elif output is None:
        show.say_source(source)
    show.note(_champion_line(champion, output))


def certificate(job: JobArgument, out: Folder = None, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """Show the certificate of a job's champion in words, as JSON, or as two files. Exit 3: it was refused."""
    with service(url) as client:
        document = client.certificate(job)
        page = client.certificate_page(job) if out is not None else ""
    if out is not None:
        _make_folder(out)
        _write(out / "certificate.json", dumps(document))
        _write(out / "certificate.html", page)
    if json:
        show.put_json(document)
    else:
        show.say(document["summary"])
        for reservation in document["reservations"]:
            show.note(f"reservation: {reservation}")
    show.note(f"SHA-256 {document['sha256']}" + (f", written to {out}" if out is not None else ""))
    if not document["certified"]:
        raise typer.Exit(_REFUSED)


def cancel(job: JobArgument, reason: Reason = None, url: UrlOption = DEFAULT_URL, json: JsonOption = False) -> None:
    """Ask a job to stop. Asking again, or asking an ended job, changes nothing and is no error."""
    with service(url) as client:
        answer = client.cancel(job, reason=reason)
    if json:
        show.put_json(answer)
    elif answer["changed"]:
        typer.echo(f"{job} is {answer['job']['state']}")
    else:
        typer.echo(f"{job} was {answer['job']['state']} already")


def _collect(page: Callable[[int, str | None], Any], limit: int) -> list[Any]:
    """Up to `limit` entries, page after page: `page` takes a count and the cursor of the page before."""
    found: list[Any] = []
    cursor: str | None = None
    while len(found) < limit:
        answer = page(min(limit - len(found), _PAGE), cursor)
        found += answer["data"]
        cursor = answer["next_cursor"]
        if not answer["has_more"]:
            break
    return found


def _job_cells(job: Job) -> tuple[str, ...]:
    judged, budget = judged_of(job)
    gain = show.speedup(job["best"]["speedup"]) if job["best"] else "-"
    return (
        job["id"],
        show.moment(job["created_at"]),
        job["problem"]["name"],
        show.target(job),
        job["state"],
        job["stop_reason"] or "-",
        f"{judged}/{budget}" if budget else str(judged),
        gain,
    )


def _candidate_cells(candidate: Candidate) -> tuple[str, ...]:
    why = "" if candidate["verdict"] == "ok" else (candidate["failure"] or candidate["reason"] or "")
    if candidate["failure_detail"]:
        why = f"{why}: {candidate['failure_detail']}"
    return (
        str(candidate["ordinal"]),
        candidate["id"],
        candidate["operator"],
        candidate["model"] or candidate["proposer"],
        candidate["state"],
        candidate["verdict"] or "-",
        show.speedup(candidate["speedup"]),
        show.latency(candidate["latency_us"]),
        why[:80],
    )


def _champion_line(champion: CandidateDetail, output: Path | None) -> str:
    against = f" over {champion['baseline']}" if champion["baseline"] else ""
    gain = f"{show.speedup(champion['speedup'])} {show.interval(champion['ci95'])}".rstrip()
    where = f", written to {output}" if output is not None else ""
    return f"{champion['id']}: {champion['verdict']}, {gain}{against}, {show.latency(champion['latency_us'])}{where}"


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnusableInput(problem=f"cannot make {path}: {error.strerror or error}") from error


def _write(path: Path, source: str) -> None:
    """The whole file or nothing: a full disk must not leave half a kernel under the name that was asked for."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(source)
        Path(name).replace(path)
    except OSError as error:
        raise UnusableInput(problem=f"cannot write {path}: {error.strerror or error}") from error
