"""`kernelwright export dataset`: candidates with their evidence as one Parquet file, or as JSON lines.

    kernelwright export dataset --out candidates.parquet --verdict ok --since 2026-11-01T00:00:00Z

Read page by page, so that neither the service nor this machine holds more than a page, and a broken connection costs
one page that is asked for again. docs/exchange.md has the columns.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli import show
from cli.exchange.archive import records
from cli.exchange.columns import row_of
from cli.exchange.files import writing
from cli.service import DEFAULT_URL, JsonOption, UnusableInput, UrlOption, service

_EVERY = 10_000
_SUFFIXES = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}

Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write: .parquet or .jsonl.")]
Format = Annotated[
    Literal["parquet", "jsonl"] | None, typer.Option("--format", help="What the file's name does not say.")
]
Job = Annotated[str | None, typer.Option("--job", help="Only candidates of this job.")]
Problem = Annotated[str | None, typer.Option("--problem", help="Only those of this problem.")]
Hardware = Annotated[str | None, typer.Option("--hardware", help="Only those for this hardware.")]
Language = Annotated[str | None, typer.Option("--language", help="Only those in this language.")]
Verdict = Annotated[str | None, typer.Option("--verdict", help="Only those: ok, incorrect, build_error, ...")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only those made after it; RFC 3339.")]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", help="Leave out what is large: source, workloads, profile or problem; may be repeated."),
]
_LARGE = ("source", "workloads", "profile", "problem")


def dataset(
    out: Out,
    format: Format = None,
    job: Job = None,
    problem: Problem = None,
    hardware: Hardware = None,
    language: Language = None,
    verdict: Verdict = None,
    since: Since = None,
    without: Without = None,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Write all candidates, or those that the options name, into one file; oldest first."""
    kind = format or _SUFFIXES.get(out.suffix.lower())
    if kind is None:
        raise UnusableInput(problem=f"{out} says no format: name it .parquet or .jsonl, or say --format")
    left_out = set(without or ())
    if unknown := left_out - set(_LARGE):
        raise UnusableInput(problem=f"--without {sorted(unknown)[0]}: it is one of {', '.join(_LARGE)}")
    wanted = {
        "job": job,
        "problem": problem,
        "hardware": hardware,
        "language": language,
        "verdict": verdict,
        "created_after": since,
    }
    query: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    query["include"] = [part for part in _LARGE[:-1] if part not in left_out]
    about = {"source": "kernelwright", "version": _version(), "query": str(sorted(query.items()))}
    count = 0
    with service(url) as client, writing(out, kind, about) as sink:
        for record in records(client, query, problems="problem" not in left_out):
            sink.write(row_of(record))
            count += 1
            if count % _EVERY == 0:
                show.note(f"{count:,} candidates")
    if json:
        show.put_json({"file": str(out), "format": kind, "candidates": count})
    else:
        show.note(f"{count:,} candidates, written to {out}")


def _version() -> str:
    try:
        return metadata.version("kernelwright")
    except metadata.PackageNotFoundError:
        return "unknown"
