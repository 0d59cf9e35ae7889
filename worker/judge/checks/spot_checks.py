"""Whose code a CPU candidate's timed calls run: calls of a race that are stopped in their midst, and not timed.

`checks/sampled` calls a candidate over and over on the same values, which no timing does: one that computed with torch
whenever the values were new, and by itself when they came again, was `ok` at torch's own speed. So some of a race's
calls are spot checks. Until it is stopped such a call is what a timed one is: it comes among them at random, with new
values and cold caches. At a random moment in it the judge reads where the threads are.

    foreign = stops in foreign code - what glue (allocation, views) and the profiler's list account for

Some stops come later, while a result is copied whose call is over: nobody's code but torch's has to run then.

The candidate is refused where the lower end of the interval of foreign / (own + foreign) is above what the job's policy
leaves to others (`sampled.least_share`). There is no doubt here: few stops decide nothing, `sampled` has looked.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker.judge.checks import glue, sampled
from worker.judge.checks.sampled import Call
from worker.judge.runners.pointers import Artefacts, Unreadable, Whose
from worker.judge.trial import Trial
from worker.judge.verdict import Fault, Verdict

NAME = "own kernel share, timed calls"
_SHARE, _LEAST_SHARE = 0.6, 0.3
"""How likely each call is one to stop: at first, and where it is slow or enough are known. Never 0: a candidate knows
which of its calls were stopped, and what was known of the next it could use."""
_SLOW_S, _ENOUGH = 0.25, 24
"""Seconds of a slow call; stops that found own or foreign code."""
_SEEN_S, _IN_VAIN = 2e-3, 3
"""Shorter calls are over when a stop comes, on slow cores; no more are made than so many times what is wanted."""
_LATE_SHARE = 0.25
"""Of the stops, while results are copied. `sampled` looks for late work too: on slow cores that three other loads had a
part of it did not see a Tensor.copy_ that computed."""
_COLD = 4.0
"""How much longer glue takes with cold caches: of honest calls."""
_SLEPT_S = 3e-4
"""A longer wait is slept, and ends up to 0.1 ms late; a shorter one is spun, which takes a core from the candidate."""


@dataclass(slots=True)
class Found:
    """What the stops of one workload's calls found. A stop counts as one, however many threads it finds: they were all
    found at the same moment."""

    call: Call
    glue_us: float = 0.0
    """What glue may take of a call, with cold caches."""
    calls_s: list[float] = field(default_factory=list)
    """Of calls that were not stopped."""
    keeps_s: list[float] = field(default_factory=list)
    """Of the copies of their results."""
    stops: int = 0
    late_stops: int = 0
    late: int = 0
    """Of them, those that found the candidate's code at work."""
    own: float = 0.0
    foreign: dict[str, float] = field(default_factory=dict)
    """Shares of stops by the file's name."""

    def add(self, threads: Sequence[tuple[Whose, str]], *, late: bool) -> None:
        """Count one stop."""
        told = [(whose, name) for whose, name in threads if whose in (Whose.OWN, Whose.FOREIGN)]
        own = sum(whose is Whose.OWN for whose, _name in told)
        if late:
            self.late_stops += 1
            self.late += own > 0
            return
        self.stops += 1
        for whose, name in told:
            if whose is Whose.FOREIGN:
                self.foreign[name] = self.foreign.get(name, 0.0) + 1 / len(told)
        self.own += own / len(told) if told else 0.0

    @property
    def share(self) -> float:
        """How likely the next call is one to stop."""
        if not self.calls_s:
            return 0.0  # nobody knows yet how long one is
        enough = self.own + sum(self.foreign.values()) >= _ENOUGH
        return _LEAST_SHARE if enough or self.calls_s[-1] > _SLOW_S else _SHARE

    @property
    def beyond(self) -> float:
        """Stops in foreign code that neither glue nor the list explains."""
        if not self.calls_s:
            return 0.0
        listed = self.call.others_us / self.call.wall_us if self.call.wall_us else 0.0
        explained = min(1.0, listed + self.glue_us * 1e-6 / statistics.median(self.calls_s))
        return max(0.0, sum(self.foreign.values()) - self.stops * explained)


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop to come: called when a call has begun or, `late`, when its result has been asked for."""

    checks: SpotChecks
    workload: str
    moment: float
    """How far into the call, or into the copy, as a share."""
    late: bool

    def __call__(self) -> None:
        """Wait for the moment, stop the runner, and look."""
        self.checks.look(self)


class SpotChecks:
    """The spot checks of one candidate, over the races of all workloads."""

    def __init__(self, trial: Trial, artefacts: Sequence[Path], listed: Mapping[str, Call]) -> None:
        """`listed`: by workload, what the profiler's list says of one call."""
        self._trial, self._built = trial, Artefacts(artefacts)
        self._found = {name: Found(call) for name, call in listed.items()}

    def share(self, workload: str) -> float:
        """How likely the next call is one to stop."""
        return self._found[workload].share

    def wants_more(self, workload: str) -> bool:
        """Whether too few stops of a race found whose code ran. Where cores are slow the usual race has nine rounds: in
        three judgements of three torch's product was found less often than a refusal takes."""
        found = self._found[workload]
        if not found.calls_s or statistics.median(found.calls_s) < _SEEN_S:
            return False
        wanted = _ENOUGH / len(self._found)
        return found.own + sum(found.foreign.values()) < wanted and found.stops < _IN_VAIN * wanted

    def timed(self, workload: str, call_s: float, keep_s: float) -> None:
        """A call that was not stopped took so long, and the copy of its result. The first one's workload is being
        raced: what glue takes is measured now."""
        found = self._found[workload]
        if not found.calls_s:
            backward = self._trial.benches[workload].instance.backward
            found.glue_us = _COLD * glue.allowance_us(backward=backward, slowness=glue.slowness())
        found.calls_s.append(call_s)
        found.keeps_s.append(keep_s)

    def next_stop(self, workload: str, rng: random.Random) -> Stop:
        """For a call that is like the timed ones until then."""
        return Stop(self, workload, rng.random(), rng.random() < _LATE_SHARE)

    def look(self, stop: Stop) -> None:
        """Make a stop. Raises Fault `infra_error` where the runner cannot be read any more."""
        found, runner = self._found[stop.workload], self._trial.runner
        _wait(stop.moment * statistics.median(found.keeps_s if stop.late else found.calls_s))
        runner.freeze()
        try:
            threads = sampled.threads_of(runner, self._built)
        except Unreadable as closed:
            reason = f"{NAME}: the runner could be sampled before, and not while it is timed: {closed}"
            raise Fault(Verdict.INFRA_ERROR, reason) from closed
        finally:
            runner.thaw()
        found.add(threads, late=stop.late)

    def check(self) -> None:
        """Raises Fault `suspicious` when library code ran in calls like the timed ones."""
        required = self._trial.request.own_kernel_share
        figures: dict[str, float | str] = {"required": required}
        own = beyond = 0.0
        for name, found in self._found.items():
            own += found.own
            beyond += found.beyond
            figures |= {f"own_stops/{name}": round(found.own, 1), f"foreign_stops/{name}": round(found.beyond, 1)}
            figures |= {f"stops/{name}": found.stops, f"late_stops/{name}": found.late}
            if found.late > sampled.MOST_LATE:
                reason = f"{name}: the candidate's code was found at work at {found.late} of {found.late_stops} stops"
                raise self._trial.refuse(NAME, Verdict.SUSPICIOUS, f"{reason} after a timed call was over", **figures)
            least = max(sampled.least_share(found.beyond, found.own), sampled.least_share(beyond, own))
            if least > 1 - required:
                most = sorted(found.foreign.items(), key=lambda item: -item[1])[:3]
                where = ", ".join(f"{file} {stops:.0f}" for file, stops in most)
                reason = (
                    f"{name}: calls like the timed ones are not in code that was built for the candidate ({beyond:.0f} "
                    f"stops beyond glue against {own:.0f} of {found.stops}; {where}), though it was when the same "
                    f"values came again; the policy asks for {required:.0%} own code"
                )
                raise self._trial.refuse(NAME, Verdict.SUSPICIOUS, reason, **figures)
        self._trial.record(NAME, True, "stops in calls like the timed ones agree with the list", **figures)


def _wait(seconds: float) -> None:
    until = time.perf_counter() + seconds
    if seconds > _SLEPT_S:
        time.sleep(seconds)
    while time.perf_counter() < until:
        pass
