"""What a problem is judged with: per workload the reference's instance and its cases, and live baselines beside them.

Made once per problem and reused for every candidate. Baselines live in one runner of their own, built at the first
timing, because `torch.compile` takes 20 s on a CPU and most bad candidates never get that far.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import torch

from worker.judge.bench import Workbench
from worker.judge.probes import Probe, Variant, make_layouts, make_probes, make_shapes
from worker.judge.problem import Instance, Problem
from worker.judge.sessions import Runner
from worker.judge.timing import Contender
from worker.judge.truth import Case, Truth, prepare_cases
from worker.judge.verdict import Fault, ReferenceFailed, Verdict

log = structlog.get_logger()

SLOTS = 3
_CASES, _CASES_LARGE = 4, 2
_LARGE_BYTES = {"cpu": 8 << 20, "cuda:0": 256 << 20}
"""Inputs above this get two cases: the fp64 truth of one 32 MiB workload costs 0.5 s on two cores."""
_COMPILE_LIMIT_S = 300.0
_REFERENCE_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One workload, ready to judge with."""

    instance: Instance
    cases: list[Case]
    truth: Truth

    @property
    def name(self) -> str:
        return self.instance.workload.name

    @property
    def input_bytes(self) -> int:
        """Bytes of one set of inputs."""
        return sum(getattr(value, "nbytes", 0) for value in self.instance.like)

    @property
    def output_bytes(self) -> int:
        """Bytes of the outputs."""
        return sum(output.nbytes for output in self.cases[0].eager)


class Exhibits:
    """All workloads of one problem on one device, smallest first."""

    def __init__(self, problem: Problem, hardware: str, device: str, seed: int) -> None:
        """Raises ReferenceFailed when the reference cannot be judged against."""
        self.problem, self.device, self._seed = problem, device, seed
        self.workloads = [
            self._prepare(problem.instance(workload, device, seed + index), seed + index)
            for index, workload in enumerate(problem.workloads(hardware))
        ]
        self.workloads.sort(key=lambda exhibit: exhibit.input_bytes)
        self._baselines: Baselines | None = None

    def _prepare(self, instance: Instance, seed: int) -> Exhibit:
        size = sum(getattr(value, "nbytes", 0) for value in instance.like)
        count = _CASES if size <= _LARGE_BYTES[self.device] else _CASES_LARGE
        truth = Truth(instance, self.problem.spec.precision)
        return Exhibit(instance, prepare_cases(self.problem, truth, self.device, seed, count), truth)

    @functools.cached_property
    def probes(self) -> list[Probe]:
        """The smallest workload with one input or parameter changed."""
        smallest = self.workloads[0]
        generator = torch.Generator(device=self.device).manual_seed(self._seed + 1)
        return make_probes(self.problem, smallest.truth, smallest.cases[0], generator)

    @functools.cached_property
    def shapes(self) -> list[Variant]:
        """Workloads of other sizes."""
        return make_shapes(self.problem, self.workloads[0].instance, self.device, self._seed + 2)

    @functools.cached_property
    def layouts(self) -> list[Variant]:
        """The smallest workload in other memory."""
        return make_layouts(self.workloads[0].instance, self.workloads[0].cases[0])

    def baselines(self, spawn: Callable[[], Runner]) -> Baselines:
        """The live baselines, made on first use and again after their runner died."""
        if self._baselines is None or self._baselines.dead:
            self._baselines = Baselines(self, spawn())
        return self._baselines

    def close(self) -> None:
        """End the baselines' runner."""
        if self._baselines is not None:
            self._baselines.close()


class Baselines:
    """Eager and `torch.compile` of the reference, in a runner of their own, one workbench per workload."""

    def __init__(self, exhibits: Exhibits, runner: Runner) -> None:
        self._runner = runner
        self.dead = False
        self.missing: dict[str, str] = {}
        """Baselines that could not be made, and why."""
        source, device = exhibits.problem.outline.source, exhibits.device
        self._benches = {
            exhibit.name: Workbench(runner, exhibit.instance, exhibit.cases, device, SLOTS)
            for exhibit in exhibits.workloads
        }
        self.names = [name for name in ("eager", "compile") if self._make(name, source)]
        if "eager" not in self.names:
            raise ReferenceFailed(f"the reference does not run in a runner: {self.missing['eager']}")

    def _make(self, name: str, source: str) -> bool:
        """Load, construct and warm one baseline on every workload; False (with the reason kept) when it fails."""
        mode = None if name == "eager" else "default"
        try:
            message = {"op": "load", "subject": name, "source": source, "class": "Model", "compile": mode}
            self._runner.ask(message, _REFERENCE_LIMIT_S)
            for bench in self._benches.values():
                bench.construct(name, _REFERENCE_LIMIT_S)
                bench.write(0, 0)
                outputs = bench.run(name, 0, _COMPILE_LIMIT_S)
                wrong = [found.reason for found in bench.cases[0].judge(outputs) if not found.passed]
                if wrong:  # an inaccurate baseline is no baseline, but it is worth knowing about
                    self.missing[name] = wrong[0]
        except Fault as fault:
            self.missing[name] = fault.reason
            log.warning("baseline.failed", baseline=name, reason=fault.reason)
            if fault.verdict in (Verdict.TIMEOUT, Verdict.INFRA_ERROR):
                self.dead = True
                raise
            return False
        return True

    def contenders(self, workload: str) -> list[Contender]:
        """The baselines of one workload, for `time_contenders`."""
        return [Contender(name, self._benches[workload], name) for name in self.names]

    def close(self) -> None:
        """End the runner and release the arenas."""
        self.dead = True
        with contextlib.suppress(Fault):
            self._runner.close()
        for bench in self._benches.values():
            bench.close()
