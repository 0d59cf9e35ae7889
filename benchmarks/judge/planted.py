"""A planted improvement of 3 %: does a race tell the fast version from the slow one?

The judge's own timer races fast (as the candidate), eager, slow, and a twin of fast in a process of its own: all four
in the same rounds, each in a runner as in production. The twin is the control: it must not be told from fast. Runners
are new in every run, because two runs of the same code differ by where their memory lies.

On a GPU the share of extra bytes is set so that device time, by CUDA events in this process, differs by 3 %.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.judge.figures import compared, planted_figures
from benchmarks.judge.plan import Plan
from benchmarks.judge.planted_kernels import PROBLEM, PROBLEM_NAME, bytes_moved, kernel, language
from benchmarks.judge.results import Results
from benchmarks.kernelbench_protocol import load
from worker.judge.exhibits import Exhibit
from worker.judge.referee import Referee
from worker.judge.report import EvaluationRequest
from worker.judge.runners.bench import Contender, Workbench
from worker.judge.runners.processes import RefereeOptions
from worker.judge.runners.sessions import Runner
from worker.judge.timing.fresh import Fresh
from worker.judge.timing.pace import THOROUGH
from worker.judge.timing.races import Timer, Timings
from worker.judge.trial import CONSTRUCT_LIMIT_S, FIRST_RUN_LIMIT_S, SUBJECT
from worker.judge.verdict import Fault
from worker.runner import kernelwright

RUNS, QUICK_RUNS = 40, 6
PLANTED = 0.03
_NEAR = 0.002
"""A calibrated share this near to the planted one is not corrected."""
_PAIRS, _BATCH, _PLACES = 2400, 40, 6
"""Calls to calibrate with; on a GPU in batches, whose calls go round so many inputs."""
_FLUSH_BYTES = 32 << 20
_LOAD_LIMIT_S = 150.0


def measure(plan: Plan, results: Results) -> None:
    """Run the part and write it."""
    results.begin("planted")
    entry = results.data["parts"]["planted"]
    entry["calibration"] = calibration = calibrate(plan)
    fast, slow = kernel(0.0, on_gpu=plan.on_gpu), kernel(calibration["extra"], on_gpu=plan.on_gpu)
    referee = Referee(RefereeOptions(plan.home, plan.hardware))
    try:
        if not plan.quick:
            entry["judged"] = {"fast": _judged(referee, plan, fast), "slow": _judged(referee, plan, slow)}
        with ExitStack() as stack:
            race = _Race(referee, plan, stack)
            deadline = plan.deadline()
            for number in range(plan.runs(RUNS, QUICK_RUNS)):
                if deadline.passed:
                    break
                results.add("planted", {"number": number, **race.run(fast, slow, random.Random(number))})
    finally:
        referee.close()
        if plan.on_gpu:
            torch.cuda.empty_cache()
    wanted = plan.runs(RUNS, QUICK_RUNS)
    figures = planted_figures(results.runs("planted"))
    results.finish("planted", {"wanted": wanted, "planted": calibration["measured"], **figures})


class _Race:
    """Everything that stays the same from run to run: the prepared problem, eager in its runner, the timer."""

    def __init__(self, referee: Referee, plan: Plan, stack: ExitStack) -> None:
        self._referee, self._language = referee, language(on_gpu=plan.on_gpu)
        self._exhibit: Exhibit = referee.exhibits_for(_request(plan, "")).workloads[0]
        self._timer = Timer(referee.device)
        runner = referee.processes.baseline_runner(PROBLEM_NAME)
        stack.callback(self._end, runner)
        self._eager = self._contender(runner, "eager", PROBLEM, "Model", stack)

    def run(self, fast: str, slow: str, rng: random.Random) -> dict[str, Any]:
        """One race with new processes."""
        started = time.monotonic()
        try:
            timed = self._timed(fast, slow, rng)
        except Fault as fault:
            return {"error": f"{fault.verdict}: {fault.reason}", "wall_s": time.monotonic() - started}
        samples_us, device = timed.samples_us, self._referee.device
        ratios = {
            name: compared([(samples_us[name], samples_us[SUBJECT])], device, [timed.residue_us])
            for name in ("slow", "twin")
        }
        figures = {f"{name}_over_fast": ratio.to_json() for name, ratio in ratios.items()}
        return {**figures, "wall_s": time.monotonic() - started, "samples_us": samples_us}

    def _timed(self, fast: str, slow: str, rng: random.Random) -> Timings:
        with ExitStack() as stack:
            versions = ((SUBJECT, fast), ("slow", slow), ("twin", fast))
            made = [self._made(name, source, stack) for name, source in versions]
            contenders = [made[0], self._eager, *made[1:]]
            pace = THOROUGH[self._referee.device]
            return self._timer.time(contenders, self._exhibit, Fresh(self._exhibit, rng), rng, pace)

    def _made(self, name: str, source: str, stack: ExitStack) -> Contender:
        runner = stack.enter_context(self._referee.processes.runner())
        stack.callback(self._timer.forget, runner)
        return self._contender(runner, name, source, "ModelNew", stack)

    def _contender(self, runner: Runner, name: str, source: str, model: str, stack: ExitStack) -> Contender:
        """A subject that is loaded, constructed and has run once."""
        message = {"op": "load", "subject": name, "source": source, "class": model, "compile": None}
        runner.ask(message, _LOAD_LIMIT_S)
        exhibit = self._exhibit
        bench = Workbench(runner, exhibit.instance, exhibit.cases, self._referee.device, exhibit.slots)
        stack.callback(bench.close)
        bench.construct(name, CONSTRUCT_LIMIT_S)
        bench.write(0, 0)
        bench.run(name, 0, FIRST_RUN_LIMIT_S[self._language])
        return Contender(name, bench, name)

    def _end(self, runner: Runner) -> None:
        self._timer.forget(runner)
        runner.close()


def calibrate(plan: Plan) -> dict[str, Any]:
    """How far the two are apart in this process, and the share of extra bytes that makes it 3 % (GPU only: on a CPU
    the noise of a shared machine is larger than what is to be corrected)."""
    found = {"extra": PLANTED, "measured": _measured(plan, PLANTED)}
    first = found["measured"]
    if plan.on_gpu and abs(first - PLANTED) > _NEAR and first > PLANTED / 3:
        corrected = PLANTED * PLANTED / first
        found = {"extra": corrected, "measured": _measured(plan, corrected)}
    rows, cols = _size(plan)
    moved = [bytes_moved(rows, cols, extra, on_gpu=plan.on_gpu) for extra in (0.0, found["extra"])]
    return {**found, "before_correction": first, "bytes_fast": moved[0], "bytes_slow": moved[1],
            "bytes_share": moved[1] / moved[0] - 1}  # fmt: skip


def _measured(plan: Plan, extra: float) -> float:
    """Median of slow over fast, less 1, over interleaved pairs."""
    fast, slow = (_model(plan, share) for share in (0.0, extra))
    once_us = _many_us if plan.on_gpu else _once_us
    inputs = [torch.randn(*_size(plan), device=plan.device) for _place in range(_PLACES if plan.on_gpu else 1)]
    pairs = _PAIRS // _BATCH if plan.on_gpu else _PAIRS // 8
    ratios = []
    for number in range(pairs):
        order = (fast, slow) if number % 2 else (slow, fast)
        took = {model: once_us(model, inputs) for model in order}
        ratios.append(took[slow] / took[fast])
    return statistics.median(ratios[pairs // 10 :]) - 1


def _size(plan: Plan) -> tuple[int, int]:
    return (16640, 4096) if plan.on_gpu else (1024, 1024)


def _model(plan: Plan, extra: float) -> torch.nn.Module:
    sys.modules["kernelwright"] = kernelwright
    path = plan.home / f"planted_{extra:.6f}.py".replace("0.", "0_", 1)
    path.write_text(kernel(extra, on_gpu=plan.on_gpu))
    model: torch.nn.Module = load(Path(path)).ModelNew(_size(plan)[1]).to(plan.device)
    return model.requires_grad_(requires_grad=False)


def _once_us(model: torch.nn.Module, inputs: list[torch.Tensor]) -> float:
    """One call on a CPU, after its caches were flushed."""
    torch.zeros(_FLUSH_BYTES, dtype=torch.int8)
    start = time.perf_counter()
    model(inputs[0])
    return (time.perf_counter() - start) * 1e6


def _many_us(model: torch.nn.Module, inputs: list[torch.Tensor]) -> float:
    """A call of a batch on a GPU, by events around all of it: one call's events miss what it leaves to be written
    back, a tenth of what this kernel moves."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for number in range(_BATCH):
        model(inputs[number % len(inputs)])
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / _BATCH


def _judged(referee: Referee, plan: Plan, source: str) -> dict[str, Any]:
    """Both versions are honest: the judge says so, of each alone."""
    report = referee.evaluate(_request(plan, source))
    return {"verdict": str(report.verdict), "reason": report.reason, "latency_us": report.latency_us}


def _request(plan: Plan, source: str) -> EvaluationRequest:
    return EvaluationRequest("planted", source, PROBLEM_NAME, PROBLEM, plan.hardware, language(on_gpu=plan.on_gpu))
