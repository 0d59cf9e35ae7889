"""Start services in order, keep them running, stop them in reverse order, leave no process.

supervisor = Supervisor([[postgres, valkey], [api, worker_control, worker_cpu]])
supervisor.start()
supervisor.watch()      # until SIGINT, SIGTERM or SIGHUP; a second one kills
supervisor.stop()
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import structlog

from cli.descendants import become_subreaper, kill_strays
from cli.errors import CliError
from cli.programs import Service

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A service that keeps failing is tried again after 0.5, 1, 2 … 30 s; one that ran for a minute begins at 0.5 again.
_FIRST_DELAY_S, _LONGEST_DELAY_S, _SETTLED_S = 0.5, 30.0, 60.0
_TICK_S = 1.0
_SWEEP_EVERY_S = 10.0


class StopRequested(BaseException):
    """A stop signal came while a service was being started; raised out of the wait for it."""


log = structlog.get_logger("kernelwright.supervisor")


@dataclass(slots=True)
class Backoff:
    """How long to wait before the next start of something that has ended."""

    delay_s: float = 0.0

    def after(self, ran_s: float) -> float:
        """The seconds to wait after a run of `ran_s`; each short run doubles them."""
        again = ran_s < _SETTLED_S and self.delay_s > 0
        self.delay_s = min(self.delay_s * 2, _LONGEST_DELAY_S) if again else _FIRST_DELAY_S
        return self.delay_s


@dataclass(slots=True)
class _Watched:
    service: Service
    started_at: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    due_at: float | None = None
    """When it is to be started again; None while it runs."""


@dataclass(slots=True)
class Supervisor:
    """Runs `groups` of services: a group starts when the one before serves, and stops before it.

    Start children only from the thread that makes this object (see `cli.spawn`).
    """

    groups: Sequence[Sequence[Service]]
    clock: Callable[[], float] = time.monotonic
    _watched: list[_Watched] = field(default_factory=list, init=False)
    _signals: int = field(default=0, init=False)
    _starting: bool = field(default=False, init=False)
    _sweep_at: float = field(default=0.0, init=False)
    _reader: int | None = field(default=None, init=False)

    def start(self) -> None:
        """Start everything in order. On a CliError or StopRequested what was started is stopped again."""
        become_subreaper()
        try:
            for group in self.groups:
                for service in group:
                    self._start_one(service)
        except BaseException:
            self.stop()
            raise

    def watch(self) -> None:
        """Restart what ends, until a signal asks to stop."""
        while not self._signals:
            self.tend()
            self._sleep()

    def tend(self) -> None:
        """One round: note what has ended, end its orphans, start again what is due."""
        for watched in self._watched:
            status = watched.service.poll()
            if watched.due_at is None and status is not None:
                self._schedule(watched, status)
                self._sweep_at = 0.0
        self._sweep()
        for watched in self._watched:
            if watched.due_at is not None and self.clock() >= watched.due_at and not self._signals:
                self._restart(watched)

    def _sweep(self) -> None:
        """End orphans: at once when a service has ended, else only now and then, as looking at every process costs
        milliseconds that a benchmark beside us would notice."""
        if self.clock() < self._sweep_at:
            return
        while kill_strays([pid for watched in self._watched if (pid := watched.service.pid) is not None]):
            pass
        self._sweep_at = self.clock() + _SWEEP_EVERY_S

    def stop(self) -> None:
        """Stop the groups in reverse order, each as one; then end whatever is left below this process."""
        running = {id(watched.service) for watched in self._watched}
        for group in reversed(self.groups):
            ours = [service for service in group if id(service) in running]
            for service in ours:
                service.ask_to_stop()
            for service in ours:
                service.stop()
                log.info("service.stopped", service=service.name)
        self._watched.clear()
        while kill_strays(()):
            pass

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Inside, the stop signals are counted: the first ends `watch`, the second kills every service at once."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = {number: signal.signal(number, self._on_signal) for number in (*_STOP_SIGNALS, signal.SIGCHLD)}
        wakeup = signal.set_wakeup_fd(writer)
        self._reader = reader
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._reader = None
            os.close(reader)
            os.close(writer)

    def request_stop(self) -> None:
        """What a stop signal does."""
        self._signals += 1
        if self._starting:
            raise StopRequested
        if self._signals == 2:
            for watched in self._watched:
                if (pid := watched.service.pid) is not None and watched.service.poll() is None:
                    os.kill(pid, signal.SIGKILL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.request_stop()

    def _sleep(self) -> None:
        """Until a signal, a child's end included, or the next start that is due, at most a second."""
        due = [watched.due_at - self.clock() for watched in self._watched if watched.due_at is not None]
        wait_s = max(0.0, min([_TICK_S, *due]))
        if self._reader is None:
            time.sleep(wait_s)
            return
        select.select([self._reader], [], [], wait_s)
        try:
            os.read(self._reader, 4096)
        except BlockingIOError:
            return

    def _start_one(self, service: Service) -> None:
        began = self.clock()
        watched = _Watched(service, started_at=began)
        self._watched.append(watched)
        self._begin(service)
        log.info("service.started", service=service.name, pid=service.pid, wall_s=round(self.clock() - began, 3))

    def _begin(self, service: Service) -> None:
        if self._signals:
            raise StopRequested
        self._starting = True
        try:
            service.start()
        finally:
            self._starting = False

    def _schedule(self, watched: _Watched, status: int) -> None:
        wait_s = self._wait(watched)
        log.warning("service.ended", service=watched.service.name, status=status, restart_in_s=wait_s)

    def _wait(self, watched: _Watched) -> float:
        now = self.clock()
        wait_s = watched.backoff.after(now - watched.started_at)
        watched.due_at = now + wait_s
        return wait_s

    def _restart(self, watched: _Watched) -> None:
        watched.started_at = self.clock()
        try:
            self._begin(watched.service)
        except StopRequested:
            return
        except CliError as error:
            wait_s = self._wait(watched)
            log.warning("service.restart_failed", service=watched.service.name, error=str(error), next_in_s=wait_s)
            return
        watched.due_at = None
        log.warning("service.restarted", service=watched.service.name, pid=watched.service.pid)
