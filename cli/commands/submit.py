"""`kernelwright submit FILE_OR_PROBLEM --target cpu:cpp`: a new search job, from a bundled problem or from an own file.

stdout gets the job's id, so that `job=$(kernelwright submit …)` works; with --json it gets the job.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import completion, show
from cli.client import Client, DryRun, Job, OwnProblem
from cli.client import Target as TargetBody
from cli.commands.watch import watch_job
from cli.service import DEFAULT_URL, JobArgument, JsonOption, UnusableInput, UrlOption, key_value, service

_BUDGET = "Budget"
_STOP = "Stop rules"

ProblemArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE_OR_PROBLEM",
        help="A KernelBench-style file (ends in .py, or has a slash), or the name of a bundled problem.",
        autocompletion=completion.problems,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="HARDWARE:LANGUAGE",
        help="Such as cpu:cpp or nvidia-h100:triton.",
        autocompletion=completion.targets,
    ),
]
Hardware = Annotated[
    str | None,
    typer.Option("--hardware", help="The hardware, when --target does not say it.", autocompletion=completion.hardware),
]
Language = Annotated[
    str | None,
    typer.Option(
        "--language", help="The language, when --target does not say it.", autocompletion=completion.languages
    ),
]
Candidates = Annotated[
    int | None, typer.Option("--budget-candidates", min=1, help="Candidates to try.", rich_help_panel=_BUDGET)
]
Usd = Annotated[
    str | None, typer.Option("--budget-usd", metavar="USD", help="Dollars for models.", rich_help_panel=_BUDGET)
]
WallS = Annotated[
    float | None, typer.Option("--budget-wall-s", help="Seconds from start to end.", rich_help_panel=_BUDGET)
]
GpuS = Annotated[float | None, typer.Option("--budget-gpu-s", help="Seconds of a GPU.", rich_help_panel=_BUDGET)]
Calls = Annotated[int | None, typer.Option("--budget-calls", min=1, help="Calls of models.", rich_help_panel=_BUDGET)]
Tokens = Annotated[
    int | None, typer.Option("--budget-tokens", min=1, help="Tokens of all calls.", rich_help_panel=_BUDGET)
]
TargetSpeedup = Annotated[
    float | None, typer.Option("--target-speedup", help="Stop at this speedup.", rich_help_panel=_STOP)
]
Stagnation = Annotated[
    int | None,
    typer.Option("--stagnation", min=1, help="Stop after so many candidates without a better one.",
                 rich_help_panel=_STOP),
]  # fmt: skip
Policy = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME", help="How the search goes on: default, uct, islands, archive, greedy, "
                 "best_of_n or random."),
]  # fmt: skip
OwnKernelShare = Annotated[
    float | None,
    typer.Option("--own-kernel-share", min=0, max=1, help="Least share of device time in a kernel's own code."),
]
Admit = Annotated[bool, typer.Option("--admit/--no-admit", help="Examine the problem, if nobody has yet.")]
Certify = Annotated[bool, typer.Option("--certify/--no-certify", help="Certify the champion before the job ends.")]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="A model in litellm's spelling, or ask/tell for outside agents; may be repeated. "
        "None: the built-in proposer.",
    ),
]
DiagnosisModel = Annotated[
    str | None,
    typer.Option("--diagnosis-model", help="A model that says what is wrong before another repairs or refines."),
]
Labels = Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label; may be repeated.")]
Priority = Annotated[int | None, typer.Option("--priority", help="-100 to 100; higher goes first.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="The seed of the search.")]
IdempotencyKey = Annotated[
    str | None, typer.Option("--idempotency-key", help="The same key and job again gives the first job again.")
]
DryRunFlag = Annotated[bool, typer.Option("--dry-run", help="Check everything, store nothing.")]
Watch = Annotated[bool, typer.Option("--watch", help="Stay and watch until the job ends.")]


def submit(
    problem: ProblemArgument,
    target: Target = None,
    hardware: Hardware = None,
    language: Language = None,
    budget_candidates: Candidates = None,
    budget_usd: Usd = None,
    budget_wall_s: WallS = None,
    budget_gpu_s: GpuS = None,
    budget_calls: Calls = None,
    budget_tokens: Tokens = None,
    target_speedup: TargetSpeedup = None,
    stagnation: Stagnation = None,
    policy: Policy = None,
    own_kernel_share: OwnKernelShare = None,
    admit: Admit = True,
    certify: Certify = True,
    model: Models = None,
    diagnosis_model: DiagnosisModel = None,
    label: Labels = None,
    priority: Priority = None,
    seed: Seed = None,
    idempotency_key: IdempotencyKey = None,
    dry_run: DryRunFlag = False,
    watch: Watch = False,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Submit a search: an operation, where its kernel shall run, and what the search may cost."""
    body: dict[str, Any] = {"problem": problem_of(problem), "target": target_of(target, hardware, language)}
    usd = None if budget_usd is None else usd_of(budget_usd)
    optional = {
        "budget": given(
            candidates=budget_candidates,
            usd=usd,
            wall_s=budget_wall_s,
            gpu_s=budget_gpu_s,
            calls=budget_calls,
            tokens=budget_tokens,
        ),
        "stop": given(target_speedup=target_speedup, stagnation=stagnation),
        "policy": given(search=policy, own_kernel_share=own_kernel_share),
        "admit": None if admit else False,
        "certify": None if certify else False,
        "models": model,
        "diagnosis_model": diagnosis_model,
        "labels": dict(key_value(pair) for pair in label or ()),
        "priority": priority,
        "seed": seed,
    }
    body |= given(**optional)
    with service(url) as client:
        if dry_run:
            _show_dry_run(client.dry_run(body), as_json=json)
        else:
            _submit(client, body, idempotency_key, watch=watch, as_json=json)


def rerun(
    job: JobArgument,
    idempotency_key: IdempotencyKey = None,
    watch: Watch = False,
    url: UrlOption = DEFAULT_URL,
    json: JsonOption = False,
) -> None:
    """Submit what a job asked for once more: the same problem, target, budget and policy; the first is its parent."""
    with service(url) as client:
        again = client.rerun(job, idempotency_key=idempotency_key)
        tell_job(client, again, watch=watch, as_json=json)


def problem_of(argument: str) -> str | OwnProblem:
    """A bundled name as it is, an own file with its source. Raises UnusableInput when the file cannot be read."""
    if not argument.endswith(".py") and "/" not in argument:
        return argument
    path = Path(argument)
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnusableInput(problem=f"cannot read {argument}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UnusableInput(problem=f"{argument} is no UTF-8 text: byte {error.start}") from error
    # The API's names are made of these characters and do not begin with a dot or a dash.
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem).lstrip(".-")[:100]
    return {"name": name or "problem", "source": source}


def target_of(target: str | None, hardware: str | None, language: str | None) -> TargetBody:
    """The target, from `--target HARDWARE:LANGUAGE` or in parts. Raises UnusableInput: one is missing or doubled."""
    from_target = (target or "").partition(":")
    said = {"hardware": {from_target[0], hardware or ""} - {""}, "language": {from_target[2], language or ""} - {""}}
    for part, values in said.items():
        if len(values) > 1:
            raise UnusableInput(problem=f"two values for the {part}: {' and '.join(sorted(values))}")
        if not values:
            raise UnusableInput(
                problem=f"no {part}: say --target HARDWARE:LANGUAGE, such as --target cpu:cpp or "
                "--target nvidia-h100:triton (`kernelwright workers` lists the hardware that is there)"
            )
    return {"hardware": said["hardware"].pop(), "language": said["language"].pop()}


def usd_of(text: str) -> str:
    """Dollars as the API takes them, a decimal string. Raises UnusableInput."""
    try:
        amount = Decimal(text.removeprefix("$"))
    except InvalidOperation as error:
        raise UnusableInput(problem=f"--budget-usd {text!r} is no amount of dollars: write 5 or 2.50") from error
    return f"{amount:f}"


def _submit(client: Client, body: dict[str, Any], key: str | None, *, watch: bool, as_json: bool) -> None:
    tell_job(client, client.submit(body, idempotency_key=key), watch=watch, as_json=as_json)


def tell_job(client: Client, job: Job, *, watch: bool, as_json: bool) -> None:
    """Say which job was made, and follow it or say how to."""
    if as_json:
        show.put_json(job)
    else:
        typer.echo(job["id"])
    if watch:
        watch_job(client, job, as_json=as_json)
    elif not as_json:
        show.note(f"{job['problem']['name']} on {show.target(job)} is {job['state']}")
        show.note(f"kernelwright watch {job['id']}")


def _show_dry_run(answer: DryRun, *, as_json: bool) -> None:
    if as_json:
        show.put_json(answer)
        return
    job, problem = answer["job"], answer["problem"]
    show.say(f"valid: {problem['name']}, {len(problem['workloads'])} workloads; nothing was submitted")
    show.say(show.fields({"target": f"{job['target']['hardware']}:{job['target']['language']}", **job["budget"]}))
    show.say(f"estimate: {show.estimate(answer['estimate'])}")
    admission = answer["admission"]
    if admission is not None:
        show.say(f"examined before: {admission['verdict']}")
    for warning in [*(admission["warnings"] if admission else ()), *answer["estimate"]["notes"], *answer["warnings"]]:
        show.note(f"warning: {warning}")


def given(**values: Any) -> dict[str, Any]:
    """What was said. The rest is left to the server's defaults, so that they are written down in one place."""
    return {name: value for name, value in values.items() if value not in (None, {}, [])}
