"""A quick comparison of two subjects on one workload: enough to rank configurations, never enough to publish.

The same clocks, fresh values and evictions as a race (`worker.judge.timing.races`), without what makes a race safe
against a hostile candidate: no output of a timed call is looked at, and both subjects live in one runner. What wins
here is judged in full before it counts.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from worker.judge.exhibits import Exhibit
from worker.judge.runners.bench import Contender
from worker.judge.timing.clocks import DeviceClock, HostClock, Plan, Round, Sample
from worker.judge.timing.fresh import Fresh
from worker.judge.timing.races import Timer
from worker.judge.verdict import Fault

BLOCKS, SAMPLES, CHAINS = 2, 4, 2
"""Each subject in turn, so many calls at a time (on a GPU chains of calls): to change the subject costs a runner more
than a short call."""
PATIENCE_S = 0.1
"""For how long a subject's disturbed samples are taken again, on a CPU and for one workload."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One workload: the shortest latencies, since a machine that is busy with something else only ever adds to them."""

    latency_us: float
    ratio: float
    """Other over mine: above 1 is faster."""


def compare(
    timer: Timer, mine: Contender, other: Contender, exhibit: Exhibit, fresh: Fresh, rng: random.Random
) -> Compared:
    """Time two subjects of one runner in turn. Raises Fault as the runner does."""
    clocks = [
        timer.clock(mine, fresh, exhibit, kept=False, trusted=False),
        timer.clock(other, fresh, exhibit, kept=True, trusted=True),
    ]
    bell = _Bell(fresh, exhibit)
    plan = Plan()
    try:
        with timer.placed((mine, other)):
            _warm_up(clocks, bell, plan)
            taken = [_block(clock, bell, plan, fresh, rng) for _ in range(BLOCKS) for clock in clocks]
    finally:
        bell.release()
    shortest_s = [min(map(plan.seconds_per_call, sum(taken[index::2], []))) for index in range(2)]
    return Compared(latency_us=shortest_s[0] * 1e6, ratio=shortest_s[1] / shortest_s[0])


class _Bell:
    """Who has the runner's bell: one subject at a time."""

    def __init__(self, fresh: Fresh, exhibit: Exhibit) -> None:
        self._fresh, self._exhibit = fresh, exhibit
        self._holder: Contender | None = None

    def give(self, contender: Contender) -> None:
        contender.bench.runner.thaw()
        if self._holder is contender:
            return
        if self._holder is not None:
            self._holder.bench.cool()
        contender.bench.heat(contender.subject, self._fresh.mix, self._exhibit.retained)
        self._holder = contender

    def release(self) -> None:
        """Take the runner back, also after a fault: a runner that does not answer is then known as dead."""
        if self._holder is not None:
            self._holder.bench.runner.thaw()
            with contextlib.suppress(Fault):
                self._holder.bench.cool()


def _warm_up(clocks: Sequence[HostClock | DeviceClock], bell: _Bell, plan: Plan) -> None:
    for clock in clocks:
        bell.give(clock.contender)
        clock.warm_up(plan)
        if isinstance(clock, HostClock):
            clock.patience_s = PATIENCE_S
    device = [clock for clock in clocks if isinstance(clock, DeviceClock)]
    for device_clock in device:
        device_clock.plan(plan, min(clock.step_s for clock in device))


def _block(clock: HostClock | DeviceClock, bell: _Bell, plan: Plan, fresh: Fresh, rng: random.Random) -> list[Sample]:
    bell.give(clock.contender)
    samples: list[Sample] = []
    for _ in range(CHAINS if isinstance(clock, DeviceClock) else SAMPLES):
        source, seed = fresh.choose()
        turn = Round(source, seed, rng.randrange(1 << 31), kept=0)
        samples.append(
            clock.sample(turn, plan.calls, rng) if isinstance(clock, DeviceClock) else clock.sample(turn, rng)
        )
        clock.contender.bench.runner.thaw()
    if clock.trusted:
        plan.keep_s += [sample.keep_s for sample in samples]
        plan.null_s += [sample.null_s for sample in samples]
    return samples
