"""Where a CPU kernel's threads are while it is called as timing calls it: on cold caches, one look at a random moment.

    samples = take(runner, bench, artefacts, latency_us, rng)

The judge evicts the caches, rings for a call, stops the runner at a moment drawn evenly over the call's known latency,
and reads where each thread stands (`worker.judge.runners.pointers`). So the looks are spread over a call's time as that
time is spent, without counters, without a debugger and without the candidate's part. 48 looks tell 50 % from 36 %.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker.judge.runners import quiet
from worker.judge.runners.bell_reader import peer_inode, socket_waited_on
from worker.judge.runners.bench import Workbench
from worker.judge.runners.pointers import Artefacts, Place, Process, Unreadable, Whose
from worker.judge.runners.sessions import Runner
from worker.judge.timing.evicting import HostEviction
from worker.judge.trial import SUBJECT
from worker.judge.verdict import Fault
from worker.runner import protocol

LOOKS, BUDGET_S, FEWEST = 48, 1.0, 8
"""A look takes the call, an eviction (5 ms on two cores) and stopping the runner: 10 to 20 ms for short kernels. Fewer
than eight say nothing."""
_DISTURBED_SHARE = 0.2
"""A look does not count when the runner's threads waited for a core for so much of a call: that is the machine's doing,
and on a busy one it looks like threads that wait for one another."""
_CALL_LIMIT_S = 20.0
_MATH = ("libm.so", "libm-", "libmvec")
_PYTHON = ("python", "libpython", "_ctypes", "libffi", "libtorch_python")
_WAITS = ("libgomp", "libiomp", "libomp")


@dataclass(slots=True)
class Samples:
    """What the looks found, over all of them."""

    looks: int = 0
    """Those that came while the call was going on."""
    in_kernel: int = 0
    """With at least one thread in the candidate's own code, or in the math library that it calls."""
    threads: int = 0
    """Those threads, over all looks."""
    math: int = 0
    waiting: int = 0
    foreign: int = 0
    python: int = 0
    offsets: dict[int, list[int]] = field(default_factory=dict)
    """By artefact: where in the file its threads were."""
    names: Counter[str] = field(default_factory=Counter)
    """Foreign files."""
    calls: int = 0
    faults: int = 0

    def add(self, places: Sequence[Place]) -> None:
        """Count one look."""
        own = [place for place in places if place.whose is Whose.OWN]
        math = sum(place.name.startswith(_MATH) for place in places)
        foreign = [place.name for place in places if place.whose is Whose.FOREIGN]
        working = len(own) + math
        self.looks += 1
        self.in_kernel += working > 0
        self.threads += working
        self.math += math
        if not working:  # one reason each, the first that applies; the C library's own work is nobody's
            self.foreign += bool(foreign)
            self.python += not foreign and any(place.name.startswith(_PYTHON) for place in places)
            self.waiting += not foreign and all(place.name.startswith(_WAITS) for place in places)
        self.names.update(foreign)
        for place in own:
            self.offsets.setdefault(place.artefact or 0, []).append(place.offset)

    def metrics(self) -> dict[str, float | None]:
        """Shares and counts by the names of `worker.profile.metrics`."""
        if self.looks < FEWEST:
            return {}
        return {
            "device_share": self.in_kernel / self.looks,
            "threads_busy": self.threads / self.in_kernel if self.in_kernel else None,
            "waiting_share": self.waiting / self.looks,
            "foreign_share": self.foreign / self.looks,
            "python_share": self.python / self.looks,
            "math_share": self.math / self.threads if self.threads else None,
            "faults_per_call": self.faults / self.calls if self.calls else None,
        }


def take(runner: Runner, bench: Workbench, artefacts: Sequence[Path], latency_us: float, rng: random.Random) -> Samples:
    """Look until `LOOKS` looks count or the budget is spent. Raises Unreadable where /proc does not tell, or Fault."""
    samples, eviction = Samples(), HostEviction()
    looker = _Looker(runner, Artefacts(artefacts))
    bench.write(0, 0)
    bench.heat(SUBJECT, None)
    deadline = time.monotonic() + BUDGET_S
    try:
        runner.ring(protocol.CALL, _CALL_LIMIT_S, number=0)
        before = _faults(looker.pid)
        while samples.looks < LOOKS and time.monotonic() < deadline:
            eviction.flush()
            places = looker.look(rng.uniform(0, latency_us * 1e-6))
            samples.calls += 1
            if places is not None and looker.waited_s < _DISTURBED_SHARE * latency_us * 1e-6:
                samples.add(places)
        samples.faults = max(0, _faults(looker.pid) - before)
    finally:
        runner.thaw()
        with contextlib.suppress(Fault):  # a runner that does not answer is closed; the next question says so
            bench.cool()
    return samples


class _Looker:
    """Stops a runner during a call and reads where its threads are."""

    def __init__(self, runner: Runner, built: Artefacts) -> None:
        self._runner, self._built = runner, built
        self._bell = peer_inode(runner._bell)
        self.pid = quiet.runner_of(runner._pid)
        self.waited_s = 0.0
        """For how long the threads of the call that was looked at had no core until then."""

    def look(self, after_s: float) -> list[Place] | None:
        """So long after a call began; None when it had not begun or was over by then."""
        call = _Call(self._runner)
        waited_s = self._runner.waited_s()
        call.start()
        call.began.wait()
        _sleep_precisely(after_s)
        self._runner.freeze()
        self.waited_s = self._runner.waited_s() - waited_s
        try:
            places = self._places() if self._calling(call) else None
        finally:
            self._runner.thaw()
            call.join()
        if call.fault is not None:
            raise call.fault
        return places

    def _calling(self, call: _Call) -> bool:
        """Whether the runner does not wait for the bell: between calls OpenMP's threads spin, which is no waiting."""
        if call.over.is_set() or self.pid is None:
            return False
        try:
            waited_on = socket_waited_on(self.pid)
        except OSError as closed:
            raise Unreadable(f"/proc/PID/syscall: {closed.strerror}") from closed
        return self._bell is None or waited_on != self._bell

    def _places(self) -> list[Place]:
        places: list[Place] = []
        for pid in quiet.runner_tree(self._runner._pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                places += Process(pid, self._built).places()
        return places


class _Call(threading.Thread):
    """One call, rung in a thread of its own so that the judge can look meanwhile."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(daemon=True)
        self._runner, self.began, self.over = runner, threading.Event(), threading.Event()
        self.fault: Fault | None = None

    def run(self) -> None:
        """Ring, and wait for the answer."""
        self.began.set()
        try:
            self._runner.ring(protocol.CALL, _CALL_LIMIT_S, number=0)
        except Fault as fault:
            self.fault = fault
        finally:
            self.over.set()


def _sleep_precisely(seconds: float) -> None:
    """A sleep is 60 us too long on a common kernel; spinning would take a core from the kernel that is looked at."""
    time.sleep(max(0.0, seconds - 6e-5))


def _faults(pid: int | None) -> int:
    """Minor page faults of the process so far; 0 where nobody tells."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
    return 0
