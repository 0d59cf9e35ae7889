"""The GPU's ladder: ncu, else CUPTI through torch's profiler, else what the compiler gave each kernel.

Each rung has a runner of its own: the one that was timed had CUPTI taken out of its driver
(`worker.runner.provenance`), and nothing records there any more. What comes back is the runner's word, so it is checked
for its form.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from worker.judge.ahead import arch_of
from worker.judge.runners.bench import Workbench
from worker.judge.runners.sessions import Runner
from worker.judge.trial import CONSTRUCT_LIMIT_S, FIRST_RUN_LIMIT_S, SUBJECT, Trial
from worker.profile import ncu, resources
from worker.profile.counters import NotCounted
from worker.profile.loops import Malformed
from worker.profile.occupancy import occupancy
from worker.profile.roofline import RoofPoint
from worker.profile.rungs import Rung, Seen

_LOAD_LIMIT_S, _ANSWER_LIMIT_S, _CALLS = 60.0, 30.0, 5
NCU_LIMIT_S = 30.0
"""Most of it is importing torch and making a context; the counters of one call take under a second."""
_WORTH_COUNTING = 0.8
"""ncu takes as long as judging does: only for candidates that nearly reach the best of their problem so far."""


class GpuLadder:
    """Looks at candidates on one GPU; remembers which rungs this machine has closed."""

    def __init__(
        self, fresh: Callable[[], AbstractContextManager[Runner]], closed: Mapping[str, str] | None = None
    ) -> None:
        """`fresh`: a new confined runner with its build broker. `closed`: rungs known to be, with the reason."""
        self._fresh = fresh
        self._closed: dict[str, str] = dict(closed or {})
        self._best: dict[str, float] = {}

    def look(self, trial: Trial, point: RoofPoint) -> Seen:
        """All that this machine tells about one workload's calls: 2 s, or some 15 s with ncu."""
        seen = Seen(refused=dict(self._closed))
        rungs: tuple[tuple[Rung, Callable[[Trial, RoofPoint, Seen], None]], ...] = (
            (Rung.NCU, self._count),
            (Rung.PROFILER, self._record),
            (Rung.RESOURCES, self._resources),
        )
        for rung, stand in rungs:
            if rung not in self._closed and seen.attempt(rung, functools.partial(stand, trial, point, seen)):
                seen.rung = rung
                break
        return seen

    def _count(self, trial: Trial, point: RoofPoint, seen: Seen) -> None:
        self._worth_counting(trial)
        try:
            found = self._counters(trial, point)
        except NotCounted as closed:
            self._closed[Rung.NCU] = str(closed)
            raise
        seen.metrics.update(found.metrics)
        seen.kernels = found.kernels

    def _counters(self, trial: Trial, point: RoofPoint) -> ncu.Counted:
        tool = ncu.command()
        if tool is None:
            raise NotCounted("ncu is not installed")
        with self._stage(trial, point) as bench:
            message = bench.job() | {"tool": tool, "name": "ncu", "source": trial.request.candidate_source}
            try:
                with bench.runner.handed_builds() as (builds, descriptors):
                    answer = _ask(bench, "ncu", message | {"builds": builds}, NCU_LIMIT_S, descriptors)
            except ValueError as too_many:
                raise Malformed(str(too_many)) from too_many
        return ncu.read(answer, point.latency_us, point.bytes_moved)

    def _worth_counting(self, trial: Trial) -> None:
        problem, speedup = trial.request.problem_source, trial.evaluation.speedup or 0.0
        best = self._best[problem] = max(speedup, self._best.get(problem, 0.0))
        if speedup < _WORTH_COUNTING * best:
            raise NotCounted(f"not worth its time at {speedup:.2f}x where {best:.2f}x was reached before")

    def _record(self, trial: Trial, point: RoofPoint, seen: Seen) -> None:
        with self._stage(trial, point) as bench:
            answer = _ask(bench, "kernels", {"subject": SUBJECT, "calls": _CALLS}, _ANSWER_LIMIT_S)
        properties = torch.cuda.get_device_properties(0)
        capability = 10 * properties.major + properties.minor
        found = resources.of_launches(answer, _CALLS, point.latency_us, capability, properties.multi_processor_count)
        seen.metrics.update(found.metrics)
        seen.kernels = found.kernels

    def _resources(self, trial: Trial, point: RoofPoint, seen: Seen) -> None:
        found = [kernel for build in trial.runner.builds for kernel in resources.of_log(_log_beside(build[3]))]
        if trial.request.language == "triton":
            found = self._built(trial, point)
        if not found:
            raise Malformed("no kernel's resources are known")
        worst = max(found, key=lambda kernel: kernel.registers)
        seen.metrics |= {"registers": worst.registers, "spill_bytes": max(kernel.spill_bytes for kernel in found)}
        if worst.threads:
            properties = torch.cuda.get_device_properties(0)
            fits = occupancy(
                10 * properties.major + properties.minor, worst.threads, worst.registers, worst.shared_bytes
            )
            seen.metrics["occupancy"] = fits.share if fits else None
        seen.kernels = [kernel.to_json() for kernel in found]

    def _built(self, trial: Trial, point: RoofPoint) -> list[resources.Kernel]:
        """A Triton candidate's kernels, compiled for this arch and not run."""
        with self._stage(trial, point, {"op": "record", "arch": arch_of(trial.request.hardware)}) as bench:
            return resources.of_record(bench.runner.ask({"op": "recorded"}, _ANSWER_LIMIT_S))

    @contextmanager
    def _stage(self, trial: Trial, point: RoofPoint, mode: Mapping[str, Any] | None = None) -> Iterator[Workbench]:
        """The candidate in a new runner, called once on the point's workload."""
        exhibit = next(exhibit for exhibit in trial.exhibits.workloads if exhibit.name == point.workload)
        with self._fresh() as runner:
            if mode is not None:
                runner.ask(dict(mode), _ANSWER_LIMIT_S)
            message = {"op": "load", "subject": SUBJECT, "source": trial.request.candidate_source, "class": "ModelNew"}
            runner.ask(message | {"compile": None}, _LOAD_LIMIT_S)
            bench = Workbench(runner, exhibit.instance, exhibit.cases[:1], trial.device, 1)
            try:
                bench.construct(SUBJECT, CONSTRUCT_LIMIT_S)
                bench.write(0, 0)
                bench.run(SUBJECT, 0, FIRST_RUN_LIMIT_S[trial.request.language])
                yield bench
            finally:
                bench.close()


def _ask(
    bench: Workbench, operation: str, message: Mapping[str, Any], limit_s: float, fds: tuple[int, ...] = ()
) -> dict[str, Any]:
    own = {"op": f"profile.{operation}", "workload": bench.name, "inputs": bench.encoded(0), "limit_s": limit_s}
    return bench.runner.ask(own | {"wanted": ncu.WANTED} | dict(message), limit_s + _ANSWER_LIMIT_S, fds)


def _log_beside(artefact: str) -> str:
    """What the compiler said when it made an artefact: the build cache keeps it."""
    record = Path(artefact).with_suffix(".json")
    try:
        return str(json.loads(record.read_text(encoding="utf-8")).get("log", ""))
    except (OSError, ValueError):
        return ""
