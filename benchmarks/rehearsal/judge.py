"""One judge, a process of its own: operators one after the other, as `worker.judge.referee` judges and certifies them.

What holds the device how is copied from there, and from `compiling`, `baselines.compile_ahead` and `certify`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.rehearsal import trace
from benchmarks.rehearsal.clock import Clock, TimeUp
from benchmarks.rehearsal.device import Device, FakeRunner
from benchmarks.rehearsal.stages import COMPILERS, Operator, Span, Stages
from benchmarks.rehearsal.trace import Trace
from worker.judge.phases import Rhythm
from worker.judge.room import GRACE_S

_AHEAD_SHARE = 0.5
_UNSTOPPED_S = 45.0
_LOOK_S = 1.0


class FakeJudge:
    """Its way through operators."""

    def __init__(self, device: Device, clock: Clock, seen: Trace, stages: Stages, seed: int) -> None:
        self._device, self._clock, self._seen, self._stages = device, clock, seen, stages
        self._rng = random.Random(seed)
        self._prepared = False

    def certify(self, operator: Operator) -> None:
        """Everything from an operator's first candidate to the certificate. Raises TimeUp."""
        try:
            self._compile_ahead(operator)
            self._device.begin()
            self._prepare(operator)
            for number in range(operator.candidates):
                with self._seen.during(trace.JUDGED):
                    self._judge(operator, self._stages.race, self._stages.modes if number == 0 else 0)
                self._wait_for_a_question()
            if not self._prepared:
                self._prepare(operator)
            self._device.keep_room(self._stages.checked_gib)
            self._check_system()
            with self._seen.during(trace.AGAIN):
                self._prepare(operator, finalist=True)
                self._judge(operator, self._stages.thorough, self._stages.again_modes)
                self._control(operator)
                with self._device.exclusive() as work:
                    work(self._draw(self._stages.floor))
            self._seen.since(trace.DONE, self._clock.now)
        finally:
            self._prepared = False
            self._device.leave()

    # --- before the judgement ---------------------------------------------------------------------------------------

    def _compile_ahead(self, operator: Operator) -> None:
        """Beside the first build."""
        with ThreadPoolExecutor(1) as threads:
            compiling = threads.submit(self._compile_all, operator)
            self._clock.sleep(self._draw(self._stages.build))
            with self._seen.during(trace.COMPILED):
                compiling.result()

    def _compile_all(self, operator: Operator) -> None:
        self._device.take_room(_AHEAD_SHARE * operator.kept_gib, _AHEAD_SHARE * operator.passing_gib)
        making = threading.Lock()

        def fill(mine: Sequence[int]) -> None:
            rng = random.Random(self._rng.random())
            for _workload in mine:
                with self._device.briefly(), making:
                    self._device.own(self._stages.inputs.draw(rng))
                for _mode in range(self._stages.modes):
                    with self._device.briefly():
                        self._device.own(self._stages.construct.draw(rng))
                    self._compile(operator, rng)

        with self._seen.during(trace.AHEAD), ThreadPoolExecutor(COMPILERS) as threads:
            shares = [range(operator.workloads)[number::COMPILERS] for number in range(COMPILERS)]
            for filled in [threads.submit(fill, mine) for mine in shares]:
                filled.result()

    def _compile(self, operator: Operator, rng: random.Random) -> None:
        count = rng.randint(*self._stages.turns)
        cpu_s = self._stages.compile.draw(rng) / (count + 1)
        for number in range(count):
            self._clock.sleep(cpu_s)
            long = operator.matrix and number == 0 and rng.random() < self._stages.long_share
            self._device.turn((self._stages.long_turn if long else self._stages.turn).draw(rng))
        self._clock.sleep(cpu_s)

    def _prepare(self, operator: Operator, *, finalist: bool = False) -> None:
        self._device.take_room(operator.kept_gib, operator.passing_gib, finalist=finalist)
        self._prepared = True
        with self._device.shared() as work:
            for _workload in range(operator.workloads):
                work(self._draw(self._stages.prepare))

    # --- the judgement ----------------------------------------------------------------------------------------------

    def _judge(self, operator: Operator, race: Span, modes: int) -> None:
        """`modes`: of baselines that have to be made."""
        runner = self._started()
        with self._device.lent(runner):
            runner.ask(self._draw(self._stages.load))
            for _check in range(self._rng.randint(*self._stages.checks)):
                runner.ask(self._draw(self._stages.check))
                self._device.own(self._draw(self._stages.own))
        with self._device.exclusive() as work:
            work(self._draw(self._stages.provenance))
        if modes:
            with self._device.lent() as add:
                self._make_baselines(operator, add, modes)
        self._time(operator, race)
        with self._device.exclusive() as work:
            work(self._draw(self._stages.floor))

    def _make_baselines(self, operator: Operator, add: Callable[[FakeRunner], None], modes: int) -> None:
        runner = self._started()
        add(runner)
        for _each in range(modes * operator.workloads):
            runner.ask(self._draw(self._stages.baseline))

    def _time(self, operator: Operator, race: Span) -> None:
        for _workload in range(operator.workloads):
            with self._device.exclusive() as work:
                for _round in range(round(self._draw(race) / self._stages.round_s)):
                    work(self._stages.round_s)

    def _control(self, operator: Operator) -> None:
        runner = self._started()
        with self._device.lent(runner):
            runner.ask(self._draw(self._stages.load))
        self._time(operator, self._stages.control)

    # --- the certificate --------------------------------------------------------------------------------------------

    def _wait_for_a_question(self) -> None:
        """As `worker.judge.__main__` does."""
        self._leave_if_wanted(idle=False)
        gap_s, waited_s = self._draw(self._stages.gap), 0.0
        while gap_s - waited_s > _LOOK_S:
            self._clock.sleep(_LOOK_S)
            waited_s += _LOOK_S
            self._leave_if_wanted(idle=waited_s >= GRACE_S)
        self._clock.sleep(gap_s - waited_s)

    def _leave_if_wanted(self, *, idle: bool) -> None:
        if self._device.room_wanted(idle=idle):
            self._prepared = False
            self._device.leave()

    def _check_system(self) -> None:
        """In five lanes."""

        def beside_the_judge() -> None:
            for _check in range(2):
                self._check(self._stages.system)
            self._check(self._stages.system, alone=True)
            if self._rng.random() < self._stages.trained_share:
                self._train()

        def in_runners() -> None:
            for span in (self._stages.system, self._stages.system, self._stages.compiled):
                self._check(span)

        with self._seen.during(trace.SYSTEM), ThreadPoolExecutor(4) as threads:
            others = [threads.submit(in_runners), *(threads.submit(self._sanitize) for _tool in range(3))]
            beside_the_judge()
            for each in others:
                each.result()

    def _sanitize(self) -> None:
        runner = self._started()
        with self._device.lent(runner):
            runner.ask(self._draw(self._stages.load))
            runner.give_way()
            with self._device.unstopped(runner, _UNSTOPPED_S):
                runner.ask(self._draw(self._stages.sanitizer))

    def _check(self, span: Span, *, alone: bool = False) -> None:
        runner = self._started()
        with self._device.lent(runner):
            runner.ask(self._draw(span))
        if alone:
            with self._device.exclusive() as work:
                work(self._draw(self._stages.leak))

    def _train(self) -> None:
        runner = self._started()
        with self._device.lent(runner):
            runner.ask(self._draw(self._stages.load))
            for _step in range(round(self._draw(self._stages.training) / self._stages.training_step_s)):
                self._device.own(self._stages.training_step_s)
                runner.give_way()

    def _started(self) -> FakeRunner:
        self._clock.sleep(self._draw(self._stages.start))
        return self._device.runner()

    def _draw(self, span: Span) -> float:
        return span.draw(self._rng)


def work(
    number: int,
    folder: Path,
    clock: Clock,
    rhythm: Rhythm,
    memory_gib: float,
    next_one: Callable[[], Operator | None],
    seed: int,
    stages: Stages,
) -> None:
    """One judge's process: it goes on until there is no operator left, or no time."""
    seen = Trace(number, clock)
    judge = FakeJudge(Device(folder, clock, seen, rhythm, memory_gib), clock, seen, stages, seed)
    try:
        while (operator := next_one()) is not None:
            judge.certify(operator)
    except TimeUp:
        pass
    finally:
        seen.write(folder / f"{number}.trace")
