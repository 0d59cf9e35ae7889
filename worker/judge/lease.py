"""The device lease: shared while candidates are built, warmed and verified, exclusive while one is timed.

A lock file per physical device, beside the queue's own one-worker-per-GPU rule, so that a stray second worker cannot
disturb a timing either. The kernel releases a lock when its holder dies.

Such locks know no turns: where verifications overlap, a timing would wait for ever. After ten seconds it closes the
gate that verifications come through, and is next. Seven judges on one GPU had waited up to 70 s for a lease.

Whoever shares the device mostly waits for a runner that imports, compiles or checks, 10 to 90 s at a time, and uses the
device in between. While a timing waits, such a runner is stopped (`lent`): with four judges on an H200 that did not,
each timing waited for most of those seconds, and the device idled for a third of the time. What compiles baselines
needs no lease but for its turns on the device, short ones that come before the next timing: stopped like the others, it
had six judges compile or time, in turns, with two thirds of the cores idle (H200).
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Protocol

_PATIENCE_S = 10.0
_POLL_S = 0.02
_DRAIN_S = 0.25
"""What a stopped process has queued on the device goes on running: an autotuner queues 0.1 s of calls."""


class Stoppable(Protocol):
    """What uses a device and can be stopped: a runner."""

    meanwhile: Callable[[], float] | None
    """Called before it is asked, and now and then while it is waited for; gives the seconds that it lost by that."""

    turn: Callable[[], AbstractContextManager[object]] | None
    """Has the device alone for it, where it may ask for that."""

    def freeze(self) -> None: ...
    def thaw(self) -> None: ...


class DeviceLease:
    """Locks on one device."""

    def __init__(self, folder: Path, device_name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{device_name}.lock"
        self._gate = folder / f"{device_name}.gate"
        self._wanted = folder / f"{device_name}.wanted"
        self.held_s = 0.0
        """Seconds for which this process held the device, in either mode, where they were counted."""

    @contextmanager
    def shared(self, *, counted: bool = True) -> Iterator[IO[str]]:
        """Hold the device together with other verifications. Not `counted`: what all candidates of a problem need, and
        the first of them should not pay for."""
        with self._path.open("w") as file:
            self._join(file)
            with self._counted(counted=counted):
                yield file

    @contextmanager
    def lent(
        self, *runners: Stoppable, counted: bool = True, turns: bool = False
    ) -> Iterator[Callable[[Stoppable], None]]:
        """The same for what these runners do: while their answers are awaited, timings of others go first. Gives what
        adds a runner. `turns`: they may ask to have the device alone."""
        added: list[Stoppable] = []
        with self.shared(counted=counted) as file:

            def add(runner: Stoppable) -> None:
                runner.meanwhile = lambda: self._give_way(runner, file, counted=counted)
                runner.turn = (lambda: self._turn_of(file)) if turns else None
                added.append(runner)

            try:
                for runner in runners:
                    add(runner)
                yield add
            finally:
                for runner in added:
                    runner.meanwhile = runner.turn = None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the device alone."""
        with self._path.open("w") as file:
            self._seize(file, _PATIENCE_S)
            with self._counted(counted=True):
                yield

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The same for a short time, and next: whoever times many workloads asks for the device again for each."""
        with self._path.open("w") as file:
            self._seize(file, 0.0)
            yield

    def _seize(self, file: IO[str], patience_s: float) -> None:
        with self._wanted.open("w") as wanted:
            fcntl.flock(wanted, fcntl.LOCK_SH)
            if not _within(patience_s, file):
                with self._gate.open("w") as gate:
                    fcntl.flock(gate, fcntl.LOCK_EX)
                    fcntl.flock(file, fcntl.LOCK_EX)

    @contextmanager
    def _turn_of(self, file: IO[str]) -> Iterator[None]:
        """A turn for a runner that shares the device by this lock."""
        fcntl.flock(file, fcntl.LOCK_UN)  # two that share it would else wait for each other
        try:
            self._seize(file, 0.0)
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
            self._join(file)

    def _give_way(self, runner: Stoppable, file: IO[str], *, counted: bool) -> float:
        """If a timing waits: stop the runner, let the timing have the device, and go on. The seconds it took."""
        if not self._wanted_now():
            return 0.0
        began = time.monotonic()
        runner.freeze()
        time.sleep(_DRAIN_S)
        fcntl.flock(file, fcntl.LOCK_UN)
        while self._wanted_now():
            time.sleep(_POLL_S)
        self._join(file)
        runner.thaw()
        lost_s = time.monotonic() - began
        self.held_s -= lost_s * counted
        return lost_s

    def _wanted_now(self) -> bool:
        """Whether somebody waits to hold the device alone."""
        with self._wanted.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _join(self, file: IO[str]) -> None:
        """Lock an open lock file together with others, after whoever has closed the gate."""
        with self._gate.open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)
            fcntl.flock(file, fcntl.LOCK_SH)

    @contextmanager
    def _counted(self, *, counted: bool) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.held_s += (time.monotonic() - start) * counted


def _within(limit_s: float, file: IO[str]) -> bool:
    """Whether the file could be locked in that time."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_S)
        else:
            return True
    return False
