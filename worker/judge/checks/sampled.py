"""Whose code a CPU candidate's calls run, by samples that it has no part in.

`checks/provenance` asks torch's profiler, which sees a call into the candidate's own library and not what that library
calls: a BLAS reached by dlsym would count as its own. Here the judge stops the runner at random moments during calls
that look like timed ones, and reads where its threads are (`worker.judge.runners.pointers`).

    foreign = samples in foreign code - what glue (allocation, views) and what the list admits to account for

A candidate is refused when even the lower end of the interval (Wilson 1927, z = 3) of foreign / (own + foreign) is
above what the job's policy leaves to others: at 0.9, 64 samples refuse from 22 % foreign on. On a busy machine threads
wait for a core and cannot be found: where they, as foreign ones, would decide, the judge does not know
(`infra_error`), and neither does it after too few stops, or where the calling thread waited for a core and own code was
hardly ever found although the list says that it ran: a BLAS behind dlsym was accepted in two of six runs beside three
busy neighbours, by 0 to 6 samples. The judge looks up to three times, and goes before ordinary threads where it may
(`worker.judge.runners.urgent`): otherwise it is let in when the runner waits, and finds nobody.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker.judge.checks import glue
from worker.judge.runners import quiet, urgent
from worker.judge.runners.bell_reader import peer_inode, waits_on
from worker.judge.runners.bench import Workbench
from worker.judge.runners.pointers import Artefacts, Process, Unreadable, Whose
from worker.judge.runners.sessions import Runner
from worker.judge.trial import SUBJECT, Trial
from worker.judge.verdict import Fault, Verdict
from worker.runner import protocol

NAME, BELL, LATE = "own kernel share, sampled", "clock, by whom it is answered", "late results, sampled"
_BUDGET_S, _LONGEST_S, _ENOUGH, _ROUNDS, _MANY_ROUNDS = 0.2, 3.0, 64, 4, 16
"""Seconds of calls per workload, or one call where that is longer, over which so many stops are spread; samples that
count until it is over sooner; and how often as many stops are added while as many samples are foreign as own, or hardly
any count: a BLAS call of 40 us is mostly waited for, and with ten neighbours threads mostly wait for one another. Many
more are added while own code is hardly ever found where the list says that it runs: of that call's 256 stops 2 to 10
found the BLAS, on a machine with one neighbour, and eight are needed."""
_PLENTY, _NEXT_TO_NEVER = 64.0, 128.0
"""Samples of own code that have to be expected, and the part of them that is next to none: see `nobody`."""
_HIDDEN = 8.0
"""Times as many samples of own code as were found should have been, by the list: then they are hidden, or a lie."""
_SEEN_SHARE = 0.03
"""Of all stops, at which foreign code was found: below it there is no BLAS in hiding, if the judge can stop the runner
at any moment. Beside one to six busy neighbours one was found at 7 to 27 %, and torch in an honest call at 0 to 1."""
_WAITED_SHARE = 0.05
"""Of the time between stops, for which the calling thread wanted a core: more of it, and the machine is too busy."""
_ATTEMPTS, _REST_S = 3, 0.5
"""Looks until one decides: beside two to six busy neighbours on two cores one of eight at a call of 12 us did not."""
_PAUSE_S = 2e-3
_PATIENCE = 20.0
"""Times the seconds above until the stops are no longer waited for: with ten neighbours on two cores each takes ten
times as long."""
_DOUBTFUL = 4
_Z, _FEWEST = 3.0, 8
MOST_LATE = 2
_CALL_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Call:
    """What the profiler's list says of one call, in microseconds."""

    others_us: float
    """In torch's code and that of libraries, filling tensors among it: `checks/provenance` has judged it."""
    wall_us: float
    own_us: float


@dataclass(slots=True)
class Census:
    """What the threads were found in, over all samples of one workload."""

    claimed_s: float = 0.0
    """What the list calls the candidate's own of one call."""
    own: int = 0
    foreign: Counter[str] = field(default_factory=Counter)
    """By the file's name."""
    unsettled: int = 0
    """Threads that waited for a core until the judge gave up."""
    stops: int = 0
    ran_s: float = 0.0
    """Between the stops."""
    waited_s: float = 0.0
    """Of that time, for how long the thread that makes the calls wanted a core."""
    calls: int = 0
    at_once: bool = False
    """Whether the judge could stop the runner whenever it wanted, and not only when that gave up its core."""
    late: int = 0
    """Stops at which own code ran while a result was being copied, after its call was over."""

    def add(self, threads: Sequence[tuple[Whose, str]], *, over: bool = False) -> None:
        """Count one stop. `over`: between a call's end and the next call's begin."""
        own = sum(whose is Whose.OWN for whose, _name in threads)
        self.stops += 1
        self.own += own
        self.late += over and own > 0
        self.unsettled += sum(whose is Whose.UNSETTLED for whose, _name in threads)
        if not over:  # then it is the runner that copies the result, by torch
            self.foreign.update(name for whose, name in threads if whose is Whose.FOREIGN)

    def wants_more(self, glue_us: float) -> bool:
        """Whether to go on, when glue accounts for `glue_us` of each call."""
        foreign = self.foreign.total()
        doubtful = foreign >= max(_DOUBTFUL, self.own) or self.late
        beyond = self.beyond(glue_us)
        few = self.own + beyond < 2 * _FEWEST
        rounds = _MANY_ROUNDS if few and self.missing(foreign) else _ROUNDS if doubtful or few else 1
        return self.stops < rounds * _ENOUGH and self.own + beyond < rounds * _ENOUGH

    def missing(self, foreign: float) -> bool:
        """Whether own code is hardly ever found where the list says that it runs: in a call of 5 us, most of which is
        torch's way to it, it is found at a third of the stops that the list promises, if at all, and nobody else is.
        `foreign`: samples that were found elsewhere."""
        return foreign >= 1 and foreign > self.own and self.expected >= _FEWEST and self.own < self.expected / _HIDDEN

    def hidden(self, beyond: float, unlisted: float) -> bool:
        """Whether a machine on which the calling thread waits may hide that foreign code does what the list claims.

        `beyond`: samples that neither the list nor glue explains; `unlisted`: those that the list does not. Where the
        judge can stop the runner at any moment, many of the latter are a doubt as well: what glue may take grows as a
        machine slows down.
        """
        seen = self.at_once and unlisted >= _SEEN_SHARE * self.stops
        return self.waited > _WAITED_SHARE and self.missing(unlisted if seen else beyond)

    @property
    def expected(self) -> float:
        """Stops at which own code should have been found, by the list."""
        return self.stops * min(1.0, self.calls * self.claimed_s / self.ran_s) if self.ran_s else 0.0

    @property
    def waited(self) -> float:
        """Share of the time in which others had the core that the calling thread wanted."""
        return self.waited_s / self.ran_s if self.ran_s else 0.0

    def beyond(self, glue_us: float) -> float:
        """Samples in foreign code that `glue_us` a call does not explain."""
        if not self.stops or not self.ran_s:
            return 0.0
        return max(0.0, self.foreign.total() - self.calls * glue_us * 1e-6 * self.stops / self.ran_s)


def check(trial: Trial, artefacts: Sequence[Path], listed: Mapping[str, Call]) -> bool:
    """Raises Fault `suspicious` when library code does what the profiler's list calls the candidate's own. Returns
    whether this machine lets the judge sample. For a CPU.

    `listed`: by workload, what the list says of one call.
    """
    built = Artefacts(artefacts)
    for attempt in range(_ATTEMPTS):
        try:
            return _look(trial, built, listed)
        except Fault as fault:
            if fault.verdict != Verdict.INFRA_ERROR or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_REST_S)
    raise AssertionError("the last attempt returns or raises")


def _look(trial: Trial, built: Artefacts, listed: Mapping[str, Call]) -> bool:
    """One look at all workloads. Raises and returns as `check` does."""
    required = trial.request.own_kernel_share
    figures: dict[str, float | str] = {"required": required}
    own = 0
    unlisted_all = beyond_all = expected_all = 0.0
    starved = False
    for name, call in listed.items():
        bench = trial.benches[name]
        slow = glue.slowness()
        listed_us = slow * call.others_us
        glue_us = listed_us + glue.allowance_us(backward=bench.instance.backward, slowness=slow)
        try:
            census = take(trial.runner, bench, built, trial.rng, call, glue_us)
        except Unreadable as closed:
            trial.record(NAME, True, f"not sampled on this machine: {closed}", sampled="no")
            return False
        beyond, unlisted = census.beyond(glue_us), census.beyond(listed_us)
        if census.late > MOST_LATE:
            reason = f"{name}: the candidate's code was found at work {census.late} times after a call was over"
            raise trial.refuse(LATE, Verdict.SUSPICIOUS, reason, late_samples=census.late, own_samples=census.own)
        own += census.own
        unlisted_all += unlisted
        beyond_all += beyond
        expected_all += census.expected
        starved |= not census.at_once and census.waited > _WAITED_SHARE
        least = max(least_share(beyond, census.own), least_share(beyond_all, own))
        figures |= {f"own_samples/{name}": census.own, f"foreign_samples/{name}": round(beyond, 1)}
        figures |= {f"stops/{name}": census.stops, f"expected_samples/{name}": round(census.expected, 1)}
        if census.unsettled:
            figures[f"unsettled_samples/{name}"] = census.unsettled
        if least > 1 - required:
            where = ", ".join(f"{file} {count}" for file, count in census.foreign.most_common(3))
            reason = (
                f"{name}: at least {least:.0%} of the samples are not in code that was built for the candidate "
                f"({beyond_all:.0f} beyond glue against {own}; {where}); the policy asks for {required:.0%} own code"
            )
            raise trial.refuse(NAME, Verdict.SUSPICIOUS, reason, **figures)
        few = census.stops < _FEWEST or least_share(beyond + census.unsettled, census.own) > 1 - required
        if few or census.hidden(beyond, unlisted) or crowded(own, unlisted_all):
            found = (
                f"{census.own} samples in own code, {beyond:.0f} beyond glue elsewhere, {census.unsettled} waiting; "
                f"{census.expected:.0f} of {census.stops} were to be expected; without a core for {census.waited:.0%}"
            )
            reason = f"{name}: too busy a machine to sample whose code runs: judge again later ({found})"
            raise Fault(Verdict.INFRA_ERROR, reason)
    if starved and nobody(own, expected_all):
        reason = (
            f"too busy a machine to sample whose code runs: {own} samples in own code, where {expected_all:.0f} were"
        )
        raise Fault(Verdict.INFRA_ERROR, f"{reason} to be expected: judge again later")
    trial.record(NAME, True, "where its threads were found agrees with the list of kernels", **figures)
    return True


def nobody(own: int, expected: float) -> bool:
    """Whether own code was found next to never in all workloads together. A BLAS behind dlsym beside three busy
    neighbours: 0 of 256 to 615 expected samples, and none beyond glue elsewhere; honest calls of a few microseconds: at
    least 2 of 220."""
    return expected >= _PLENTY and own < expected / _NEXT_TO_NEVER


def crowded(own: int, foreign: float) -> bool:
    """Whether so few samples would tell nothing if a busy machine had not hidden the others.

    With ten neighbours on two cores nine of ten samples of a BLAS call are in the waiting loops of OpenMP; what is left
    is foreign 4 to 24 times and own at most twice (seen), in an honest kernel the other way round.
    """
    return foreign > own and foreign >= _DOUBTFUL and quiet.overloaded()


def least_share(foreign: float, own: float) -> float:
    """The lower end of the interval of foreign / (own + foreign); 0 for too few samples to tell."""
    count = foreign + own
    if count < _FEWEST:
        return 0.0
    share, z2 = foreign / count, _Z * _Z
    centre = share + z2 / (2 * count)
    spread = _Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, (centre - spread) / (1 + z2 / count))


def take(runner: Runner, bench: Workbench, built: Artefacts, rng: random.Random, call: Call, glue_us: float) -> Census:
    """Samples of one workload's calls. Raises Unreadable, or the Fault that ended a call."""
    census = Census(claimed_s=call.own_us * 1e-6)
    budget_s = max(_BUDGET_S, min(_LONGEST_S, call.wall_us * 1e-6))
    pause_s = max(_PAUSE_S, budget_s / _ENOUGH)
    bench.write(0, 0)
    bench.heat(SUBJECT, None)
    caller = _Caller(runner)
    try:
        if _interposed(runner):
            raise Fault(Verdict.SUSPICIOUS, f"{BELL}: something stands between the runner and the judge's calls")
        caller.start()
        patience = time.monotonic() + _PATIENCE * budget_s
        waited_s = quiet.caller_waited_s(runner._pid)
        with urgent.at_once() as census.at_once:
            while caller.fault is None and census.wants_more(glue_us) and time.monotonic() < patience:
                _sample(runner, caller, built, census, rng.uniform(0.5, 1.5) * pause_s)
                census.calls = caller.calls
                census.waited_s = quiet.caller_waited_s(runner._pid) - waited_s
    finally:
        runner.thaw()
        caller.finish()
        with contextlib.suppress(Fault):  # a runner that does not answer is closed; the next question says so
            bench.cool()
    if caller.fault is not None:
        raise caller.fault
    census.calls = caller.calls
    return census


def _interposed(runner: Runner) -> bool:
    """Whether somebody else than the runner's own loop reads the bell. Raises Unreadable."""
    bell, pid = peer_inode(runner._bell), quiet.runner_of(runner._pid)
    try:
        return bell is not None and pid is not None and not waits_on(pid, bell)
    except OSError as closed:
        raise Unreadable(f"/proc/PID/syscall: {closed.strerror}") from closed


def _sample(runner: Runner, caller: _Caller, built: Artefacts, census: Census, pause_s: float) -> None:
    started = time.perf_counter()
    time.sleep(pause_s)
    runner.freeze()
    census.ran_s += time.perf_counter() - started
    try:
        threads = threads_of(runner, built)
        census.add(threads, over=caller.over)  # by now an answer that was given before the stop has come in
    finally:
        runner.thaw()


def threads_of(runner: Runner, built: Artefacts) -> list[tuple[Whose, str]]:
    """Whose code each thread of a stopped runner is in, and the file's name. Raises Unreadable."""
    found: list[tuple[Whose, str]] = []
    for pid in quiet.runner_tree(runner._pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += Process(pid, built).threads()
    return found


class _Caller(threading.Thread):
    """Calls over and over, until it is told to finish."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(daemon=True)
        self._runner, self._done = runner, threading.Event()
        self.over = False
        """Whether the last call was said to be over, and its result is being copied."""
        self.calls = 0
        self.fault: Fault | None = None

    def run(self) -> None:
        """Ring the bell as timing does: a call, and at once its result."""
        try:
            with urgent.at_once():  # the sampler cannot go on while this thread has Python's lock and no core
                while not self._done.is_set():
                    self.over = False
                    self._runner.ring(protocol.CALL, _CALL_LIMIT_S, number=0)
                    self.over = True
                    self._runner.ring(protocol.KEEP, _CALL_LIMIT_S)
                    self.calls += 1
        except Fault as fault:
            self.fault = fault

    def finish(self) -> None:
        """Wait for the call in progress, if it was started."""
        self._done.set()
        if self.ident is not None:
            self.join()
