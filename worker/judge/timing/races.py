"""Timing on the judge's clock: candidate and baselines in turn, fresh values, cold caches, timed outputs checked.

Each round times every subject once, in random order, on the same freshly made values (a call that was disturbed is
repeated on others), so that drift of the machine hits all alike; what is compared are the ratios within a round. The
first contender is the candidate, the second the trusted one (eager): its outputs on the same values are what the
candidate's are compared with in every round, and its runner is where overheads are measured. How a sample is taken:
`worker.judge.timing.clocks`.

On a GPU a baseline that is plainly slower than the fastest one is out after three rounds. A race in which the
difference is soon known is shorter then; in one where it is not, more rounds fit into the time.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from worker.judge.checks.spot_checks import SpotChecks
from worker.judge.exhibits import Exhibit
from worker.judge.numerics.comparison import agree
from worker.judge.numerics.twin import outputs_of_their_own
from worker.judge.runners import placing, urgent
from worker.judge.runners.bench import Contender
from worker.judge.timing import device_state, stats
from worker.judge.timing.clocks import DeviceClock, HostClock, Plan, Round, Sample
from worker.judge.timing.device_state import DeviceState, DeviceWatch
from worker.judge.timing.evicting import DeviceEviction, HostEviction
from worker.judge.timing.fresh import Fresh
from worker.judge.timing.idleness import check_idle
from worker.judge.timing.pace import USUAL, Pace
from worker.judge.timing.recheck import recheck
from worker.judge.verdict import BaselineFault, Fault, Verdict

_MIN_ROUNDS = 9
_SLOW_ROUND_S, _SLOW_ROUNDS = 1.0, 3
_MORE_STOPS_S = 4.0
"""Of further rounds on a CPU, where spot checks have found too little."""
_FULL_CHECK_SHARE = 0.2
_WRITTEN_OVER_SHARE, _WRITTEN_OVER_SLOW, _SLOW_CALL_S = 0.25, 0.1, 0.25
"""How likely a call of the candidate on a CPU comes after one whose inputs are written over before its result is asked
for; and a slow one. A `Tensor.copy_` that computed what the call had put off was certified, at 4.4 times eager's speed
where its honest twin had 1.5: it took no longer than the trusted copy may."""
_PROOF_SHARE = 0.25
_OF_THE_GAIN = 0.1
"""How well a gain or a loss must be known: a tenth of it in logarithms, so twice as fast to 7 %, and 1.1 to 1 %."""
_IMPOSSIBLE_SHARE = 0.5
"""A chain that is shorter than its own evictions in so many of the rounds was not run as asked."""
_LATE_SHARE, _LATE_US = 0.2, 20.0
"""Results that come so much later than their calls end (a share of the call, and so many us) are no accident..."""
_CALM_SAMPLES, _CALM_SHARE = 5, 0.5
"""... when so many samples, and this share of all, had the cores for themselves. Late results cost time in any case."""
_AWAKE_SHARE = 0.5
"""Of calm samples, in which a runner that has a core and waits for the bell sleeps at it."""
_TRUSTED = 1
_HELD_SLOTS, _LATER_CALLS, _HELD_BYTES, _HELD_S, _SHORT_S = 2, 20, 256 << 20, 1.0, 1e-6
"""A result is held beside up to so many later ones: as many as are no larger together, and made in a second."""
_TRIAL_ROUNDS, _PLAINLY_SLOWER, _LONGER_CHAIN = 3, 1.2, 1.03
"""On a GPU a baseline is out when its calls take so much longer than the fastest baseline's, and its chain so much, in
each of so many rounds. Two runners of the same code differ by 0.4 % there. A chain scatters by 0.5 to 1.5 %, evictions
and all, which can be half of a call of 2 us: hence the second limit."""
_OWN_FAULTS = (Verdict.ILLEGAL_ACCESS, Verdict.LAUNCH_ERROR)
"""Of a baseline's process, and nobody's verdict. That it is late may be a candidate's doing."""
WRONG_WHEN_TIMED = "a timed call is wrong though checked calls were right"


@dataclass(slots=True)
class Timings:
    """Samples in microseconds, one per round and contender; index i of every list is the same round."""

    workload: str
    samples_us: dict[str, list[float]] = field(default_factory=dict)
    """Lists of baselines that left the race early hold its first rounds only; the candidate and eager are in all."""
    checked_outputs: int = 0
    late_us: float = 0.0
    """Lower decile of what was added to the candidate's samples because its results came late: on a busy machine many
    results do, work that was put off always does."""
    calls: int = 1
    residue_us: float = 0.0
    """By how much a call's time may be off in all rounds alike."""
    device_state: dict[str, Any] = field(default_factory=dict)
    """Clocks, power and temperature of a GPU while it was timed."""

    @property
    def baselines(self) -> list[str]:
        """Names of all contenders but the candidate, which is the first."""
        return list(self.samples_us)[1:]

    @property
    def baselines_us(self) -> dict[str, float]:
        """Medians of the baselines."""
        return {name: self.latency_us(name) for name in self.baselines}

    def latency_us(self, name: str) -> float:
        """Median of one contender."""
        return statistics.median(self.samples_us[name])

    def residue(self, names: Sequence[str]) -> float:
        """`residue_us` as a share of the shortest of these latencies."""
        return self.residue_us / min(self.latency_us(name) for name in names)

    def fastest(self, names: Sequence[str]) -> str:
        """The contender with the smallest median, of those that stayed longest in the race: medians of other rounds say
        nothing when the machine has become slower since."""
        rounds = max(len(self.samples_us[name]) for name in names)
        return min((name for name in names if len(self.samples_us[name]) == rounds), key=self.latency_us)

    def logs(self, baseline: str, candidate: str) -> list[float]:
        """ln(baseline / candidate), round by round, as long as the baseline was in the race."""
        theirs = self.samples_us[baseline]
        return stats.log_ratios(theirs, self.samples_us[candidate][: len(theirs)])


class Timer:
    """Times on one device; keeps what evicts its caches."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._host = HostEviction() if device == "cpu" else None
        self._watch = DeviceWatch(str(torch.cuda.get_device_properties(0).uuid)) if device != "cpu" else None
        self._evictions: dict[int, DeviceEviction] = {}

    def time(
        self,
        contenders: list[Contender],
        exhibit: Exhibit,
        fresh: Fresh,
        rng: random.Random,
        pace: Pace | None = None,
        pause: Callable[[], None] = lambda: None,
        spot_checks: SpotChecks | None = None,
    ) -> Timings:
        """Time all contenders against each other on one workload. `pause` is called before each round, when all runners
        are stopped and nothing runs on the device. `spot_checks`: on a CPU, calls of the candidate that are stopped.

        Raises Fault `incorrect` when a timed output is wrong, `suspicious` when the runner did not do what was asked,
        whatever the candidate's runner raises, and BaselineFault for what a baseline does.
        """
        clocks = [
            self.clock(contender, fresh, exhibit, kept=index <= _TRUSTED, trusted=index == _TRUSTED)
            for index, contender in enumerate(contenders)
        ]
        race = _Race(clocks, exhibit, rng, pace or USUAL[self._device], self._watch, pause, spot_checks)
        with self.placed(contenders):
            return race.run(fresh)

    def placed(self, contenders: Sequence[Contender]) -> AbstractContextManager[object]:
        """To time in: on a CPU the judge stays beside those that it calls, on a GPU both go before others."""
        if self._host is not None:
            return placing.beside_callers()
        return urgent.preferred({contender.bench.runner.process for contender in contenders})

    def forget(self, runner: object) -> None:
        """Release what was kept for a runner that has ended."""
        eviction = self._evictions.pop(id(runner), None)
        if eviction is not None:
            eviction.close()

    def clock(
        self, contender: Contender, fresh: Fresh, exhibit: Exhibit, *, kept: bool, trusted: bool
    ) -> HostClock | DeviceClock:
        """What times one contender; `kept`, `trusted` as in its clock."""
        if self._host is not None:
            return HostClock(contender, fresh, self._host, kept=kept, trusted=trusted)
        runner = contender.bench.runner
        if id(runner) not in self._evictions:
            self._evictions[id(runner)] = DeviceEviction(runner)
        return DeviceClock(contender, fresh, self._evictions[id(runner)], kept=kept, trusted=trusted, exhibit=exhibit)


class _Race:
    """All rounds of one workload."""

    def __init__(
        self,
        clocks: list[HostClock | DeviceClock],
        exhibit: Exhibit,
        rng: random.Random,
        pace: Pace,
        watch: DeviceWatch | None,
        pause: Callable[[], None],
        spot_checks: SpotChecks | None = None,
    ) -> None:
        self._clocks, self._exhibit, self._rng, self._pace, self._watch = clocks, exhibit, rng, pace, watch
        self._pause, self._spot_checks = pause, spot_checks
        self._states: list[DeviceState] = []
        self._active: dict[int, HostClock | DeviceClock] = {}  # one bell per runner: those that share one take turns
        self._racing = list(range(len(clocks)))
        self._plan = Plan(pace.chain_s)
        self._checked = 0
        self._written_over: list[tuple[Round, tuple[torch.Tensor, ...]]] = []
        """Calls of this round and what they returned."""

    def run(self, fresh: Fresh) -> Timings:
        try:
            self._warm_up(fresh)
            rounds = self._all_rounds(fresh)
            if self._impossible(rounds):
                rounds = self._in_doubt(rounds, fresh)
            if self._put_off(rounds):
                rounds = self._once_more(fresh)
            self._check_held_result(fresh)
        finally:
            self._cool()
        return self._timings(rounds)

    def _all_rounds(self, fresh: Fresh) -> list[dict[int, Sample]]:
        """One sample of each contender per round, by its index, until the difference is known or patience ends."""
        self._racing = list(range(len(self._clocks)))
        rounds: list[dict[int, Sample]] = []
        for _number in range(self._fitting(self._pace.budget_s)):
            rounds.append(self._round(fresh, len(rounds)))
            if len(rounds) == _TRIAL_ROUNDS:
                self._leave_out(rounds)
        while len(rounds) < self._fitting(self._pace.patience_s) and self._too_wide(rounds):
            rounds += [self._round(fresh, len(rounds)) for _more in range(4)]
        until = time.monotonic() + _MORE_STOPS_S
        while self._spot_checks and self._spot_checks.wants_more(self._exhibit.name) and time.monotonic() < until:
            rounds.append(self._round(fresh, len(rounds)))
        return rounds

    def _leave_out(self, rounds: list[dict[int, Sample]]) -> None:
        """Go on without the baselines that are plainly slower, on a GPU. Samples on a CPU scatter too much for it."""
        if isinstance(self._clocks[0], DeviceClock):
            out = {index for index in self._racing if all(self._slow(index, samples) for samples in rounds)}
            self._racing = [index for index in self._racing if index <= _TRUSTED or index not in out]

    def _slow(self, index: int, samples: dict[int, Sample]) -> bool:
        """Whether a baseline is plainly slower than the fastest one of a round."""
        mine, took_s = samples[index], self._plan.seconds_per_call
        fastest = min((sample for other, sample in samples.items() if other >= _TRUSTED), key=took_s)
        whole_s = statistics.median(self._plan.null_s) + self._plan.calls * took_s(fastest)
        longer = self._plan.calls * (took_s(mine) - took_s(fastest)) > (_LONGER_CHAIN - 1) * whole_s
        return longer and took_s(mine) > _PLAINLY_SLOWER * took_s(fastest)

    def _cool(self) -> None:
        """Take all runners back from the bell, also after a fault: the baselines' serve the next candidate."""
        for clock in self._active.values():
            clock.contender.bench.runner.thaw()
            with contextlib.suppress(Fault):  # a runner that does not answer is closed, and then known as dead
                clock.contender.bench.cool()
                if isinstance(clock, DeviceClock):
                    clock.contender.bench.trim()

    def _warm_up(self, fresh: Fresh) -> None:
        for clock in self._clocks:
            with self._blamed(clock):
                self._activate(clock, fresh)
                clock.warm_up(self._plan)
            if clock is self._clocks[0]:
                check_idle(clock.contender.bench.runner)
            clock.contender.bench.runner.freeze()
        device = [clock for clock in self._clocks if isinstance(clock, DeviceClock)]
        for device_clock in device:
            device_clock.plan(self._plan, min(clock.step_s for clock in device))

    def _fitting(self, budget_s: float) -> int:
        """How many rounds fit: some of all contenders, and then of those that are not out. Calls of 4 to 30 us, seven
        baselines and 13 rounds had intervals of 0.8 to 3.3 on H100s on which three other judges were at work: a third
        of the samples is disturbed there, and only the median of more of them is not."""
        round_s = sum(clock.cost_s for clock in self._clocks)
        if round_s > _SLOW_ROUND_S:
            return _SLOW_ROUNDS  # a contender this slow needs no interval to be told apart
        shorter_s = sum(self._clocks[index].cost_s for index in self._racing)
        fitting = int(_TRIAL_ROUNDS + (budget_s - _TRIAL_ROUNDS * round_s) / shorter_s)
        return max(_MIN_ROUNDS, min(self._pace.max_rounds, fitting))

    def _too_wide(self, rounds: list[dict[int, Sample]]) -> bool:
        """Whether the interval against the fastest baseline is wider than wanted, or than more rounds could help."""
        mine, *baselines = (  # whoever is in the last round was in all
            [self._plan.seconds_per_call(samples[index]) for samples in rounds] for index in sorted(rounds[-1])
        )
        fastest = min(baselines, key=statistics.median)
        logs = stats.log_ratios(fastest, mine)
        low, high = stats.interval([logs], random.Random(0))
        hidden = self._plan.residue_s / min(statistics.median(mine), statistics.median(fastest))
        enough = max(self._pace.wanted, hidden / 2, _OF_THE_GAIN * abs(statistics.median(logs)))
        return high / low > (1 + enough) ** 2

    def _round(self, fresh: Fresh, number: int) -> dict[int, Sample]:
        self._pause()
        turn = self._turn(fresh)
        found: dict[int, Sample] = {}
        for index in self._rng.sample(self._racing, len(self._racing)):
            clock = self._clocks[index]
            with self._blamed(clock):
                self._activate(clock, fresh)
                if isinstance(clock, DeviceClock):
                    found[index] = clock.sample(turn, self._plan.calls, self._rng)
                    self._check_evictions(clock, index)
                    self._note_state()
                elif index == 0:
                    found[index] = self._checked_sample(clock, turn, fresh)
                else:
                    found[index] = clock.sample(turn, self._rng)
        trusted = found[_TRUSTED]
        self._plan.keep_s.append(trusted.keep_s)
        self._plan.null_s.append(trusted.null_s)
        self._check_outputs(found[0], trusted, fresh, full=number < 2 or self._rng.random() < _FULL_CHECK_SHARE)
        # Kept to the end of a race they filled an H100: 1 GB a round for a SwiGLU, 24 GB beside the judge's 31.
        found[0].outputs = trusted.outputs = None
        self._check_written_over(fresh)
        return found

    def _turn(self, fresh: Fresh) -> Round:
        return Round(*fresh.choose(), self._rng.randrange(1 << 31), self._rng.randrange(self._plan.calls))

    def _checked_sample(self, clock: HostClock, turn: Round, fresh: Fresh) -> Sample:
        """The candidate's sample, among calls that are stopped and calls whose inputs are written over."""
        sample = clock.sample(turn, self._rng, lambda: self._untimed(clock, fresh))
        if self._spot_checks is not None:
            self._spot_checks.timed(self._exhibit.name, sample.call_s, sample.keep_s)
        return sample

    def _untimed(self, clock: HostClock, fresh: Fresh) -> None:
        """Before each of the candidate's calls it is drawn anew whether it is to be stopped, or its inputs are to be
        written over: who has counted those that were knows nothing of the next."""
        name, spots = self._exhibit.name, self._spot_checks
        share = _WRITTEN_OVER_SHARE if clock.cost_s < _SLOW_CALL_S else _WRITTEN_OVER_SLOW
        while True:
            turn = self._turn(fresh)
            if self._rng.random() < share:
                self._written_over.append((turn, clock.written_over(turn)))
            elif spots is not None and self._rng.random() < spots.share(name):
                stop = spots.next_stop(name, self._rng)
                clock.interrupted(turn, stop, late=stop.late)
            else:
                return

    @contextlib.contextmanager
    def _blamed(self, clock: HostClock | DeviceClock) -> Iterator[None]:
        """Whose call this is. A candidate was refused for what a baseline did to memory."""
        try:
            yield
        except BaselineFault:  # of the one before, in the same process
            raise
        except Fault as fault:
            if clock is self._clocks[0] or fault.verdict not in _OWN_FAULTS:
                raise
            raise BaselineFault(clock.contender.name, fault) from fault

    def _note_state(self) -> None:
        state = self._watch.read() if self._watch is not None else None
        if state is not None:
            self._states.append(state)

    def _check_evictions(self, clock: DeviceClock, index: int) -> None:
        if index == 0 and self._rng.random() < _PROOF_SHARE and not clock.proven():
            raise Fault(Verdict.SUSPICIOUS, "a timed chain did not evict the cache as it was told to")

    def _check_outputs(self, mine: Sample, trusted: Sample, fresh: Fresh, *, full: bool) -> None:
        """The candidate's result of this round against eager's on the same values. Raises Fault."""
        assert mine.outputs is not None and trusted.outputs is not None
        theirs, clock = trusted.outputs, self._clocks[_TRUSTED]
        turn = mine.turn
        if trusted.turn is not turn and isinstance(clock, HostClock):  # one of the two was disturbed and repeated
            with self._blamed(clock):
                self._activate(clock, fresh)
                theirs = clock.outputs(turn)
        rows = None if full else self._rng
        sides = zip(mine.outputs, theirs, turn.source.tolerances, strict=True)
        if any(agree(output, eager, limit, rows) for output, eager, limit in sides):
            inputs = self._clocks[0].inputs(turn)
            reason = recheck(self._exhibit, turn.source, inputs, mine.outputs)
            if reason:
                raise Fault(Verdict.INCORRECT, f"{WRONG_WHEN_TIMED}: {reason}")
        self._checked += 1

    def _check_written_over(self, fresh: Fresh) -> None:
        """Results whose inputs were written over when their calls were over, against eager's. Raises Fault."""
        trusted = self._clocks[_TRUSTED]
        for turn, outputs in self._written_over:
            assert isinstance(trusted, HostClock), "asked of calls on a CPU alone"
            with self._blamed(trusted):
                self._activate(trusted, fresh)
                theirs = trusted.outputs(turn)
            sides = zip(outputs, theirs, turn.source.tolerances, strict=True)
            if not any(agree(output, eager, limit, None) for output, eager, limit in sides):
                continue
            inputs = self._clocks[0].inputs(turn)
            reason = recheck(self._exhibit, turn.source, inputs, outputs)
            # Where the reference hands an input on, its result changes with that, too.
            if reason and len(outputs_of_their_own(self._exhibit.instance, inputs)) == len(outputs):
                what = "a result changes with inputs that are written over when its call is over"
                raise Fault(Verdict.INCORRECT, f"{WRONG_WHEN_TIMED}: {what} ({reason})")
        self._written_over.clear()

    def _check_held_result(self, fresh: Fresh) -> None:
        """On a CPU, where a race takes each result before the next call: one that is held meanwhile must stay. Some
        noticed that new memory is not filled any more, or that threads are bound to cores, and handed out one buffer
        again and again from then on. On a GPU all results of a chain are held. Raises Fault."""
        clock = self._clocks[0]
        if not isinstance(clock, HostClock) or clock.contender.bench.slots < _HELD_SLOTS:
            return
        turn = self._turn(fresh)
        self._activate(clock, fresh)
        size = sum(each.nbytes for each in turn.source.eager)
        most = min(_LATER_CALLS, int(_HELD_BYTES / max(1, size)), int(_HELD_S / max(_SHORT_S, clock.cost_s)))
        outputs = clock.held(turn, self._rng.randint(2, max(2, most)))
        reason = recheck(self._exhibit, turn.source, clock.inputs(turn), outputs)
        if reason:
            what = "a result changes when the module is called again: outputs must be memory of their own"
            raise Fault(Verdict.INCORRECT, f"{WRONG_WHEN_TIMED}: {what} ({reason})")

    def _activate(self, clock: HostClock | DeviceClock, fresh: Fresh) -> None:
        key = id(clock.contender.bench.runner)
        clock.contender.bench.runner.thaw()
        current = self._active.get(key)
        if current is clock:
            return
        if current is not None:
            with self._blamed(current):
                current.contender.bench.cool()
        clock.contender.bench.heat(clock.contender.subject, fresh.mix, self._exhibit.retained)
        self._active[key] = clock

    def _impossible(self, rounds: list[dict[int, Sample]]) -> bool:
        """Whether the candidate's calls were over sooner than a ring with nothing to do."""
        least_s = statistics.median(self._plan.null_s) - self._plan.residue_s * self._plan.calls
        short = sum(samples[0].call_s < least_s for samples in rounds)
        return short > _IMPOSSIBLE_SHARE * len(rounds)

    def _in_doubt(self, rounds: list[dict[int, Sample]], fresh: Fresh) -> list[dict[int, Sample]]:
        """What is impossible may only look so, because overheads were measured while someone disturbed the machine (one
        honest sum of rows in 30, of four judges on one H200): measured again, on a GPU with all that they belong to."""
        trusted = self._clocks[_TRUSTED]
        if isinstance(trusted, DeviceClock):
            return self._once_more(fresh)
        with self._blamed(trusted):
            self._activate(trusted, fresh)
            self._plan.null_s = [min(trusted.measure_overhead(), statistics.median(self._plan.null_s))]
        return rounds

    def _once_more(self, fresh: Fresh) -> list[dict[int, Sample]]:
        self._plan.keep_s, self._plan.null_s = [], []
        return self._all_rounds(fresh)

    def _late_us(self, rounds: list[dict[int, Sample]]) -> float:
        """By how much results come late in all but a tenth of the calm samples; 0 if hardly any is calm."""
        calm = [samples[0] for samples in rounds if samples[0].calm]
        if len(calm) < max(_CALM_SAMPLES, _CALM_SHARE * len(rounds)):
            return 0.0
        return sorted(self._plan.late_s(sample) / self._plan.calls * 1e6 for sample in calm)[len(calm) // 10]

    def _put_off(self, rounds: list[dict[int, Sample]]) -> bool:
        """Whether results come too late for an accident. One honest kernel in 105 looked like it, beside six judges."""
        latency_us = statistics.median(self._plan.seconds_per_call(samples[0]) for samples in rounds) * 1e6
        return self._late_us(rounds) > max(_LATE_US, _LATE_SHARE * latency_us)

    def _timings(self, rounds: list[dict[int, Sample]]) -> Timings:
        plan, name = self._plan, self._exhibit.name
        residue_us = plan.residue_s * 1e6
        timings = Timings(name, checked_outputs=self._checked, calls=plan.calls, residue_us=residue_us)
        timings.device_state = device_state.summary(self._states)
        for index, clock in enumerate(self._clocks):
            samples = [samples[index] for samples in rounds if index in samples]
            seconds = [self._plan.seconds_per_call(sample) for sample in samples]
            timings.samples_us[clock.contender.name] = [value * 1e6 for value in seconds]
        timings.late_us = self._late_us(rounds)
        if self._impossible(rounds):
            reason = "timed calls were over sooner than the waiting that belongs to them: the runner did not do as told"
            raise Fault(Verdict.SUSPICIOUS, reason)
        if self._put_off(rounds):
            late = timings.late_us
            reason = f"results were ready {late:.0f} us after their calls were said to be over: work was put off"
            raise Fault(Verdict.SUSPICIOUS, reason)
        calm = [samples[0] for samples in rounds if samples[0].calm]
        awake = sum(sample.awake for sample in calm)
        if awake >= _CALM_SAMPLES and awake > _AWAKE_SHARE * len(calm):
            reason = (
                f"its main thread did not wait at the bell before {awake} of {len(calm)} calls, as the runner's does"
            )
            raise Fault(Verdict.SUSPICIOUS, reason)
        return timings
