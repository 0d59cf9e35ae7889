"""`kernelwright admit`: whether a problem can be judged, and what would pass that must not, said before a search.

    kernelwright admit softmax --target cpu
    kernelwright admit my_op.py --target nvidia-h100 --json

Exit code 0 when the problem is admitted, with warnings or without; 3 when it is refused, 1 when the machine failed, 2
for a file that is no problem.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import typer

from cli import completion
from cli.errors import CliError
from cli.evaluate import Hardware, Home, Sandbox, UnusableInput, find_problem, local_judge
from cli.show import put_json, say
from problems.catalog import ProblemError
from worker.judge.client import JudgeFailed
from worker.judge.reference.domains import InferredDomain
from worker.judge.reference.findings import REFUSED, Admission, FamilyFinding
from worker.judge.verdict import ReferenceFailed

_EXIT_REFUSED = 3


class MachineFailed(CliError):
    """{what}"""

    exit_code: ClassVar[int] = 1


def admit(
    problem: Annotated[
        str,
        typer.Argument(
            metavar="PROBLEM",
            help="A KernelBench-style file, or a bundled problem.",
            autocompletion=completion.problems,
        ),
    ],
    target: Hardware = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="The whole report as one JSON object.")] = False,
    home: Home = None,
    sandbox: Sandbox = "process",
) -> None:
    """Examine a problem on this machine: its domains, its families of inputs, and the wrong answers that would pass."""
    source, name = find_problem(problem)
    with local_judge(home, target, sandbox) as judge:
        try:
            report = judge.admit(source, name)
        except (ReferenceFailed, ProblemError) as refused:
            raise UnusableInput(what=f"{name}: {refused}") from refused
        except JudgeFailed as failed:
            raise MachineFailed(what=f"{name}: {failed}") from failed
    if as_json:
        put_json(report)
    else:
        say("\n".join(_admission(report).lines()))
    if report["verdict"] == REFUSED:
        raise typer.Exit(_EXIT_REFUSED)


def _admission(report: dict[str, Any]) -> Admission:
    """The report as the judge had it before it travelled."""
    return Admission(
        problem=report["problem"],
        hardware=report["hardware"],
        verdict=report["verdict"],
        reason=report["reason"],
        workload=report["workload"],
        domains={name: InferredDomain(**found) for name, found in (report["domains"] or {}).items()},
        families=tuple(FamilyFinding(**found) for found in report["families"]),
        warnings=tuple(report["warnings"]),
        notes=tuple(report["notes"]),
    )
