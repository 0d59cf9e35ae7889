"""This worker's row in `workers`: what it serves, what its device can do, and a heartbeat every 10 s.

The row belongs to the main process of the worker. Leases are renewed by whoever does the work (`worker.heartbeat`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from db import ledger, recovery, workers
from db.admissions import JUDGE_FACT
from db.ids import new_id
from db.session import make_engine, make_sessions
from db.settings import get_settings
from db.vocabulary import WorkerState, queue_hardware
from worker import client, runtime
from worker.builtin_process import KEPT
from worker.judge.timing.device_state import DeviceState, DeviceWatch
from worker.judge.version import judge_hash

BEAT_S: Final = 10.0
DESCRIBE_S: Final = 180.0
FINISH_S: Final = 5.0
"""What a worker that stops has for the work in hand. It is killed after 10 s, or 25: by then the work has to be back in
the queue. Else its lease would run out, which counts as an attempt, and a certificate of minutes has three."""

log = structlog.get_logger(__name__)


class Membership:
    """A row in `workers` that is kept alive by a thread until `leave`."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        facts: workers.WorkerFacts,
        *,
        beat_s: float = BEAT_S,
        read: Callable[[], DeviceState | None] = lambda: None,
    ) -> None:
        """`read`: how the worker's device is now; None where nothing can tell."""
        self._sessions = sessions
        self._read = read
        self._facts = facts
        self._beat_s = beat_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_stopped, name="workers-row", daemon=True)

    def join(self) -> None:
        """Write the row and start the heartbeat. Raises SQLAlchemyError when the database is away."""
        with self._sessions.begin() as session:
            workers.register(session, self._facts)
        self._thread.start()

    def leave(self) -> None:
        """Stop the heartbeat and say that the worker has gone."""
        self._stop.set()
        self._thread.join(max(self._beat_s, BEAT_S))  # a beat that ends later would say that it is active
        try:
            with self._sessions.begin() as session:
                workers.set_state(session, self._facts.id, WorkerState.GONE)
        except SQLAlchemyError as error:
            log.warning("worker.leave_failed", error=str(error))

    def drain(self) -> threading.Timer:
        """Claim nothing more, not even what follows from the work in hand. Returns what says so."""
        timer = threading.Timer(0.0, self._drain)  # whoever is asked to stop may be anywhere, also in a transaction
        timer.daemon = True
        timer.start()
        return timer

    def _drain(self) -> None:
        try:
            with self._sessions.begin() as session:
                workers.set_state(session, self._facts.id, WorkerState.DRAINING)
        except SQLAlchemyError as error:
            log.warning("worker.drain_failed", error=str(error))

    def release_after(self, seconds: float) -> threading.Timer:
        """Give back then what is still in hand: whoever finishes it later is fenced off. Returns what will do so."""
        timer = threading.Timer(seconds, self._release)
        timer.daemon = True  # a worker that has nothing in hand does not wait for it
        timer.start()
        return timer

    def _release(self) -> None:
        try:
            with self._sessions.begin() as session:
                released = recovery.release(session, self._facts.id, "its worker was asked to stop")
        except SQLAlchemyError as error:
            log.warning("worker.release_failed", error=str(error))
            return
        log.info("worker.released", work_ids=released)
        client.ring_all(ledger.take_doorbells(session))

    def _beat_until_stopped(self) -> None:
        while not self._stop.wait(self._beat_s):
            try:
                self._beat()
            except SQLAlchemyError as error:
                # The database will be back, or the row goes stale, which is then the truth.
                log.warning("worker.beat_failed", error=str(error))

    def _beat(self) -> None:
        state = self._read()
        device_state = asdict(state) if state is not None else None
        with self._sessions.begin() as session:
            if workers.beat(session, self._facts.id, device_state) is None:
                workers.register(session, self._facts)


_membership: Membership | None = None


def join(queues: tuple[str, ...]) -> None:
    """Register this worker for these queues: measures the device first, which takes some seconds."""
    global _membership
    hardware = next(filter(None, map(queue_hardware, queues)), None)
    facts = workers.WorkerFacts(
        id=new_id("worker"),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        queues=queues,
        hardware=hardware,
        device=describe(hardware) | {JUDGE_FACT: judge_hash()} if hardware is not None else {},
    )
    runtime.identify(facts.id, queues)
    # No pool: the main process forks its children between two beats, and must hold no connection then.
    engine = make_engine(get_settings().sqlalchemy_url, f"kernelwright {facts.id} beat", pooled=False)
    watch = DeviceWatch(str(facts.device.get("uuid", "")))
    _membership = Membership(make_sessions(engine), facts, read=watch.read)
    _membership.join()
    log.info("worker.joined", worker_id=facts.id, queues=list(queues), hardware=hardware)


def stopping() -> None:
    """The worker was asked to stop: it claims nothing more, and what it does not finish within `FINISH_S` goes to
    others."""
    if _membership is not None:
        _membership.drain()
        _membership.release_after(FINISH_S)


def leave() -> None:
    """Take this worker out of the list; does nothing when it never joined."""
    global _membership
    left, _membership = _membership, None
    if left is not None:
        left.leave()


def describe(hardware: str, timeout_s: float = DESCRIBE_S) -> dict[str, Any]:
    """The device's facts, measured in a process of its own: the worker forks, so it must never touch the device itself.

    A device that cannot be described still works; the facts then hold the `error`.
    """
    command = [sys.executable, "-m", "worker.profile.device", hardware]
    try:
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, timeout=timeout_s, check=True
        )
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        return _undescribed(hardware, str(error.stderr)[-500:])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return _undescribed(hardware, str(error))
    return facts


def _environment() -> dict[str, str]:
    """What it takes to find torch, compilers and the device; no passwords, which this process has."""
    return {name: os.environ[name] for name in (*KEPT, "CUDA_PATH", "PYTHONPATH") if name in os.environ}


def _undescribed(hardware: str, error: str) -> dict[str, Any]:
    log.warning("worker.device_unknown", hardware=hardware, error=error)
    return {"error": error}
