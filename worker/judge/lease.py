"""The device lease: shared while candidates are built, warmed and verified, exclusive while one is timed.

A lock file per physical device, beside the queue's own one-worker-per-GPU rule, so that a stray second worker cannot
disturb a timing either. The kernel releases a lock when its holder dies.

Who wants the device alone waits in a queue. Of timings that of the judge goes first that began its work first: with
eight judges on one H200 that took turns with each other, none had finished after nine minutes. What compiles baselines
needs it in short turns, had in the order in which they are asked for, and before timings, because its processors wait
for them; but when nobody was timed for a second a timing goes first, and for a second: several judges that compile want
more turns than there is time. While anybody waits to have it alone nobody starts to share it, but on a GPU for some
seconds after some seconds (`worker.judge.phases`).

Whoever shares the device mostly waits for a runner that imports, compiles or checks, 10 to 90 s at a time, and uses the
device in between. While a timing waits, such a runner is stopped (`lent`): with four judges on an H200 that did not,
each timing waited for most of those seconds, and the device idled for a third of the time. It is stopped while its
candidate is built, too: 20 to 60 s of a compiler, for which nobody was timed. What does not outlive that (`unstopped`)
keeps timings waiting, and lets others share the device meanwhile.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol

from worker.judge.phases import ANY, Phases, Rhythm
from worker.judge.waiting import Queue

_POLL_S = 0.01
_UNDER_WAY, _NEW = 0, 1
"""Which timing goes first."""


class Stoppable(Protocol):
    """What uses a device and can be stopped: a runner."""

    meanwhile: Callable[[], float] | None
    """Called before it is asked, and now and then while it is waited for; gives the seconds that it lost by that."""

    away: Callable[[], AbstractContextManager[object]] | None
    """To do in what needs neither it nor the device."""

    def freeze(self) -> None: ...
    def thaw(self) -> None: ...


class DeviceLease:
    """Locks on one device."""

    def __init__(self, folder: Path, device_name: str, rhythm: Rhythm = ANY) -> None:
        self._turns, self._timings = Queue(folder / f"{device_name}.turns"), Queue(folder / f"{device_name}.timings")
        self._joining = Queue(folder / f"{device_name}.joining")
        self._unstopped = Queue(folder / f"{device_name}.unstopped")
        self._path = folder / f"{device_name}.lock"
        self._phases, self._rhythm = Phases(folder / f"{device_name}.phase"), rhythm
        self._since_ns = time.time_ns()
        self._held = _Held()
        self.waited_s = {"shared": 0.0, "alone": 0.0}
        """For how long this process waited to have the device so, of all its threads together."""
        self.turns_had, self.turns_s = 0, 0.0
        """How many it had, and for how long together."""

    def begin(self) -> None:
        """Work begins that the device will be wanted for: whoever began earlier goes first."""
        self._since_ns = time.time_ns()

    @property
    def held_s(self) -> float:
        """Seconds for which this process held the device, in either mode, where they were counted; once for what
        several of its threads held at a time."""
        return self._held.total_s

    @contextmanager
    def shared(self, *, counted: bool = True) -> Iterator[Callable[[], None]]:
        """Hold the device together with other verifications. Gives what lets those go first who wait to have it alone:
        to be called where nothing runs on it. Not `counted`: what all candidates of a problem need, and the first of
        them should not pay for."""
        with self._path.open("w") as file:
            self._join(file)
            with self._held.counted(counted):
                yield lambda: self._pause(file, counted=counted)

    @contextmanager
    def lent(self, *runners: Stoppable, counted: bool = True) -> Iterator[Callable[[Stoppable], None]]:
        """The same for what these runners do: while their answers are awaited, timings of others go first. Gives what
        adds a runner."""
        added: list[Stoppable] = []
        with self._path.open("w") as file:
            self._join(file)

            def add(runner: Stoppable) -> None:
                runner.meanwhile = lambda: self._give_way(runner, file, counted=counted)
                runner.away = lambda: self._away(runner, file, counted=counted)
                added.append(runner)

            try:
                for runner in runners:
                    add(runner)
                with self._held.counted(counted):
                    yield add
            finally:
                for runner in added:
                    runner.meanwhile = runner.away = None

    @contextmanager
    def unstopped(self, runner: Stoppable, at_most_s: float) -> Iterator[None]:
        """For what a lent runner is asked that does not outlive being stopped: for so long it is not. Whoever wants the
        device alone waits, and meanwhile others share it."""
        usual, end = runner.meanwhile, time.monotonic() + at_most_s
        with ExitStack() as held:
            held.enter_context(self._unstopped.waiting("0"))

            def meanwhile() -> float:
                if usual is None or time.monotonic() < end:
                    return 0.0
                held.close()
                return usual()

            runner.meanwhile = meanwhile
            try:
                yield
            finally:
                runner.meanwhile = usual

    @contextmanager
    def exclusive(self) -> Iterator[Callable[[], None]]:
        """Hold the device alone. Gives what lets others go first who waited for long enough: to be called where nothing
        runs on it, and between two things that need not follow each other."""
        with self._path.open("w") as file:
            since = self._time(file, _NEW)

            def give_way() -> None:
                nonlocal since
                if time.monotonic() - since >= self._rhythm.slice_s and (self._turns.any() or self._must_share()):
                    self._release(file, timed=True)
                    with self._held.without(True):
                        since = self._time(file, _UNDER_WAY)

            try:
                with self._held.counted(True):
                    yield give_way
            finally:
                self._release(file, timed=True)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The same for a short time."""
        with self._path.open("w") as file:
            self._seize(file, self._turns, str(time.time_ns()), self._turn_is_due)
            began = time.monotonic()
            try:
                yield
            finally:
                self.turns_had += 1  # nobody else has the device, no other thread either
                self.turns_s += time.monotonic() - began
                self._release(file)

    @contextmanager
    def briefly(self) -> Iterator[None]:
        """Hold the device for something short, which nobody is timed beside: together with others if it is shared now,
        else in a turn. Compilers that waited to share it waited out each phase of timings, up to 10 s, some ten times
        for a problem: 110 to 210 s, not 30 (an H100)."""
        now_shared = not self._phases.now().alone and self._may_join()
        with self.shared(counted=False) if now_shared else self.turn():
            yield

    def _time(self, file: IO[str], rank: int) -> float:
        """Lock an open lock file alone, for a timing. The moment at which it was."""
        self._seize(file, self._timings, f"{rank}-{self._since_ns}", self._timing_is_due)
        return time.monotonic()

    def _seize(self, file: IO[str], queue: Queue, key: str, due: Callable[[], bool]) -> None:
        with self._waiting("alone"), queue.waiting(key) as first:
            while not (first() and due() and not self._must_share() and _locked(file, fcntl.LOCK_EX)):
                time.sleep(_POLL_S)
            self._phases.seized(anew=self._unwanted())

    @contextmanager
    def _waiting(self, how: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.waited_s[how] += time.monotonic() - began

    def _release(self, file: IO[str], *, timed: bool = False) -> None:
        self._phases.left(timed=timed)
        fcntl.flock(file, fcntl.LOCK_UN)

    def _turn_is_due(self) -> bool:
        return self._phases.now().untimed_s < self._rhythm.slice_s or not self._timings.any()

    def _timing_is_due(self) -> bool:
        return self._phases.now().untimed_s >= self._rhythm.slice_s or not self._turns.any()

    def _must_share(self) -> bool:
        """Whether those who want to share the device go before those who want it alone."""
        phase = self._phases.now()
        return phase.alone and phase.age_s > self._rhythm.alone_at_most_s and self._joining.any()

    def _wanted_alone(self) -> bool:
        return self._turns.any() or self._timings.any()

    def _join(self, file: IO[str]) -> None:
        """Lock an open lock file together with others."""
        with self._waiting("shared"), self._joining.waiting("0"):
            while not (self._may_join() and _locked(file, fcntl.LOCK_SH)):
                time.sleep(_POLL_S)
            self._phases.joined()

    def _may_join(self) -> bool:
        """Whether those who want to share the device may, once nobody has it alone."""
        phase = self._phases.now()
        if not phase.alone:
            over = phase.age_s >= self._rhythm.shared_s(phase.alone_s) and self._wanted_alone()
            return not over or self._unstopped.any()
        if phase.age_s > self._rhythm.alone_at_most_s:
            return True
        return phase.idle_s >= self._rhythm.linger_s and not self._wanted_alone()

    def _unwanted(self) -> bool:
        """Whether nobody has wanted the device since it was last had alone: those seconds are none of having it alone.
        With them, a turn of 0.1 s after 15 s of nothing was followed by 2.5 s of sharing, not 0.5."""
        return self._phases.now().idle_s > self._rhythm.linger_s and not self._joining.any()

    def _wanted(self) -> bool:
        """Whether those who share the device have to give way."""
        phase = self._phases.now()
        over = phase.age_s >= self._rhythm.shared_s(phase.alone_s) and self._wanted_alone()
        return over and not self._unstopped.any()

    @contextmanager
    def _away(self, runner: Stoppable, file: IO[str], *, counted: bool) -> Iterator[None]:
        """Without the device, which a runner shares by this lock; the runner is stopped meanwhile."""
        runner.freeze()
        time.sleep(self._rhythm.drain_s)
        fcntl.flock(file, fcntl.LOCK_UN)
        with self._held.without(counted):
            try:
                yield
            finally:
                self._join(file)
                runner.thaw()

    def _give_way(self, runner: Stoppable, file: IO[str], *, counted: bool) -> float:
        """If a timing waits: stop the runner, let the timing have the device, and go on. The seconds it took."""
        if not self._wanted():
            return 0.0
        began = time.monotonic()
        with self._away(runner, file, counted=counted):
            pass  # joining again waits for all timings
        return time.monotonic() - began

    def _pause(self, file: IO[str], *, counted: bool) -> None:
        if self._wanted():
            fcntl.flock(file, fcntl.LOCK_UN)
            with self._held.without(counted):
                self._join(file)


class _Held:
    """A clock that runs while any thread of this process holds the device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders, self._since, self._total_s = 0, 0.0, 0.0

    @property
    def total_s(self) -> float:
        """Seconds so far."""
        with self._lock:
            return self._total_s + (time.monotonic() - self._since if self._holders else 0.0)

    @contextmanager
    def counted(self, really: bool) -> Iterator[None]:
        """While this is held."""
        self._add(really)
        try:
            yield
        finally:
            self._add(-really)

    @contextmanager
    def without(self, really: bool) -> Iterator[None]:
        """While what was held is given away."""
        self._add(-really)
        try:
            yield
        finally:
            self._add(really)

    def _add(self, holders: int) -> None:
        with self._lock:
            now = time.monotonic()
            if self._holders:
                self._total_s += now - self._since
            self._since = now
            self._holders += holders


def _locked(file: IO[str], how: int) -> bool:
    """Whether the file could be locked without waiting."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
