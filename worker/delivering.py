"""Sends webhooks, in threads of the control worker: claim what is due, post it, settle it.

It needs no doorbell: whatever is due is a row, looked for once a second, and a sender that is killed has its rows sent
again when their leases end. Several control workers share the work. Nothing here holds up the search: an endpoint that
takes its ten seconds keeps one of a few threads busy, and no more than two at a time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker
from structlog.contextvars import bound_contextvars

from db import outbox
from db.destinations import Network
from db.outbox import Attempt, Sending, SendingLost
from db.session import make_engine, make_sessions
from db.settings import Settings
from db.vocabulary import DeliveryState
from worker import metrics
from worker.posting import post

POLL_S: Final = 1.0
THREADS: Final = 8
STOP_S: Final = 8.0
"""Less than `kernelwright up` gives a worker to leave; what is not settled by then is sent again."""

Post = Callable[[Sending, Sequence[Network]], Attempt]

log = structlog.get_logger(__name__)


class Deliverer:
    """Looks for what is due and sends it, from `start` to `stop`."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        allowed: Sequence[Network],
        *,
        post: Post = post,
        threads: int = THREADS,
        poll_s: float = POLL_S,
        lease_s: float = outbox.LEASE_S,
    ) -> None:
        self._sessions = sessions
        self._allowed = allowed
        self._post = post
        self._threads = threads
        self._poll_s = poll_s
        self._lease_s = lease_s
        self._dice = random.Random()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="webhooks")
        self._lock = threading.Lock()
        self._busy = 0
        self._wake = threading.Event()
        self._stopping = False
        self._looking = threading.Thread(target=self._look_until_stopped, name="webhooks", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._looking.start()

    def stop(self, within_s: float = STOP_S) -> None:
        """Take nothing new, and wait a little for what is being sent."""
        self._stopping = True
        self._wake.set()
        self._looking.join(within_s)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _look_until_stopped(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                self._look()
            except SQLAlchemyError as error:
                log.warning("webhooks.unread", error=str(error).partition("\n")[0])
            self._wake.wait(self._poll_s)
        while self._busy:
            self._wake.wait(self._poll_s)
            self._wake.clear()

    def _look(self) -> None:
        room = self._threads - self._busy
        if room <= 0:
            return
        with self._sessions.begin() as session:
            given_up = outbox.give_up(session)
            taken = outbox.claim(session, room, lease_s=self._lease_s)
        if given_up:
            log.warning("webhooks.given_up", deliveries=given_up)
            metrics.webhooks_given_up(given_up)
        for sending in taken:
            with self._lock:
                self._busy += 1
            self._pool.submit(self._deliver, sending)

    def _deliver(self, sending: Sending) -> None:
        try:
            with bound_contextvars(webhook_id=sending.webhook_id, delivery_id=sending.id):
                self._attempt(sending)
        except Exception:  # noqa: BLE001 - a thread of a pool: whatever it is, it is logged, and sent again
            log.exception("webhook.unsettled", delivery_id=sending.id)
        finally:
            with self._lock:
                self._busy -= 1
            self._wake.set()

    def _attempt(self, sending: Sending) -> None:
        attempt = self._post(sending, self._allowed)
        try:
            with self._sessions.begin() as session:
                state = outbox.settle(session, sending, attempt, self._dice)
        except SendingLost:
            log.warning("webhook.lost", attempt=sending.attempt)
            metrics.webhook_sent("lost", attempt.wall_s)
            return
        outcome = "retried" if state is DeliveryState.WAITING else state.value
        metrics.webhook_sent(outcome, attempt.wall_s)
        told = {"attempt": sending.attempt, "status": attempt.status, "wall_s": round(attempt.wall_s, 3)}
        log.info("webhook.sent", outcome=outcome, **told)


def start(settings: Settings, owner: str) -> Deliverer:
    """Have this process send webhooks until it is stopped."""
    engine = make_engine(settings.sqlalchemy_url, f"kernelwright {owner} webhooks", pool_size=THREADS)
    deliverer = Deliverer(make_sessions(engine), settings.webhook_allow)
    deliverer.start()
    return deliverer
