"""`kernelwright export flashinfer`: a job's winner, or any candidate, for FlashInfer-Bench or SOL-ExecBench.

    kernelwright export flashinfer job_... --out traces                       # folders as in FlashInfer Trace
    kernelwright export flashinfer cand_... --format sol-execbench --out bench

Needs torch: the shapes of what goes in and comes out are found by running the problem's reference on torch's meta
device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from cli import show
from cli.client import Client
from cli.errors import CliError
from cli.exchange.definitions import Described, Unexportable, describe
from cli.exchange.solutions import AUTHOR, Dialect, solution, traces
from cli.exchange.trace_models import Part, Trace
from cli.exchange.writing import write_lines, write_text
from cli.service import DEFAULT_URL, JsonOption, UrlOption, service
from problems.catalog import outline

Subject = Annotated[str, typer.Argument(metavar="JOB|CANDIDATE", help="A job, of which the best is taken, or one id.")]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where to; what is there already is kept.")]
Format = Annotated[Literal["flashinfer", "sol-execbench"], typer.Option("--format", help="Whose files to write.")]

_LACKS: dict[Dialect, set[str]] = {"sol-execbench": {"tags"}, "flashinfer": set()}
"""Fields of a definition that a format does not have."""


class NoTorch(CliError):
    """Shapes are found by running the problem's reference, which needs the Python package {package}: pip install
    'kernelwright[gpu]'."""


class NothingToExport(CliError):
    """{candidate} has no source: it is {state}."""

    exit_code: ClassVar[int] = 2


def flashinfer(
    subject: Subject, out: Out, format: Format = "flashinfer", url: UrlOption = DEFAULT_URL, json: JsonOption = False
) -> None:
    """Write a candidate as definition, workloads, solution and traces, for FlashInfer-Bench or SOL-ExecBench."""
    with service(url) as client:
        candidate = _candidate(client, subject)
        asked = client.judging(candidate["job_id"])
    if candidate["source"] is None:
        raise NothingToExport(candidate=candidate["id"], state=candidate["state"])
    problem, target = asked["problem"], asked["target"]
    read = outline(problem["source"], problem["name"])
    if any(read.spec.trains(workload) for workload in read.spec.workloads_for(target["hardware"])):
        raise Unexportable(problem=problem["name"], why="it is judged on its backward too, and a definition has none")
    calls = _traced(problem["source"], problem["name"], target["hardware"])
    files: list[Path] = []
    for described in describe(calls, problem["source"], problem["name"], read.op_family, read.summary):
        files += _write(out, described, candidate, target, format)
    if json:
        show.put_json({"candidate": candidate["id"], "files": [str(path) for path in files]})
    else:
        for path in files:
            typer.echo(path)


def _candidate(client: Client, subject: str) -> Mapping[str, Any]:
    return client.best(subject) if subject.startswith("job_") else client.candidate(subject)


def _traced(source: str, name: str, hardware: str) -> list[Any]:
    try:
        from cli.exchange.tracing import trace
    except ModuleNotFoundError as error:
        raise NoTorch(package=error.name) from error
    return trace(source, name, hardware)


def _write(
    out: Path, described: Described, candidate: Mapping[str, Any], target: Mapping[str, Any], dialect: Dialect
) -> Iterator[Path]:
    definition, found = described.definition, list(traces(candidate, described, target))
    solved = solution(candidate, described, target, dialect)
    if dialect == "flashinfer":
        kind = definition.op_type or "other"
        places = (
            out / "definitions" / kind / f"{definition.name}.json",
            out / "workloads" / kind / f"{definition.name}.jsonl",
            out / "solutions" / AUTHOR / kind / definition.name / f"{solved.name}.json",
            out / "traces" / AUTHOR / kind / f"{definition.name}.jsonl",
        )
        workloads: list[Part] = [Trace(definition=definition.name, workload=each) for each in _all(described)]
    else:
        folder = out / definition.name
        places = (folder / "definition.json", folder / "workload.jsonl", folder / f"{solved.name}.json",
                  folder / "traces.jsonl")  # fmt: skip
        workloads = list(_all(described))
    write_text(places[0], definition.model_dump_json(indent=2, exclude=_LACKS[dialect]))
    write_lines(places[1], [each.model_dump_json() for each in workloads])
    write_text(places[2], solved.model_dump_json(indent=2))
    yield from places[:3]
    if found:
        write_lines(places[3], [each.model_dump_json() for each in found])
        yield places[3]


def _all(described: Described) -> list[Any]:
    return list(described.workloads.values())
