"""`kernelwright import kernelbench` and `kernelwright import flashinfer`: the problems of others as jobs of ours.

    kernelwright import kernelbench KernelBench --select 'level1/*'                      # says what would be submitted
    kernelwright import kernelbench KernelBench --select 'level1/*' --submit --target cpu:cpp --budget-candidates 20
    kernelwright import flashinfer rmsnorm.json --workloads rmsnorm.jsonl --out rmsnorm.py

Files are read and checked, never run. Nothing is submitted unless all that was selected can be.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import ValidationError

from cli import show
from cli.client import ApiError, Client, Job
from cli.commands.submit import (
    Admit,
    Candidates,
    Certify,
    DiagnosisModel,
    Labels,
    Models,
    Policy,
    Priority,
    Target,
    Usd,
    WallS,
    given,
    target_of,
    usd_of,
)
from cli.exchange.kernelbench import DIGEST_LABEL, Entry, entries, job_body
from cli.exchange.problem_file import MOST, ProblemFile, problem_file
from cli.exchange.trace_models import Definition, Trace, Workload
from cli.exchange.writing import write_text
from cli.service import DEFAULT_URL, JsonOption, UnusableInput, UrlOption, key_value, service

_FAULTY = 2

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with levelN/N_Name.py, or one of its levels.")]
Select = Annotated[
    str | None, typer.Option("--select", metavar="GLOB", help="Only those: 'level1/*', '*relu*', '19_ReLU.py'.")
]
Submit = Annotated[bool, typer.Option("--submit", help="Submit them; without it nothing is sent.")]
SkipFaulty = Annotated[bool, typer.Option("--skip-faulty", help="Submit the others where some cannot be.")]
DefinitionFile = Annotated[Path, typer.Argument(metavar="DEFINITION", help="A definition, as JSON.")]
WorkloadsFile = Annotated[
    Path | None, typer.Option("--workloads", metavar="FILE", help="Its workloads, one JSON object a line.")
]
Most = Annotated[int, typer.Option("--most", min=1, help="Workloads to take, from the smallest to the largest.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the problem to this file.")]


def kernelbench(
    folder: Folder,
    select: Select = None,
    submit: Submit = False,
    skip_faulty: SkipFaulty = False,
    target: Target = None,
    budget_candidates: Candidates = None,
    budget_usd: Usd = None,
    budget_wall_s: WallS = None,
    policy: Policy = None,
    admit: Admit = True,
    certify: Certify = True,
    model: Models = None,
    diagnosis_model: DiagnosisModel = None,
    label: Labels = None,
    priority: Priority = None,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """List the problems of a KernelBench folder with what is wrong with them; submit them with --submit."""
    found = entries(folder, select)
    faulty = [entry for entry in found if entry.fault is not None]
    if not submit or (faulty and not skip_faulty):
        _show_plan(found, as_json=json)
        if submit:
            show.note("nothing was submitted: mend these files, select others, or say --skip-faulty")
        raise typer.Exit(_FAULTY if faulty else 0)
    usd = None if budget_usd is None else usd_of(budget_usd)
    common = given(
        target=target_of(target, None, None),
        budget=given(candidates=budget_candidates, usd=usd, wall_s=budget_wall_s),
        policy=given(search=policy),
        admit=None if admit else False,
        certify=None if certify else False,
        models=model,
        diagnosis_model=diagnosis_model,
        labels=dict(key_value(pair) for pair in label or ()),
        priority=priority,
    )
    planned = [Planned(entry, job_body(entry, common)) for entry in found if entry.fault is None]
    with service(url) as client:
        _check_all(client, planned)
        for each in planned:
            _tell(each, *_submitted(client, each), as_json=json)


def flashinfer(
    definition: DefinitionFile,
    workloads: WorkloadsFile = None,
    most: Most = MOST,
    out: Out = None,
    submit: Submit = False,
    target: Target = None,
    budget_candidates: Candidates = None,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Turn a FlashInfer Trace or SOL-ExecBench definition into a problem: on stdout, in a file, or submitted."""
    made = problem_file(_definition(definition), _workloads(workloads) if workloads else [], most)
    for uuid, why in made.left_out.items():
        show.note(f"left out: workload {uuid}: {why}")
    if out is not None:
        write_text(out, made.source)
        show.note(f"{made.name}, {len(made.workloads)} workloads, written to {out}")
    if submit:
        _submit_one(made, target, budget_candidates, url, as_json=json)
    elif out is None:
        show.say_source(made.source)


class Planned(NamedTuple):
    """A problem, and the job that it is to be."""

    entry: Entry
    body: dict[str, Any]


def _show_plan(found: Sequence[Entry], *, as_json: bool) -> None:
    if as_json:
        for entry in found:
            show.put_json({"file": str(entry.path), "problem": entry.name, "level": entry.level, "task": entry.task,
                           "fault": entry.fault})  # fmt: skip
        return
    rows = [(entry.place, entry.name, entry.fault or "ok") for entry in found]
    show.table(("file", "problem", "check"), rows, empty="no problems")
    faulty = sum(entry.fault is not None for entry in found)
    show.note(f"{len(found)} problems, {faulty} of them faulty; --submit --target HARDWARE:LANGUAGE submits them")


def _check_all(client: Client, planned: Sequence[Planned]) -> None:
    """Have the service look at every job before the first is stored. Raises UnusableInput."""
    for each in planned:
        try:
            client.dry_run(each.body)
        except ApiError as error:
            if error.status >= 500:
                raise
            raise UnusableInput(problem=f"{each.entry.place}: {error}; nothing was submitted") from error


def _submitted(client: Client, each: Planned) -> tuple[Job, bool]:
    """The job, and whether it is new. The key keeps two imports at a time apart, the label those of other days."""
    digest = each.body["labels"][DIGEST_LABEL]
    known = client.jobs(label=f"{DIGEST_LABEL}:{digest}", limit=1)["data"]
    if known:
        return known[0], False
    return client.submit(each.body, idempotency_key=f"kernelbench-{digest}"), True


def _tell(each: Planned, job: Job, new: bool, *, as_json: bool) -> None:
    if as_json:
        show.put_json({"file": str(each.entry.path), "problem": each.entry.name, "job": job["id"], "new": new})
    else:
        show.say(f"{job['id']}\t{each.entry.name}\t{'submitted' if new else 'was there'}")


def _submit_one(made: ProblemFile, target: str | None, candidates: int | None, url: str, *, as_json: bool) -> None:
    name = "".join(each if each.isalnum() and each.isascii() or each in "_.-" else "_" for each in made.name)
    body = given(
        problem={"name": name.lstrip(".-")[:100] or "problem", "source": made.source},
        target=target_of(target, None, None),
        budget=given(candidates=candidates),
    )
    with service(url) as client:
        job = client.submit(body)
    if as_json:
        show.put_json(job)
    else:
        typer.echo(job["id"])
        show.note(f"kernelwright watch {job['id']}")


def _definition(path: Path) -> Definition:
    try:
        return Definition.model_validate_json(_text(path))
    except ValidationError as error:
        raise UnusableInput(problem=f"{path} is no definition: {_faults(error)}") from error


def _workloads(path: Path) -> list[Workload]:
    """Lines of workloads, or of traces without a solution: both are in use."""
    found = []
    for number, document in _lines(path):
        try:
            if "workload" in document:
                found.append(Trace.model_validate(document).workload)
            else:
                found.append(Workload.model_validate(document))
        except ValidationError as error:
            raise UnusableInput(problem=f"{path}, line {number}: no workload: {_faults(error)}") from error
    return found


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.strip():
            try:
                document = json_module.loads(line)
            except ValueError as error:
                raise UnusableInput(problem=f"{path}, line {number}: no JSON: {error}") from error
            if not isinstance(document, dict):
                raise UnusableInput(problem=f"{path}, line {number}: no JSON object")
            yield number, document


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnusableInput(problem=f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UnusableInput(problem=f"{path} is no UTF-8 text: byte {error.start}") from error


def _faults(error: ValidationError) -> str:
    """The first faults, with where they are."""
    told = [f"{'.'.join(map(str, each['loc'])) or 'the document'}: {each['msg']}" for each in error.errors()]
    return "; ".join(told[:3])
