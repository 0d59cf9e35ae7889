"""A judge's means for system checks alone, without a whole referee: real zygote, real sandbox, real builds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from worker.judge.certificate.certify import SystemReport, run_check
from worker.judge.certificate.document import Outcome
from worker.judge.certificate.layers import row
from worker.judge.certificate.parts import RefereeParts
from worker.judge.certificate.stage import SystemCheck
from worker.judge.exhibits import Exhibits
from worker.judge.lease import DeviceLease
from worker.judge.reference.problem import Problem
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.runners.builder import make_builder
from worker.judge.runners.sessions import Runner, Zygote, runner_environment, zygote_environment
from worker.judge.verdict import Verdict
from worker.languages.cache import BuildCache
from worker.runner import sandbox

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def means(home: Path, problem: str, hardware: str) -> Iterator[RefereeParts]:
    """Parts for one problem. `again` is not available: it needs a referee."""
    on_gpu = hardware != "cpu"
    device = "cuda:0" if on_gpu else "cpu"
    (home / "build").mkdir()
    zygote = Zygote(zygote_environment(ROOT, torch.get_num_threads()))
    builder = make_builder(BuildCache(home / "build"), on_gpu=on_gpu)

    @contextmanager
    def runner(unlimited: bool) -> Iterator[Runner]:
        limits = sandbox.Limits(
            memory_bytes=(16 if on_gpu else 3) << 30, address_space_bytes=None if unlimited or on_gpu else 11 << 30
        )
        confinement = sandbox.Confinement(zygote.level, limits, sandbox.python_folders(), gpu=on_gpu)
        started = zygote.spawn(confinement, runner_environment(torch.get_num_threads(), gpu=on_gpu))
        started.build = builder
        try:
            yield started
        finally:
            started.close()

    def again() -> Evaluation:
        raise NotImplementedError("a second judgement needs a referee")

    try:
        exhibits = Exhibits(Problem(problem, "problem"), hardware, device, seed=5)
        yield RefereeParts(device, exhibits, DeviceLease(home / "run", "test"), runner, again)
    finally:
        zygote.close()


def outcome(parts: RefereeParts, check: SystemCheck, source: str, language: str) -> tuple[Outcome, str, Verdict]:
    """(outcome, detail, verdict of the report) of one system check on one candidate."""
    problem, report = parts.exhibits.problem.outline, SystemReport()
    hardware = "cpu" if parts.device == "cpu" else "gpu"
    request = EvaluationRequest("c", source, problem.name, problem.source, hardware, language)
    run_check(parts, request, check, report)
    (found,) = (row(item) for item in report.rows)
    assert found.name == f"system: {check.name}"
    return found.outcome, found.detail, report.verdict
