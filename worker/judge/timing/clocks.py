"""How one sample is taken: on the judge's clock, cold, on values that the runner has never seen.

A sample ends when the bytes are in the judge's hands. A call is over when the runner says so; then, at once, a result
is asked for (KEEP), and whatever KEEP takes beyond what it takes the trusted baseline, which copies as many bytes with
the same lines of code, is added to the sample. So work that was put off gains nothing, nor does an early answer.
Between its turns a runner is stopped: it can neither work ahead nor disturb the others.
In some calls, which are like all others until then, it is stopped when the call is over and its inputs are written over
before the result is asked for: what was put off is wrong then.

What is subtracted (the bell's round trip on a CPU, the chain without its calls on a GPU) is measured in the baseline's
runner, never in the candidate's; and only from a call that found the runner asleep at its bell. One that did not sleep
has no waking up to subtract: turning in a loop of its own it won 10.5x where its honest twin had 1.0.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from worker.judge.exhibits import Exhibit
from worker.judge.numerics.case import Case
from worker.judge.runners.bench import Contender
from worker.judge.timing.evicting import DeviceEviction, HostEviction
from worker.judge.timing.fresh import Fresh
from worker.judge.timing.pace import CHAIN_S
from worker.runner import protocol
from worker.runner.mixing import step_number

CALL_LIMIT_S = 60.0
_WARMUPS = 3
_RINGS = 16
_RESIDUE_S, _CHAIN_RESIDUE_S = 1e-6, 20e-6
"""What subtracting the null chain leaves of an eviction and of a chain, a whole race long: the eviction buffers of two
runners lie elsewhere and differ by up to 1 % in speed (H200)."""
_LEAD_STEPS = 12
"""Evictions before a chain: a process that was stopped for some milliseconds takes 200 to 500 us for its first
launches, against 30 us later, and without them the device would idle meanwhile."""
_MIN_CALLS, _SETTLE_CALLS, _STEP_CALLS = 4, 4, 32
_LONGEST_CHAIN = 2.0
"""Times the usual chain that a baseline's may last: eager calls of 3 ms beside a kernel of 50 us took 0.4 s a chain,
and several references of the suite are 10 to 50 times slower than their kernels (H200)."""
_SHORTEST_STEP_S = 62.5e-6
"""A step is taken to be no shorter than this, about an eviction on an H200: 256 calls in a chain of 16 ms."""
_SWITCH_STEPS = 24
"""The first work after the device served another context (the judge wrote values) takes 1 to 2 ms longer on an H200, as
much as a whole chain of small kernels: so many evictions spend it before the clock starts."""
_KEEP_SLACK, _KEEP_SLACK_S = 1.1, 3e-6
"""KEEP may take this much longer than the trusted one's before it counts."""
_DISTURBED_SHARE, _ATTEMPTS, _PAUSE_S, _PATIENCE_S = 0.2, 8, 0.02, 0.5
"""A CPU sample is taken again while its threads waited for a core for more than this share of it: up to so many times,
after a pause each, and for so many seconds per contender and workload."""
_RESUMING_S = 60e-6
"""What all of its threads wait for when a stopped runner resumes: 20 to 76 us on two cores."""
_SPIN_S = 0.5
"""A chain's answer is awaited without sleeping for so long."""
_ROUND_S = 12e-3
"""What a sample costs beside its calls: evictions, new values, stopping and resuming."""
_SHORTEST_S = 1e-7


@dataclass(frozen=True, slots=True)
class Round:
    """What all contenders of one round have in common."""

    source: Case
    seed: int
    nonce: int
    kept: int
    """Which call's result of a chain the judge asks for: chosen now, told after the chain."""


@dataclass(slots=True)
class Sample:
    """One contender's part of a round."""

    call_s: float
    keep_s: float
    null_s: float
    """What to subtract, if this contender is the trusted one."""
    turn: Round
    """Whose values it had: a call that is repeated has others than those of its round."""
    outputs: tuple[torch.Tensor, ...] | None
    """Of one call, until they are checked."""
    waited_s: float = 0.0
    """Seconds for which its threads were ready but had no core, on a CPU."""
    calls: int = 1
    """How many calls `call_s` has."""
    awake: bool = False
    """On a CPU: whether its main thread did not sleep at the bell when that was rung."""

    @property
    def calm(self) -> bool:
        """Whether its threads had cores to run on."""
        return self.waited_s < _DISTURBED_SHARE * max(self.call_s + self.keep_s, _SHORTEST_S)


@dataclass(slots=True)
class Plan:
    """What holds for a whole workload."""

    chain_s: float = CHAIN_S
    """Seconds of work in one chain."""
    calls: int = 1
    """Calls of the candidate's chain; 1 on a CPU."""
    keep_s: list[float] = field(default_factory=list)
    """What KEEP took the trusted contender."""
    null_s: list[float] = field(default_factory=list)
    residue_s: float = 0.0
    """What may be left of a call's overhead after subtracting it, in all rounds alike."""

    def seconds_per_call(self, sample: Sample) -> float:
        """A sample without what the trusted contender needs for anything but the calls."""
        null_s = 0.0 if sample.awake else statistics.median(self.null_s)
        return max((sample.call_s + self.late_s(sample) - null_s) / sample.calls, _SHORTEST_S)

    def late_s(self, sample: Sample) -> float:
        """By how much KEEP took longer than it may."""
        return max(0.0, sample.keep_s - (_KEEP_SLACK * statistics.median(self.keep_s) + _KEEP_SLACK_S))


class HostClock:
    """Times one contender on a CPU: each call alone."""

    def __init__(self, contender: Contender, fresh: Fresh, eviction: HostEviction, *, kept: bool, trusted: bool):
        """`kept`: results are asked for. `trusted`: overheads are measured here."""
        self.contender, self._fresh, self._eviction, self._kept, self.trusted = (
            contender, fresh, eviction, kept, trusted)  # fmt: skip
        self._ring = contender.bench.runner.ring
        self.patience_s = _PATIENCE_S
        self.cost_s = 0.0
        self._overhead_s = 0.0

    def warm_up(self, plan: Plan) -> None:
        """Warm up, learn what a round costs, and put the workers that did it in their places."""
        bench = self.contender.bench
        once_s = 0.0
        for _step in range(_WARMUPS):
            self._fresh.fill(bench.slot_tensors(0), *self._fresh.choose())
            once_s = self._ring(protocol.CALL, CALL_LIMIT_S, number=0)
        if self._kept:
            self._ring(protocol.KEEP, CALL_LIMIT_S)
        if self.trusted:
            self.measure_overhead()
        start = time.perf_counter()
        self._eviction.flush()
        self.cost_s = once_s + 2 * (time.perf_counter() - start)
        bench.runner.spread_workers()  # they sleep by now

    def measure_overhead(self) -> float:
        """Seconds that a ring takes with nothing to do: the lower quartile, since neighbours only add to it. With the
        median of 15 an honest kernel of 0.9 ms was once taken for one that does not run at all."""
        rings = sorted(self._ring(protocol.NULL_CHAIN, CALL_LIMIT_S, count=0) for _repeat in range(_RINGS))
        self._overhead_s = rings[_RINGS // 4]
        return self._overhead_s

    def sample(self, turn: Round, rng: random.Random, before: Callable[[], None] = lambda: None) -> Sample:
        """One call, repeated while it had to wait for a core; the least disturbed of a few if it always had to. Each
        has a round's values of its own: with the same ones and another nonce, a candidate that looked for what had
        changed summed rows at 2.6 times eager's speed on a busy machine, where its honest twin had 0.8. `before` is
        called before each."""
        runner = self.contender.bench.runner
        best: Sample | None = None
        least_share = float("inf")
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S)
                turn = Round(*self._fresh.choose(), rng.randrange(1 << 31), turn.kept)
            before()
            self.prepare(turn)
            before_s = runner.waited_s()
            sample = self._call(turn)
            sample.waited_s = max(0.0, runner.waited_s() - before_s - _RESUMING_S)
            share = sample.waited_s / max(sample.call_s + sample.keep_s, _SHORTEST_S)
            if share < least_share:
                best, least_share = sample, share
            if sample.calm or self.patience_s <= 0:
                break
            self.patience_s -= _PAUSE_S + sample.call_s
        assert best is not None
        return best

    def prepare(self, turn: Round) -> None:
        """Fresh values and cold caches, while the runner is stopped."""
        bench = self.contender.bench
        bench.runner.freeze()
        self._fresh.fill(bench.slot_tensors(0), turn.source, turn.seed)
        if self._kept:
            bench.poison()
        self._eviction.flush()

    def outputs(self, turn: Round) -> tuple[torch.Tensor, ...]:
        """This contender's outputs on the values of a round, untimed."""
        self.prepare(turn)
        outputs = self._call(turn).outputs
        assert outputs is not None, "asked of a contender whose results are not kept"
        return outputs

    def interrupted(self, turn: Round, stop: Callable[[], None], *, late: bool) -> None:
        """A call that nobody times: `stop` is called when it has begun or, `late`, when its result has been asked for,
        and until then it is like those that are."""
        self.prepare(turn)
        self._call(turn, *((None, stop) if late else (stop, None)))

    def written_over(self, turn: Round) -> tuple[torch.Tensor, ...]:
        """Its outputs on the values of a round when other values were written over those, cotangents aside, as soon as
        the call was over and before its result was asked for."""
        bench, runner = self.contender.bench, self.contender.bench.runner
        self.prepare(turn)
        self._ring_on(turn)
        runner.freeze()
        self._fresh.fill_inputs(bench.slot_tensors(0), *self._fresh.choose())
        runner.thaw()
        self._ring(protocol.KEEP, CALL_LIMIT_S)
        runner.freeze()
        return bench.read()

    def held(self, turn: Round, later: int) -> tuple[torch.Tensor, ...]:
        """Its outputs on the values of a round, taken when it has been called so often on others, in another slot."""
        bench, runner = self.contender.bench, self.contender.bench.runner
        self.prepare(turn)
        runner.thaw()
        self._fresh.mix_into(bench.slot_tensors(0), turn.nonce)
        self._ring(protocol.CALL, CALL_LIMIT_S, number=0)
        for _call in range(later):
            runner.freeze()
            self._fresh.fill(bench.slot_tensors(1), *self._fresh.choose())
            runner.thaw()
            self._ring(protocol.CALL, CALL_LIMIT_S, number=1, flags=protocol.RETAIN)
        self._ring(protocol.KEEP, CALL_LIMIT_S, number=0)
        outputs = bench.read()
        runner.freeze()
        return outputs

    def inputs(self, turn: Round) -> tuple[Any, ...]:
        """What the call of a round was given."""
        return self._fresh.inputs(turn.source, turn.seed, [turn.nonce])

    def _call(
        self, turn: Round, within: Callable[[], None] | None = None, after: Callable[[], None] | None = None
    ) -> Sample:
        """The call and, at once, its result."""
        bench = self.contender.bench
        call_s, awake = self._ring_on(turn, within)
        keep_s = self._ring(protocol.KEEP, CALL_LIMIT_S, then=after) if self._kept else 0.0
        bench.runner.freeze()  # now: bytes that are still missing show, and nobody writes them ahead of the judge
        outputs = bench.read() if self._kept else None
        return Sample(call_s, keep_s, self._overhead_s, turn, outputs, awake=awake)

    def _ring_on(self, turn: Round, within: Callable[[], None] | None = None) -> tuple[float, bool]:
        """The call alone: its seconds, and whether the runner was awake for it. Last of all come the few values that no
        one could know: when its threads have resumed, since they run for some 0.2 ms by then, in which two cores
        prepared half of a call of 0.5 ms."""
        bench = self.contender.bench
        bench.runner.thaw()
        self._fresh.mix_into(bench.slot_tensors(0), turn.nonce)
        awake = not bench.runner.asleep()
        return self._ring(protocol.CALL, CALL_LIMIT_S, number=0, then=within), awake


class DeviceClock:
    """Times one contender on a GPU: chains of calls, each on its own slot and behind an eviction."""

    def __init__(
        self,
        contender: Contender,
        fresh: Fresh,
        eviction: DeviceEviction,
        *,
        kept: bool,
        trusted: bool,
        exhibit: Exhibit,
    ):
        self.contender, self._fresh, self._eviction, self._kept, self.trusted = (
            contender, fresh, eviction, kept, trusted)  # fmt: skip
        self._ring = contender.bench.runner.ring
        self._retained = exhibit.retained
        self.cost_s = 0.0
        self.step_s = 0.0
        self._calls = 1

    def warm_up(self, plan: Plan) -> None:
        """Warm up, and learn what one step of a chain costs."""
        bench = self.contender.bench
        for slot in range(bench.slots):
            self._fresh.fill(bench.slot_tensors(slot), *self._fresh.choose())
        torch.cuda.synchronize()
        for step in range(_WARMUPS):
            self._ring(protocol.CALL, CALL_LIMIT_S, number=step % bench.slots)
        self._lead(_SWITCH_STEPS, nonce=1)
        self._chain(_SETTLE_CALLS, nonce=2)  # the allocator grows here
        self.step_s = self._step_s(_SETTLE_CALLS, nonce=3)
        if self.step_s < plan.chain_s / _SETTLE_CALLS:
            self._chain(_STEP_CALLS, nonce=4)
            self.step_s = self._step_s(_STEP_CALLS, nonce=5)
        if self.step_s < plan.chain_s / _STEP_CALLS:
            self._chain(_calls_of(self.step_s, plan.chain_s), nonce=6)

    def plan(self, plan: Plan, fastest_step_s: float) -> None:
        """How many steps make a chain, the same for all contenders: no more than there is room for results, since any
        of them may be asked for. A baseline that is much slower makes calls in some of the steps only."""
        plan.calls = max(1, min(self._retained, _calls_of(fastest_step_s, plan.chain_s)))
        plan.residue_s = _RESIDUE_S + _CHAIN_RESIDUE_S / plan.calls
        enough = max(_MIN_CALLS, math.ceil(_LONGEST_CHAIN * plan.chain_s / max(self.step_s, _SHORTEST_STEP_S)))
        self._calls = plan.calls if self._kept and not self.trusted else min(plan.calls, enough)
        self.cost_s = self._calls * self.step_s + (plan.calls - self._calls) * fastest_step_s + _ROUND_S

    def sample(self, turn: Round, calls: int, rng: random.Random) -> Sample:
        """One chain on freshly written slots."""
        bench = self.contender.bench
        for slot in range(min(calls, bench.slots)):
            self._fresh.fill(bench.slot_tensors(slot), turn.source, turn.seed + slot)
        bench.poison()
        self._eviction.reset(rng)
        bench.runner.thaw()
        self._ring(protocol.CALL, CALL_LIMIT_S, number=0)  # warms the code; its values are not yet those of the chain
        self._lead(_SWITCH_STEPS, nonce=turn.nonce + 1)
        made = min(calls, self._calls)
        first = rng.randint(max(0, turn.kept + 1 - made), min(turn.kept, calls - made))
        chain_s = self._chain(calls, nonce=turn.nonce, first=first, made=made)
        if not self._kept:
            bench.runner.freeze()
            return Sample(chain_s, 0.0, 0.0, turn, None, calls=made)
        keep_s = self._ring(protocol.KEEP, CALL_LIMIT_S, number=turn.kept - first)
        # After its own chain, so that all contenders' chains start alike: a device that has just run 40 evictions more
        # is 5 % faster (measured on an H200 by timing eager against itself).
        null_s = self._null(calls, nonce=turn.nonce) if self.trusted else 0.0
        bench.runner.freeze()
        return Sample(chain_s, keep_s, null_s, turn, bench.read(), calls=made)

    def inputs(self, turn: Round) -> tuple[Any, ...]:
        """What the call whose result was asked for was given: its slot's values, as mixed by it and those before it."""
        slots = self.contender.bench.slots
        slot = turn.kept % slots
        numbers = [step_number(turn.nonce, step) for step in range(slot, turn.kept + 1, slots)]
        return self._fresh.inputs(turn.source, turn.seed + slot, numbers)

    def proven(self) -> bool:
        """Whether the evictions of the last sample took place."""
        return self._eviction.proven()

    def _step_s(self, count: int, nonce: int) -> float:
        """Seconds of one step, as a chain of `count` has it."""
        lead_s = self._lead(_LEAD_STEPS, nonce)
        return max(_SHORTEST_S, (self._chain(count, nonce + 1) - lead_s) / count)

    def _chain(self, count: int, nonce: int, first: int = 0, made: int | None = None) -> float:
        """So many steps, with calls in all of them, or in `made` of them from the `first` one on."""
        return self._steps(protocol.CHAIN, protocol.MIX | protocol.RETAIN, count, nonce, first, made)

    def _null(self, count: int, nonce: int) -> float:
        """All of a chain but its calls."""
        return self._steps(protocol.NULL_CHAIN, protocol.MIX, count, nonce)

    def _steps(
        self, command: int, flags: int, count: int, nonce: int, first: int = 0, made: int | None = None
    ) -> float:
        self._eviction.asked(nonce, _LEAD_STEPS, count)
        calls = count if made is None else made
        return self._ring(
            command,
            CALL_LIMIT_S,
            flags=flags,
            count=count,
            lead=_LEAD_STEPS,
            first=first,
            calls=calls,
            number=nonce,
            spin_s=_SPIN_S,
        )

    def _lead(self, count: int, nonce: int) -> float:
        """Evictions alone."""
        self._eviction.asked(nonce, count, 0)
        return self._ring(protocol.NULL_CHAIN, CALL_LIMIT_S, lead=count, number=nonce, spin_s=_SPIN_S)


def _calls_of(step_s: float, chain_s: float) -> int:
    """How many steps make a chain."""
    return max(_MIN_CALLS, round(chain_s / max(step_s, _SHORTEST_STEP_S)))
