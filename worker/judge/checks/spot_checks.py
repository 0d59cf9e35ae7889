"""Whose code a CPU candidate's timed calls run: calls of a race that are stopped in their midst, and not timed.

`checks/sampled` calls a candidate over and over on the same values, which no timing does: one that computed with torch
whenever the values were new, and by itself when they came again, was `ok` at torch's own speed. So some of a race's
calls are spot checks. Until it is stopped such a call is what a timed one is: it comes among them at random, with new
values and cold caches. At a random moment in it the judge reads where the threads are.

    foreign = stops in foreign code - what glue (allocation, views) and the profiler's list account for

Some stops come later, while a result is copied whose call is over: nobody's code but torch's has to run then.

The candidate is refused where the lower end of the interval of foreign / (own + foreign) is above what the job's policy
leaves to others (`sampled.least_share`). There is no doubt here: few samples decide nothing, `sampled` has looked.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker.judge.checks import glue, sampled
from worker.judge.checks.sampled import Call
from worker.judge.runners import quiet
from worker.judge.runners.pointers import Artefacts, Process, Unreadable, Whose
from worker.judge.trial import Trial
from worker.judge.verdict import Verdict

NAME = "own kernel share, timed calls"
LATE_SHARE = 0.25
"""Of the stops, while results are copied. `sampled` looks for late work too: on slow cores that three other loads had a
part of it did not see a Tensor.copy_ that computed."""
_A_ROUND, _A_SLOW_ROUND, _SLOW_S, _ENOUGH, _MOST = 4, 2, 0.25, 24, 64
"""Stops in each round of a race, fewer where a call takes so many seconds, until so many threads were found in own or
foreign code, or so many stops made."""
_COLD = 4.0
"""How much longer glue takes with cold caches: of honest calls."""
_SLEPT_S = 3e-4
"""A longer wait is slept, and ends up to 0.1 ms late; a shorter one is spun, which takes a core from the candidate."""


@dataclass(slots=True)
class Found:
    """What the stops of one workload's calls found."""

    call: Call
    glue_us: float
    """What glue may take of a call, with cold caches."""
    calls_s: list[float] = field(default_factory=list)
    """Of calls that were not stopped."""
    keeps_s: list[float] = field(default_factory=list)
    """Of the copies of their results."""
    stops: int = 0
    late_stops: int = 0
    late: int = 0
    """Of them, those that found the candidate's code at work."""
    own: int = 0
    foreign: Counter[str] = field(default_factory=Counter)
    """By the file's name."""

    @property
    def wanted(self) -> bool:
        """Whether more stops would help."""
        return self.stops + self.late_stops < _MOST and self.own + self.foreign.total() < _ENOUGH

    @property
    def beyond(self) -> float:
        """Samples in foreign code that neither glue nor the list explains."""
        if not self.calls_s:
            return 0.0
        explained = min(1.0, (self.glue_us + self.call.others_us) * 1e-6 / statistics.median(self.calls_s))
        return max(0.0, self.foreign.total() - self.stops * explained)


class SpotChecks:
    """The spot checks of one candidate, over the races of all workloads."""

    def __init__(self, trial: Trial, artefacts: Sequence[Path], listed: Mapping[str, Call]) -> None:
        """`listed`: by workload, what the profiler's list says of one call."""
        self._trial, self._built = trial, Artefacts(artefacts)
        self._found = {name: Found(call, self._glue_us(name)) for name, call in listed.items()}
        self._unreadable = ""

    def wanted(self, workload: str) -> int:
        """How many of a workload's calls to stop in the next round."""
        found = self._found[workload]
        slow = bool(found.calls_s) and found.calls_s[-1] > _SLOW_S
        return (_A_SLOW_ROUND if slow else _A_ROUND) if found.wanted and not self._unreadable else 0

    def begun(self, workload: str) -> bool:
        """Whether it is known how long a call is."""
        return bool(self._found[workload].calls_s)

    def timed(self, workload: str, call_s: float, keep_s: float) -> None:
        """A call that was not stopped took so long, and the copy of its result."""
        self._found[workload].calls_s.append(call_s)
        self._found[workload].keeps_s.append(keep_s)

    def stop(self, workload: str, rng: random.Random, *, late: bool) -> None:
        """Wait for a random moment of the call that has just begun or, `late`, of the copy of its result, stop the
        runner, and look."""
        found, runner = self._found[workload], self._trial.runner
        _wait(rng.random() * statistics.median(found.keeps_s if late else found.calls_s))
        runner.freeze()
        threads: list[tuple[Whose, str]] = []
        try:
            for pid in quiet.runner_tree(runner._pid):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    threads += Process(pid, self._built).threads()
        except Unreadable as closed:
            self._unreadable = str(closed)
        finally:
            runner.thaw()
        own = sum(whose is Whose.OWN for whose, _name in threads)
        if late:
            found.late_stops += 1
            found.late += own > 0
            return
        found.stops += 1
        found.own += own
        found.foreign.update(name for whose, name in threads if whose is Whose.FOREIGN)

    def check(self) -> None:
        """Raises Fault `suspicious` when library code ran in calls like the timed ones."""
        required = self._trial.request.own_kernel_share
        figures: dict[str, float | str] = {"required": required}
        own = beyond = 0.0
        for name, found in self._found.items():
            own += found.own
            beyond += found.beyond
            figures |= {f"own_samples/{name}": found.own, f"foreign_samples/{name}": round(found.beyond, 1)}
            figures |= {f"stops/{name}": found.stops, f"late_samples/{name}": found.late}
            if found.late > sampled.MOST_LATE:
                reason = f"{name}: the candidate's code was found at work at {found.late} of {found.late_stops} stops"
                raise self._trial.refuse(NAME, Verdict.SUSPICIOUS, f"{reason} after a timed call was over", **figures)
            least = max(sampled.least_share(found.beyond, found.own), sampled.least_share(beyond, own))
            if least > 1 - required:
                where = ", ".join(f"{file} {count}" for file, count in found.foreign.most_common(3))
                reason = (
                    f"{name}: of calls like the timed ones at least {least:.0%} is not in code that was built for the "
                    f"candidate ({beyond:.0f} samples beyond glue against {own:.0f}; {where}), though it was when the "
                    f"same values came again; the policy asks for {required:.0%} own code"
                )
                raise self._trial.refuse(NAME, Verdict.SUSPICIOUS, reason, **figures)
        detail = f"not made on this machine: {self._unreadable}" if self._unreadable else "agree with the list"
        self._trial.record(NAME, True, f"stops in calls like the timed ones {detail}", **figures)

    def _glue_us(self, workload: str) -> float:
        backward = self._trial.benches[workload].instance.backward
        return _COLD * glue.allowance_us(backward=backward, slowness=glue.slowness())


def _wait(seconds: float) -> None:
    until = time.perf_counter() + seconds
    if seconds > _SLEPT_S:
        time.sleep(seconds)
    while time.perf_counter() < until:
        pass
