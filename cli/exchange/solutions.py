"""From judged candidates to solutions and traces: files that run without the service, and what the judge found.

A solution has three files: the candidate as it was judged, `kernelwright.py` (what it imports; standard library and
torch alone), and `main.py`, whose `run` calls the candidate's module as a function of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from cli.exchange.definitions import Described, Unexportable, functional
from cli.exchange.trace_models import (
    BuildSpec,
    Correctness,
    Environment,
    Evaluation,
    Performance,
    Solution,
    SourceFile,
    Status,
    Trace,
)

Dialect = Literal["flashinfer", "sol-execbench"]
Json = Mapping[str, Any]
AUTHOR: Final = "kernelwright"

_RUNTIME: Final = Path(__file__).parents[2] / "worker" / "runner" / "kernelwright.py"
_LIBRARIES: Final = ("python", "torch", "triton", "cuda", "driver")
_STATUS: Final = {
    "ok": Status.PASSED,
    "incorrect": Status.INCORRECT_NUMERICAL,
    "nondeterministic": Status.INCORRECT_NUMERICAL,
    "build_error": Status.COMPILE_ERROR,
    "launch_error": Status.RUNTIME_ERROR,
    "illegal_access": Status.RUNTIME_ERROR,
    "timeout": Status.TIMEOUT,
}
"""`suspicious` has no counterpart there, and `infra_error` says nothing of the candidate: these have no trace."""

_MAIN: Final = '''\
"""The entry point: calls {module}.ModelNew as a function of its inputs and its state."""

import functools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from {module} import ModelNew


@functools.cache
def _model(device):
    with device:
        return ModelNew({init})


{run}'''


def solution(candidate: Json, described: Described, target: Json, dialect: Dialect) -> Solution:
    """The solution that a candidate is. Raises Unexportable for what the dialect cannot describe."""
    module = candidate["id"]
    init = ", ".join(map(repr, described.init))
    run = functional(f"    _module = _model({described.tensor}.device)\n", described.arguments, described.state)
    return Solution(
        name=f"{described.definition.name}_{candidate['id']}",
        definition=described.definition.name,
        author=AUTHOR,
        description=candidate["plan"],
        spec=_spec(candidate, target, dialect),
        sources=[
            SourceFile(path="main.py", content=_MAIN.format(module=module, init=init, run=run)),
            SourceFile(path=f"{module}.py", content=candidate["source"]),
            SourceFile(path="kernelwright.py", content=_RUNTIME.read_text(encoding="utf-8")),
        ],
    )


def _spec(candidate: Json, target: Json, dialect: Dialect) -> BuildSpec:
    triton = target["language"] == "triton"
    hardware = hardware_name(target["hardware"])
    common: dict[str, Any] = {
        "entry_point": "main.py::run",
        "dependencies": ["torch", "triton"] if triton else ["torch"],
        "destination_passing_style": False,
    }
    if dialect == "flashinfer":
        # Its `cpp` and `cuda` are sources that it builds itself; ours are built by the Python file that calls them.
        return BuildSpec(language="triton" if triton else "python", target_hardware=[hardware], **common)
    if target["hardware"] == "cpu":
        raise Unexportable(problem=candidate["id"], why="SOL-ExecBench knows NVIDIA GPUs, and this kernel is for a CPU")
    named = "B200" if hardware == "NVIDIA_B200" else "LOCAL"
    return BuildSpec(languages=["triton" if triton else "pytorch"], target_hardware=[named], **common)


def hardware_name(hardware: str) -> str:
    """`NVIDIA_H100` for nvidia-h100; `CPU`."""
    return hardware.upper().replace("-", "_")


def traces(candidate: Json, described: Described, target: Json) -> Iterator[Trace]:
    """What the judge found of a candidate on the definition's workloads, as far as a trace can say it."""
    report = candidate["report"] or {}
    status = _STATUS.get(candidate["verdict"] or "")
    if status is None:
        return
    timed = {row["name"]: row for row in report.get("workloads") or ()}
    errors = _errors(report)
    for name, workload in described.workloads.items():
        performance = _performance(timed.get(name))
        if (status == Status.PASSED and performance is None) or not _concerns(status, report, name):
            continue
        compared = status in (Status.PASSED, Status.INCORRECT_NUMERICAL)
        found = Correctness(max_relative_error=errors.get(name, math.nan), max_absolute_error=math.nan)
        yield Trace(
            definition=described.definition.name,
            workload=workload,
            solution=f"{described.definition.name}_{candidate['id']}",
            evaluation=Evaluation(
                status=status,
                environment=_environment(report.get("environment") or {}, target),
                timestamp=candidate["evaluated_at"],
                log=report.get("log") or candidate["reason"] or "",
                correctness=found if compared else None,
                performance=performance if status == Status.PASSED else None,
            ),
        )


def _concerns(status: Status, report: Json, workload: str) -> bool:
    """Whether a wrong result was seen on this workload; anything else concerns them all."""
    failed = [check["name"] for check in report.get("checks") or () if not check["passed"]]
    named = {name.partition("/")[0] for name in failed if "/" in name}
    return status != Status.INCORRECT_NUMERICAL or not named or workload in named


def _errors(report: Json) -> dict[str, float]:
    """The largest relative error of each workload."""
    found: dict[str, float] = {}
    for check in report.get("checks") or ():
        workload, error = check["name"].partition("/")[0], (check.get("figures") or {}).get("error")
        if isinstance(error, int | float):
            found[workload] = max(found.get(workload, 0.0), error)
    return found


def _performance(timed: Json | None) -> Performance | None:
    """Against eager mode, which is what their reference is timed in."""
    reference_us = timed["baselines_us"].get("eager") if timed else None
    if timed is None or reference_us is None:
        return None
    return Performance(
        latency_ms=timed["latency_us"] / 1e3,
        reference_latency_ms=reference_us / 1e3,
        speedup_factor=reference_us / timed["latency_us"],
    )


def _environment(found: Json, target: Json) -> Environment:
    return Environment(
        hardware=hardware_name(target["hardware"]),
        libs={name: str(found[name]) for name in _LIBRARIES if found.get(name)},
    )
