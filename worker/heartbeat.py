"""Keeps a claim alive while the work is done, and interrupts the work when the claim is lost or the job is cancelled.

with Lease(runtime.sessions, claim, interrupt=judge.abort) as lease:
    report = judge.evaluate(request)
lease.check()
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from db import ledger
from db.ledger import LEASE_S, RENEW_S, Claim, Fenced

LONGEST_S: Final = 1700.0
"""Proposers and judges have deadlines far below; this ends what slipped past them, before Celery's own limit does."""

_AGAIN_S: Final = 1.0

log = structlog.get_logger(__name__)


class CancelRequested(Exception):
    """The job is being cancelled: drop what was found and finish the work as cancelled."""

    def __str__(self) -> str:
        return str(self.__doc__)


class Lease:
    """Renews a claim from a thread of its own until the block ends, but not for ever: a lease does not know whether its
    work is stuck, so after `longest_s` it gives up, interrupts the work and lets somebody else try.

    `interrupt` may be called from that thread any number of times, until the block ends.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        claim: Claim,
        *,
        interrupt: Callable[[], None],
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
        longest_s: float = LONGEST_S,
    ) -> None:
        self.lost = False
        self.cancel_requested = False
        self._sessions = sessions
        self._claim = claim
        self._interrupt = interrupt
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._ended = threading.Event()
        self._longest_s = longest_s
        self._began_at = self._renewed_at = time.monotonic()
        # In a copy of the context, so that its log lines name the job and the candidate too.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._keep,), name=f"lease-{claim.id}", daemon=True)

    @property
    def interrupted(self) -> bool:
        """Whether the work was told to stop."""
        return self.lost or self.cancel_requested

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raises Fenced or CancelRequested when the work was interrupted."""
        if self.lost:
            raise Fenced
        if self.cancel_requested:
            raise CancelRequested

    def _keep(self) -> None:
        while not self._ended.wait(self._renew_s):
            self._renew()
            if self.interrupted:
                log.info("work.interrupted", work_id=self._claim.id, lost=self.lost, cancel=self.cancel_requested)
                break
        while not self._ended.is_set():
            self._interrupt()  # again and again: between two questions to a judge there is nothing to kill
            self._ended.wait(_AGAIN_S)

    def _renew(self) -> None:
        if time.monotonic() - self._began_at > self._longest_s:
            self.lost = True
            log.error("lease.given_up", work_id=self._claim.id, longest_s=self._longest_s)
            return
        try:
            with self._sessions.begin() as session:
                renewal = ledger.renew(session, self._claim, lease_s=self._lease_s)
        except SQLAlchemyError as error:
            # Without the database the lease runs out there too; then the work is somebody else's.
            self.lost = time.monotonic() - self._renewed_at > self._lease_s
            log.warning("lease.renewal_failed", work_id=self._claim.id, lost=self.lost, error=str(error))
            return
        self._renewed_at = time.monotonic()
        self.lost = not renewal.held
        self.cancel_requested = renewal.cancel_requested
