"""What one worker process shares among its tasks: settings, database sessions, a judge, traces. Made when first needed.

A pool that forks must not share connections between processes, so a fresh child calls `forget`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.orm import Session

from db import ledger, tracing
from db.session import make_engine, make_sessions
from db.settings import Settings, get_settings
from worker import client
from worker.judge.client import Judge, JudgeOptions

STAY_S: Final = 60.0
"""How long a worker stays with a job. To prepare another problem and its baselines took 20 to 65 s of each evaluation
on an H200 whose three judges took candidates of three problems by age."""


class Runtime:
    """One worker process. `owner` is its id in `workers` and on its leases."""

    def __init__(self, settings: Settings, owner: str, queues: tuple[str, ...]) -> None:
        self.settings = settings
        self.owner = owner
        self.queues = queues
        self.engine = make_engine(settings.sqlalchemy_url, f"kernelwright {owner}")
        self.sessions = make_sessions(self.engine)
        self._judges: dict[str, Judge] = {}
        self._near: str | None = None
        self._near_until = 0.0

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that commits at the end, or rolls back; after the commit the doorbells left in it are rung."""
        with self.sessions.begin() as session:
            yield session
        client.ring_all(ledger.take_doorbells(session))

    def stay_with(self, job_id: str) -> None:
        """The judge has this job's problem prepared: the next candidates of it are this worker's, for a while."""
        if job_id != self._near:
            self._near, self._near_until = job_id, time.monotonic() + STAY_S

    def near(self) -> str | None:
        """The job to stay with. None when it is the others' turn: whichever is the oldest, it is stayed with anew."""
        if time.monotonic() >= self._near_until:
            self._near = None
        return self._near

    def judge(self, hardware: str) -> Judge:
        """The judge for this hardware: one process that is reused from task to task."""
        if hardware not in self._judges:
            settings = self.settings
            options = JudgeOptions(
                settings.home_path,
                hardware,
                settings.minimum_sandbox,
                profile=settings.profile_candidates,
                code=settings.keep_code,
                threads=settings.judge_threads,
            )
            self._judges[hardware] = Judge(options)
        return self._judges[hardware]

    def end_judges(self) -> None:
        """End the judges; the next one that is asked for is a fresh process."""
        for judge in self._judges.values():
            judge.close()
        self._judges.clear()

    def close(self) -> None:
        """End the judges and close the connections."""
        self.end_judges()
        self.engine.dispose()


_lock = threading.Lock()
_current: Runtime | None = None
_identity: tuple[str, tuple[str, ...]] = ("", ())


def identify(owner: str, queues: tuple[str, ...]) -> None:
    """Say who this worker is, before its first task; children of the pool inherit it."""
    global _identity
    _identity = (owner, queues)


def current() -> Runtime:
    """The runtime of this process."""
    global _current
    with _lock:
        if _current is None:
            owner, queues = _identity
            # Here and not where the worker starts: what sends traces is a thread, which a fork would not take along.
            tracing.start(get_settings(), "kernelwright-worker")
            _current = Runtime(get_settings(), owner, queues)
        return _current


def forget() -> None:
    """Drop what was inherited by a fork without closing it: it is still the parent's."""
    global _current
    inherited, _current = _current, None
    if inherited is not None:
        inherited.engine.dispose(close=False)


def close() -> None:
    """Close the runtime of this process, if it has one."""
    global _current
    ended, _current = _current, None
    if ended is not None:
        ended.close()
        tracing.stop()
