"""A judge's part in the device: the real lease and the real room, with work that is slept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from benchmarks.rehearsal import trace
from benchmarks.rehearsal.clock import Clock
from benchmarks.rehearsal.trace import Trace
from worker.judge import lease, phases
from worker.judge.room import Room
from worker.judge.runners.sessions import _MEANWHILE_S

GIB = 1 << 30
_Given = TypeVar("_Given")
_WORTH_NOTING_S = 0.002


def scaled(rhythm: phases.Rhythm, scale: float) -> phases.Rhythm:
    """The same rhythm in the wall's seconds."""
    return phases.Rhythm(*(getattr(rhythm, name) * scale for name in phases.Rhythm.__dataclass_fields__))


class FakeRunner:
    """Work that goes on while it is not stopped, and gives way as `worker.judge.runners.sessions.Runner` does."""

    def __init__(self, clock: Clock, seen: Trace) -> None:
        self._clock, self._seen = clock, seen
        self._running = threading.Event()
        self._running.set()
        self.meanwhile: Callable[[], float] | None = None
        self.away: Callable[[], AbstractContextManager[object]] | None = None

    def freeze(self) -> None:
        self._running.clear()

    def thaw(self) -> None:
        self._running.set()

    def ask(self, work_s: float) -> None:
        """Have it work for so long, looking every 50 ms whether it has to give way."""
        self.give_way()
        while work_s > 0:
            assert self._running.is_set(), "a stopped runner was asked"
            with self._seen.during(trace.SHARED):
                began = self._clock.now
                self._clock.sleep(min(work_s, _MEANWHILE_S))
                work_s -= self._clock.now - began
            if work_s > 0:
                self.give_way()

    def give_way(self) -> None:
        """Let those who wait to have the device alone go first."""
        began = self._clock.now
        if self.meanwhile is not None and self.meanwhile() > 0:
            self._seen.since(trace.TO_SHARE, began)

    def build(self, took_s: float) -> None:
        """What the broker builds for it, without the device."""
        with self.away() if self.away is not None else nullcontext():
            self._clock.sleep(took_s)


class Device:
    """One judge's lease, with what it waits for noted."""

    def __init__(self, folder: Path, clock: Clock, seen: Trace, rhythm: phases.Rhythm, memory_gib: float) -> None:
        self._clock, self._seen = clock, seen
        lease._POLL_S = 0.01 * clock.scale
        self._lease = lease.DeviceLease(folder, "device", scaled(rhythm, clock.scale))
        self._room = Room(folder, "device", int(memory_gib * GIB))
        self.begin = self._lease.begin

    def take_room(self, kept_gib: float, passing_gib: float, *, finalist: bool = False) -> None:
        with self._seen.during(trace.ROOM):
            self._room.take(int(kept_gib * GIB), int(passing_gib * GIB), finalist=finalist)

    def keep_room(self, kept_gib: float) -> None:
        self._room.keep(int(kept_gib * GIB))

    def leave(self) -> None:
        self._room.leave()

    def room_wanted(self, *, idle: bool) -> bool:
        return self._room.wanted(idle=idle)

    def runner(self) -> FakeRunner:
        return FakeRunner(self._clock, self._seen)

    @contextmanager
    def shared(self) -> Iterator[Callable[[float], None]]:
        """Gives what works beside others and then lets those go first who want it alone."""
        with self._entered(self._lease.shared(), trace.TO_SHARE) as pause:

            def work(took_s: float) -> None:
                with self._seen.during(trace.SHARED):
                    self._clock.sleep(took_s)
                self._noted(pause, trace.TO_SHARE)

            yield work

    @contextmanager
    def lent(self, *runners: FakeRunner) -> Iterator[Callable[[FakeRunner], None]]:
        with self._entered(self._lease.lent(*runners), trace.TO_SHARE) as add:
            yield add

    def unstopped(self, runner: FakeRunner, at_most_s: float) -> AbstractContextManager[None]:
        return self._lease.unstopped(runner, at_most_s * self._clock.scale)

    @contextmanager
    def briefly(self) -> Iterator[None]:
        with self._entered(self._lease.briefly(), trace.FOR_A_TURN):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[Callable[[float], None]]:
        """Gives what works alone, in rounds that let others have their turns."""
        with self._entered(self._lease.exclusive(), trace.TO_BE_ALONE) as give_turns:

            def work(took_s: float) -> None:
                self._noted(give_turns, trace.TO_BE_ALONE)
                with self._seen.during(trace.ALONE):
                    self._clock.sleep(took_s)

            yield work

    def turn(self, took_s: float) -> None:
        with self._entered(self._lease.turn(), trace.FOR_A_TURN), self._seen.during(trace.TURN):
            self._clock.sleep(took_s)

    def own(self, took_s: float) -> None:
        """Work of the judge while it shares the device, in one piece."""
        with self._seen.during(trace.SHARED):
            self._clock.sleep(took_s)

    @contextmanager
    def _entered(self, context: AbstractContextManager[_Given], waited: str) -> Iterator[_Given]:
        began = self._clock.now
        with context as got:
            self._seen.since(waited, began)
            yield got

    def _noted(self, call: Callable[[], None], waited: str) -> None:
        began = self._clock.now
        call()
        if self._clock.now - began > _WORTH_NOTING_S:
            self._seen.since(waited, began)
