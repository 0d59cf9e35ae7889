"""`kernelwright evaluate`: the judge alone, with no database, no queue and no network.

    kernelwright evaluate --problem softmax --target cpu --language cpp --json C1.py C2.py
    kernelwright evaluate --problem P.py --target nvidia-h100 --language triton --candidates FILE.jsonl --json

A line of FILE.jsonl is {"candidate": "any id", "source": "..."}. Exit code 0 when every candidate was judged, whatever
the verdict; 1 when the machine failed; 2 for input that cannot be used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from cli import completion, logs
from cli.errors import CliError
from cli.show import interval, latency, put_json, say, speedup
from problems.catalog import ProblemError, bundled, outline
from worker.judge.client import Judge, JudgeOptions
from worker.judge.report import EvaluationRequest
from worker.judge.verdict import ReferenceFailed

Problem = Annotated[
    str,
    typer.Option(help="A KernelBench-style file, or a bundled problem's name.", autocompletion=completion.problems),
]
Hardware = Annotated[
    str, typer.Option(help="`cpu`, or a GPU such as `nvidia-h100`.", autocompletion=completion.hardware)
]
KernelLanguage = Annotated[str, typer.Option(help="cpp (cpu), triton, cuda.", autocompletion=completion.languages)]
Home = Annotated[Path | None, typer.Option(help="Folder for caches. Default: $KERNELWRIGHT_HOME.")]
Sandbox = Annotated[
    str,
    typer.Option(help="Weakest sandbox accepted: namespaces, landlock, process.", autocompletion=completion.sandboxes),
]

_FIELDS = ("candidate", "verdict", "reason", "checks", "timed", "latency_us", "baselines_us", "baseline", "speedup",
           "speedups", "ci95", "workloads", "profile", "stages_s", "build_s", "wall_s", "gpu_s", "environment",
           "log")  # fmt: skip
_LANGUAGES = {"cpu": ("cpp", "triton"), "gpu": ("triton", "cuda")}


class UnusableInput(CliError):
    """{what}"""

    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Submission:
    """One candidate to judge."""

    name: str
    source: str


def evaluate(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[CANDIDATE.py]...", show_default=False)] = None,
    problem: Problem = "",
    target: Hardware = "cpu",
    language: KernelLanguage = "cpp",
    candidates: Annotated[Path | None, typer.Option(help="A JSONL file of {candidate, source}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    home: Home = None,
    sandbox: Sandbox = "process",
) -> None:
    """Judge candidates on this machine and print what was found."""
    source, name = find_problem(problem)
    check_target(target, language)
    submissions = [*_from_files(files or []), *(_from_jsonl(candidates) if candidates else [])]
    if not submissions:
        raise UnusableInput(what="nothing to judge: name candidate files, or --candidates FILE.jsonl")
    failed = False
    with local_judge(home, target, sandbox) as judge:
        for submission in submissions:
            request = EvaluationRequest(submission.name, submission.source, name, source, target, language)
            try:
                report = judge.evaluate(request)
            except (ReferenceFailed, ProblemError) as refused:
                raise UnusableInput(what=f"{name}: {refused}") from refused
            failed |= report["verdict"] == "infra_error"
            _print(report, as_json=as_json)
    if failed:
        raise typer.Exit(1)


def local_judge(home: Path | None, hardware: str, sandbox: str) -> Judge:
    """A judge of this machine, whose log lines stay away from stdout."""
    logs.to_stderr()
    folder = home or Path(os.environ.get("KERNELWRIGHT_HOME", Path.home() / ".kernelwright"))
    return Judge(JudgeOptions(home=folder, hardware=hardware, minimum_sandbox=sandbox))


def find_problem(given: str) -> tuple[str, str]:
    """(source, name) of a bundled problem or a file."""
    if given in bundled():
        return bundled()[given].source, given
    path = Path(given)
    if not given or not path.is_file():
        known = ", ".join(sorted(bundled()))
        raise UnusableInput(what=f"--problem {given or '(missing)'}: give a file, or one of {known}")
    try:
        return outline(read_source(path), path.stem).source, path.stem
    except ProblemError as refused:
        raise UnusableInput(what=f"{path}: {refused}") from refused


def check_target(target: str, language: str) -> None:
    fitting = _LANGUAGES["cpu" if target == "cpu" else "gpu"]
    if language not in fitting:
        raise UnusableInput(what=f"--language {language} does not fit --target {target}: use {' or '.join(fitting)}")


def _from_files(files: list[Path]) -> Iterator[Submission]:
    for path in files:
        if not path.is_file():
            raise UnusableInput(what=f"{path}: no such file")
        yield Submission(str(path), read_source(path))


def _from_jsonl(path: Path) -> Iterator[Submission]:
    if not path.is_file():
        raise UnusableInput(what=f"{path}: no such file")
    for number, line in enumerate(read_source(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            yield Submission(str(record.get("candidate", f"{path}:{number}")), str(record["source"]))
        except (ValueError, KeyError, AttributeError, TypeError) as broken:
            raise UnusableInput(
                what=f'{path}, line {number}: write one {{"candidate": ..., "source": ...}} a line'
            ) from broken


def read_source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as broken:
        raise UnusableInput(what=f"{path} is not UTF-8 text") from broken


def _print(report: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        put_json({field: report[field] for field in _FIELDS})
        return
    say(f"{report['candidate']}: {report['verdict']}{': ' + report['reason'] if report['reason'] else ''}")
    for row in report["workloads"]:
        baselines = ", ".join(f"{name} {latency(value)}" for name, value in row["baselines_us"].items())
        gain = f"{speedup(row['speedup'])} {interval(row['ci95'])} over {row['baseline']}"
        say(f"  {row['name']}: {latency(row['latency_us'])}; {baselines}; {gain}")
    if report["timed"]:
        gain = f"{speedup(report['speedup'])} {interval(report['ci95'])}"
        say(f"  all workloads: {gain} over the fastest baseline")
    if "primary" in report["profile"]:
        say(f"  bound by {report['profile']['bound']}: {report['profile']['primary']}")
