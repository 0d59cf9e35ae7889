"""The honest runs of one problem, and the trial of an operation against them.

Made once per problem and device, because they depend on no candidate: a later finalist costs only its own runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from worker.judge.dynamics.honest import ROUNDING, accumulated_in, exactly, honest_operations
from worker.judge.dynamics.model import Weights, initial_weights
from worker.judge.dynamics.optimisers import Optimiser, optimisers
from worker.judge.dynamics.report import BiasFound, DynamicsReport
from worker.judge.dynamics.seating import fill
from worker.judge.dynamics.seats import Operation, Seat
from worker.judge.dynamics.statistics import Bias, Distance, bias_limit, distance
from worker.judge.dynamics.text import labels_of, zipf_tokens
from worker.judge.dynamics.training import HOT_ROWS, Batch, Run, Training, train

NULL_RUNS, NULL_RUNS_AGAIN = 6, 12
"""Honest runs for each optimiser, and where a candidate lay outside of those, for one that starts anew."""
_ANEW = 1 << 20
"""Added to the seed for that: another text, other weights and other noise."""
BUDGET_S = {"cpu": 60.0, "cuda": 120.0}
_STEPS = {"cpu": (12, 64), "cuda": (40, 300)}
"""(fewest, most)."""
_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LIKENESS = 2.0
"""A number format is named as the cause when its simulated errors are within this factor of the candidate's."""


class Rehearsal:
    """Data, initial weights and honest runs for one seat."""

    def __init__(
        self,
        seat: Seat,
        seed: int,
        *,
        steps: int | None = None,
        null_runs: int = NULL_RUNS,
        only: Collection[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """Trains the honest variants, 50 to 120 s on a GPU of which it is busy for a fifth. `steps`: how many; None
        chooses as many as fit the device's time budget. `only`: these optimisers. `pause` is called now and then:
        others may have the device."""
        self.seat, self.seed, self._clock = seat, seed, clock
        self._device = seat.outputs[0].device
        known = optimisers(seat.shape.width)
        self._optimisers = {name: make for name, make in known.items() if only is None or name in only}
        self.start: Weights = initial_weights(seat.shape, self._generator(seed))
        self.operations = honest_operations(seat, null_runs, seed)
        with _one_thread():
            self.steps = steps or self._affordable(null_runs)
            self.null = {
                name: [train(fill(seat, each), self.start, make(), self.batches(), pause) for each in self.operations]
                for name, make in self._optimisers.items()
            }

    def batches(self) -> Iterator[Batch]:
        """The same ones every time."""
        generator = self._generator(self.seed + 1)
        shape = self.seat.shape
        for _step in range(self.steps):
            tokens = zipf_tokens(*self.seat.batch, shape.vocabulary, generator)
            yield tokens, labels_of(tokens, shape.classes)

    def judge(self, operation: Operation, pause: Callable[[], None] = lambda: None) -> DynamicsReport:
        """Train with `operation` in the seat under every optimiser and compare. `pause` as above.

        What lies a little outside of the honest band is tried once more, with everything drawn anew and twice as many
        honest runs: training amplifies a rounding now and then, and six runs seldom hold one that it happened to. Of
        20 honest variants of softmax, each against six of the others, 8 % lay outside under one of the four optimisers
        (`benchmarks/dynamics_false_alarms.py`); what a kernel always does wrong it does with any weights.
        """
        started = self._clock()
        tape = _Tape(operation, self._sampled_calls())
        distances: list[Distance] = []
        with _one_thread():
            for name, make in self._optimisers.items():
                run = train(fill(self.seat, tape if not distances else operation), self.start, make(), self.batches())
                found = self.distance(name, run)
                lost = any(not each.passed for each in distances)
                chance = found.near and not found.passed and not lost
                distances.append(self._anew(found, make, operation, pause) if chance else found)
        return DynamicsReport(
            seat=self.seat.kind,
            workload=self.seat.instance.workload.name,
            steps=self.steps,
            null_runs=len(self.operations),
            tokens=self.seat.tokens,
            parameters=sum(weight.numel() for weight in self.start.values()),
            distances=tuple(distances),
            bias=self._bias(tape.calls),
            seconds=self._clock() - started,
        )

    def distance(self, optimiser: str, run: Run) -> Distance:
        """One run against the null."""
        return distance(optimiser, run, self.null[optimiser], self.start["table"][:HOT_ROWS])

    def anew(
        self, optimiser: str, null_runs: int = NULL_RUNS_AGAIN, pause: Callable[[], None] = lambda: None
    ) -> Rehearsal:
        """Honest runs of one optimiser with other text and weights."""
        return Rehearsal(
            self.seat, self.seed + _ANEW, steps=self.steps, null_runs=null_runs, only=(optimiser,), pause=pause
        )

    def _anew(
        self, first: Distance, make: Callable[[], Optimiser], operation: Operation, pause: Callable[[], None]
    ) -> Distance:
        other = self.anew(first.optimiser, pause=pause)
        run = train(fill(self.seat, operation), other.start, make(), other.batches())
        return replace(other.distance(first.optimiser, run), first=first)

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(device=self._device).manual_seed(seed)

    def _affordable(self, null_runs: int) -> int:
        """Steps that fit the budget, by the second of two steps of the reference."""
        self.steps = 2
        model = fill(self.seat, self.operations[0])
        training = Training(model, self.start, next(iter(self._optimisers.values()))())
        for batch in self.batches():
            started = self._clock()
            training.step(batch)
            training.settle()
            step_s = max(self._clock() - started, 1e-4)
        runs = (null_runs + 1) * len(self._optimisers)
        fewest, most = _STEPS[self._device.type]
        return max(fewest, min(most, int(BUDGET_S[self._device.type] / runs / step_s)))

    def _sampled_calls(self) -> set[int]:
        """Which calls of a run are looked at: the gradient calls of the first, middle and last step."""
        per_step = 1 if self.seat.kind == "embedding_gradient" or not self.seat.instance.backward else 2
        return {(step + 1) * per_step - 1 for step in (0, self.steps // 2, self.steps - 1)}

    def _bias(self, calls: list[tuple[tuple[Any, ...], tuple[torch.Tensor, ...]]]) -> BiasFound:
        truths = [self._slices(arguments, exactly(self.seat, torch.float64)(arguments)) for arguments, _out in calls]
        found = Bias.of([(self._slices(args, out), truth) for (args, out), truth in zip(calls, truths, strict=True)])
        honest = [
            Bias.of([(self._slices(args, each(args)), truth) for (args, _o), truth in zip(calls, truths, strict=True)])
            for each in self.operations
        ]
        place = self._judged_output(calls[0][1])
        limit = bias_limit(honest, ROUNDING.get(self.seat.outputs[place].dtype, 0.0))
        if self.seat.kind != "embedding_gradient":
            return BiasFound(found.worst, limit)
        worst = int(found.error_per_slice.argmax())
        return BiasFound(
            found.worst,
            limit,
            hits=int(torch.bincount(calls[0][0][self.seat.streams[1]].reshape(-1), minlength=HOT_ROWS)[worst]),
            received=float(1 + found.per_slice[worst]),
            error=float(found.error_per_slice[worst]),
            honest_error=max(float(each.error_per_slice[worst]) for each in honest),
            cause=self._cause(calls, truths, found),
        )

    def _judged_output(self, outputs: tuple[torch.Tensor, ...]) -> int:
        """Which output's bias counts: the table's gradient, the gradient of the first input, or the result itself."""
        if self.seat.kind == "embedding_gradient" or not self.seat.instance.backward:
            return 0
        first = self.seat.gradient_of(self.seat.streams[0], outputs)
        return next(place for place, output in enumerate(outputs) if output is first)

    def _slices(self, arguments: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """(slices, elements) of the judged output: the table's hottest rows, or a layer's features over all tokens."""
        output = outputs[self._judged_output(outputs)]
        if self.seat.kind == "embedding_gradient":
            return output[:HOT_ROWS]
        return output.reshape(-1, output.shape[-1] if output.dim() else 1).T

    def _cause(
        self,
        calls: list[tuple[tuple[Any, ...], tuple[torch.Tensor, ...]]],
        truths: list[torch.Tensor],
        found: Bias,
    ) -> str:
        """The number format whose running sums err as the candidate does, on the rows where it errs most."""
        errors = found.error_per_slice
        top = errors.argsort(descending=True)[:5]
        if float(errors[top[0]]) < 2 * ROUNDING[torch.bfloat16]:
            return ""
        for name, dtype in _FORMATS.items():
            sums = [accumulated_in(self.seat, arguments, dtype)[:HOT_ROWS] for arguments, _outputs in calls]
            simulated = Bias.of(list(zip(sums, truths, strict=True))).error_per_slice[top]
            likeness = float((errors[top] / simulated.clamp_min(1e-30)).log().abs().median().exp())
            if likeness < _LIKENESS:
                return name
        return ""


class _Tape:
    """An operation that keeps what a few of its calls were given and gave."""

    def __init__(self, operation: Operation, wanted: set[int]) -> None:
        self._operation, self._wanted, self._count = operation, wanted, 0
        self.calls: list[tuple[tuple[Any, ...], tuple[torch.Tensor, ...]]] = []

    def __call__(self, arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        outputs = self._operation(arguments)
        if self._count in self._wanted:
            self.calls.append((arguments, outputs))
        self._count += 1
        return outputs


@contextmanager
def _one_thread() -> Iterator[None]:
    """Train on one thread. The micro model's operations last microseconds, and on two cores that others use too a step
    took 20 times as long with two threads as with one (1.0 s against 0.05 s)."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
