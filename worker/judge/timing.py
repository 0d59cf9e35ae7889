"""Timing on the judge's clock: candidate and baselines in turn, fresh values, cold caches, timed outputs checked.

On a CPU every call is timed alone: flush, ring, wait. On a GPU a *chain* of n calls, each behind a cache flush of 512
MB, is timed between two device-wide synchronisations, and the same chain without the calls is subtracted: what remains
is device time, because the launches hide behind the flushes. No number comes from the runner.

Each round times every subject once, in random order, on the same freshly written values, so that drift of the machine
hits all alike; what is compared are the ratios within a round.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field

from worker.judge import stats
from worker.judge.bench import Workbench
from worker.judge.verdict import Fault, Verdict
from worker.runner import protocol

_CALL_LIMIT_S = 60.0
_WARMUPS = 3
_MIN_ROUNDS, _MAX_ROUNDS = 9, 41
_BUDGET_S = {"cpu": 0.8, "cuda:0": 1.5}
"""Seconds of timed calls per workload."""
_SLOW_ROUND_S, _SLOW_ROUNDS = 1.0, 3
_CHAIN_S = 10e-3
"""Seconds of work in one chain. Starting and ending one adds 180 us, give or take 100 us (measured on an H200); the
null chain takes that away but for its scatter, about 1 % of a chain."""
_MIN_CALLS, _MAX_CALLS = 4, 64
_SWITCH_CALLS = 8
_DISTURBED_SHARE, _ATTEMPTS, _PAUSE_S, _PATIENCE_S = 0.2, 8, 0.02, 0.5
"""A CPU sample is taken again while its threads waited for a core for more than this share of it: up to so many times,
after a pause each, and for so many seconds per contender and workload."""
_CHECK_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time: a subject on a workbench."""

    name: str
    bench: Workbench
    subject: str


@dataclass(slots=True)
class Timings:
    """Samples in microseconds, one per round and contender; index i of every list is the same round."""

    workload: str
    samples_us: dict[str, list[float]] = field(default_factory=dict)
    overhead_us: dict[str, float] = field(default_factory=dict)
    checked_outputs: int = 0

    def latency_us(self, name: str) -> float:
        """Median of one contender."""
        return statistics.median(self.samples_us[name])

    def fastest(self, names: list[str]) -> str:
        """The contender with the smallest median."""
        return min(names, key=self.latency_us)

    def logs(self, baseline: str, candidate: str) -> list[float]:
        """ln(baseline / candidate), round by round."""
        return stats.log_ratios(self.samples_us[baseline], self.samples_us[candidate])


def time_contenders(contenders: list[Contender], rng: random.Random) -> Timings:
    """Time all contenders against each other on one workload. The first is the candidate: its outputs are checked.

    Raises Fault `incorrect` when a timed output is wrong, and whatever the runners raise.
    """
    timings = Timings(contenders[0].bench.instance.workload.name)
    clocks = [_Clock(contender) for contender in contenders]
    active: dict[int, _Clock] = {}  # one bell per runner: baselines that share one are heated in turn
    for clock in clocks:
        _activate(clock, active)
        clock.warm_up()
        timings.samples_us[clock.contender.name] = []
        timings.overhead_us[clock.contender.name] = clock.overhead_s * 1e6
    for round_number in range(_rounds(clocks)):
        case = rng.randrange(len(contenders[0].bench.cases))
        for clock in rng.sample(clocks, len(clocks)):
            _activate(clock, active)
            slot = rng.randrange(clock.contender.bench.slots)
            sample_s = clock.sample(slot, case)
            timings.samples_us[clock.contender.name].append(sample_s * 1e6)
            if clock is clocks[0] and (round_number < 2 or rng.random() < _CHECK_SHARE):
                clock.check(slot, case)
                timings.checked_outputs += 1
    for clock in active.values():
        clock.contender.bench.cool()
    return timings


def _activate(clock: _Clock, active: dict[int, _Clock]) -> None:
    key = id(clock.contender.bench.runner)
    current = active.get(key)
    if current is clock:
        return
    if current is not None:
        current.contender.bench.cool()
    clock.contender.bench.heat(clock.contender.subject)
    active[key] = clock


def _rounds(clocks: list[_Clock]) -> int:
    budget_s = _BUDGET_S[clocks[0].contender.bench.device]
    per_round_s = sum(clock.cost_s for clock in clocks)
    if per_round_s > _SLOW_ROUND_S:
        return _SLOW_ROUNDS  # a contender this slow needs no interval to be told apart
    return max(_MIN_ROUNDS, min(_MAX_ROUNDS, int(budget_s / per_round_s)))


class _Clock:
    """Times one contender."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self._ring = contender.bench.runner.ring
        self._on_device = contender.bench.device != "cpu"
        self._calls = 1
        self.overhead_s = 0.0
        self.cost_s = 0.0
        self._patience_s = _PATIENCE_S

    def warm_up(self) -> None:
        """Warm up, then choose how many calls make one sample."""
        bench = self.contender.bench
        for slot in range(bench.slots):
            bench.write(slot, slot % len(bench.cases))
        once_s = 0.0
        for step in range(_WARMUPS):
            once_s = self._ring(protocol.CALL, _CALL_LIMIT_S, slot=step % bench.slots)
        if self._on_device:
            self._ring(protocol.NULL_CHAIN, _CALL_LIMIT_S, count=_SWITCH_CALLS)
            step_s = self._ring(protocol.CHAIN, _CALL_LIMIT_S, count=_SWITCH_CALLS) / _SWITCH_CALLS
            self._calls = max(_MIN_CALLS, min(_MAX_CALLS, round(_CHAIN_S / step_s)))
            self.cost_s = (2 * self._calls + _SWITCH_CALLS) * step_s
            return
        flush_s = self._ring(protocol.FLUSH, _CALL_LIMIT_S, count=1)
        self.overhead_s = statistics.median(
            self._ring(protocol.NULL_CHAIN, _CALL_LIMIT_S, count=0) for _repeat in range(15)
        )
        self.cost_s = once_s + flush_s

    def sample(self, slot: int, case: int) -> float:
        """One sample in seconds per call, on freshly written values."""
        self.contender.bench.write(slot, case)
        if not self._on_device:
            return self._undisturbed(slot)
        # The chain walks over the slots and ends on the one just written.
        start = (slot - self._calls + 1) % self.contender.bench.slots
        # The device just served another context (the judge wrote values). The first work after such a switch takes 1 to
        # 2 ms longer on an H200, as much as a whole chain of small kernels: spend it before the clock starts.
        self._ring(protocol.NULL_CHAIN, _CALL_LIMIT_S, count=_SWITCH_CALLS)
        null_s = self._ring(protocol.NULL_CHAIN, _CALL_LIMIT_S, count=self._calls)
        chain_s = self._ring(protocol.CHAIN, _CALL_LIMIT_S, count=self._calls, slot=start)
        return max((chain_s - null_s) / self._calls, 1e-7)

    def _undisturbed(self, slot: int) -> float:
        """One call, repeated while it had to wait for a core; the least disturbed of a few if it always had to."""
        runner = self.contender.bench.runner
        best_s, least_share = 0.0, float("inf")
        for _attempt in range(_ATTEMPTS):
            self._ring(protocol.FLUSH, _CALL_LIMIT_S, count=1)
            before_s = runner.waited_s()
            elapsed_s = max(self._ring(protocol.CALL, _CALL_LIMIT_S, slot=slot) - self.overhead_s, 1e-7)
            share = (runner.waited_s() - before_s) / elapsed_s
            if share < least_share:
                best_s, least_share = elapsed_s, share
            if share < _DISTURBED_SHARE or self._patience_s <= 0:
                break
            time.sleep(_PAUSE_S)
            self._patience_s -= _PAUSE_S + elapsed_s
        return best_s

    def check(self, slot: int, case: int) -> None:
        """Judge the output of the last timed call. Raises Fault."""
        bench = self.contender.bench
        bench.poison()
        self._ring(protocol.KEEP, _CALL_LIMIT_S)
        for index, found in enumerate(bench.cases[case].judge(bench.read())):
            if not found.passed:
                reason = f"output {index} of a timed call is wrong though checked calls were right: {found.reason}"
                raise Fault(Verdict.INCORRECT, reason)
