"""Configurations of one candidate, measured quickly one after another: one runner, warm benches, and no verdict.

    tuning = Tuning(parts, request)            # the candidate as it is, judged before
    tuning.measure(source)                     # the same source with other values: Measurement
    tuning.close()

Each configuration is loaded beside the candidate in the same runner, its outputs are compared with the truth on one
case of each workload, and its calls are timed in turn with the candidate's own (`worker.judge.timing.quick`). The
device is shared while values are checked and held alone while calls are timed. A configuration that ends the runner
costs a new one and nothing else. Nothing here makes a configuration acceptable: the best is judged in full, as any
candidate is.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from worker.judge.exhibits import Exhibit, Exhibits
from worker.judge.intake import load
from worker.judge.lease import DeviceLease
from worker.judge.report import EvaluationRequest
from worker.judge.runners.bench import Contender, Workbench, Workshop
from worker.judge.runners.sessions import Runner
from worker.judge.timing.fresh import Fresh
from worker.judge.timing.quick import compare
from worker.judge.timing.races import Timer
from worker.judge.trial import CONSTRUCT_LIMIT_S, FIRST_RUN_LIMIT_S
from worker.judge.verdict import Fault, Verdict
from worker.runner.values import dtype_name

ITSELF = "itself"


@dataclass(slots=True)
class Measurement:
    """One configuration. `ratios`: how much faster than the candidate as it is, by workload; empty where it failed."""

    verdict: Verdict = Verdict.OK
    reason: str = ""
    ratios: dict[str, float] = field(default_factory=dict)
    latency_us: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, list[list[str | int]]] = field(default_factory=dict)
    """By workload: dtype and sizes of each tensor that forward is given, in order: ["float32", 1024, 4096]."""
    gpu_s: float = 0.0
    """Seconds for which the device was held."""
    wall_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TuningParts:
    """What a referee lends: its problem, its device and its way to start runners."""

    exhibits: Exhibits
    lease: DeviceLease
    timer: Timer
    runner: Callable[[], contextlib.AbstractContextManager[Runner]]
    device: str


class Tuning:
    """See the module."""

    def __init__(self, parts: TuningParts, request: EvaluationRequest) -> None:
        self.request = request
        self._parts = parts
        self._rng = random.Random(secrets.randbits(64))
        self._stack = ExitStack()
        self._runner: Runner | None = None
        self._benches: list[tuple[Exhibit, Workbench]] = []
        self._workshop: Workshop | None = None
        self._number = 0

    def measure(self, source: str) -> Measurement:
        """Measure one configuration. Raises Fault where the candidate itself, or the machine, fails."""
        started_s, held_s = time.monotonic(), self._parts.lease.held_s
        if self._runner is None or self._runner.dead:
            self._open()
        found = Measurement(signatures={exhibit.name: _signature(exhibit) for exhibit, _ in self._benches})
        try:
            self._measure(source, found)
        except Fault as fault:
            if fault.verdict is Verdict.INFRA_ERROR:
                raise
            found.verdict, found.reason, found.ratios, found.latency_us = fault.verdict, fault.reason, {}, {}
        found.wall_s = time.monotonic() - started_s
        found.gpu_s = self._parts.lease.held_s - held_s
        return found

    def close(self) -> None:
        """End the runner."""
        for _exhibit, bench in self._benches:
            bench.close()
        if self._workshop is not None:
            self._workshop.close()
        self._benches, self._workshop, self._runner = [], None, None
        self._stack.close()

    def _open(self) -> None:
        """A runner with the candidate as it is on a bench for each workload."""
        self.close()
        runner = self._runner = self._stack.enter_context(self._parts.runner())
        with self._parts.lease.lent(runner):
            load(runner, self.request.candidate_source, ITSELF)
            self._workshop = self._parts.exhibits.workshop()
            for exhibit in self._parts.exhibits.workloads:
                where = self._parts.device, exhibit.slots
                bench = Workbench(runner, exhibit.instance, exhibit.cases, *where, workshop=self._workshop)
                self._benches.append((exhibit, bench))
                self._check(bench, exhibit, ITSELF)

    def _measure(self, source: str, found: Measurement) -> None:
        assert self._runner is not None
        self._number += 1
        subject = f"configuration{self._number}"
        with self._parts.lease.lent(self._runner):
            load(self._runner, source, subject)
            for exhibit, bench in self._benches:
                self._check(bench, exhibit, subject)
        with self._parts.lease.exclusive():
            for exhibit, bench in self._benches:
                mine, other = Contender(subject, bench, subject), Contender(ITSELF, bench, ITSELF)
                fresh = Fresh(exhibit, self._rng)
                seen = compare(self._parts.timer, mine, other, exhibit, fresh, self._rng)
                found.ratios[exhibit.name], found.latency_us[exhibit.name] = seen.ratio, seen.latency_us

    def _check(self, bench: Workbench, exhibit: Exhibit, subject: str) -> None:
        """Make the model and compare two cases with the truth, which is what "roughly" means here: the first, which is
        plain noise, and any other. Constants alone do not tell one dimension from another."""
        bench.construct(subject, CONSTRUCT_LIMIT_S)
        for number in sorted({0, self._rng.randrange(len(exhibit.cases))}):
            bench.write(0, number)
            outputs = bench.run(subject, 0, FIRST_RUN_LIMIT_S[self.request.language])
            for verdict in exhibit.cases[number].judge(outputs):
                if not verdict.passed:
                    raise Fault(Verdict.INCORRECT, f"{exhibit.name}: {verdict.reason}")


def _signature(exhibit: Exhibit) -> list[list[str | int]]:
    given = exhibit.instance.like[: exhibit.instance.forward_inputs]
    return [[dtype_name(value.dtype), *value.shape] for value in given if isinstance(value, torch.Tensor)]
