"""The reaper: each five seconds take back what dead workers held, wake what nothing else would, ring what was lost.

A thread of the control worker, by its monotonic clock, and no message: what recovers the work must not itself be lost
with Redis, with a forked clock (Celery's beat) that was killed alone, or for an hour when the wall clock is set back.
"""

from __future__ import annotations

import threading
from typing import Final

import structlog

from db import ledger, meanings, outbox, recovery, requests, workers
from db.vocabulary import QUEUE_LLM
from worker import client, metrics
from worker.runtime import Runtime

REAP_EVERY_S: Final = 5.0
STOP_S: Final = 5.0
EMBED: Final = "embed"
EMBED_EVERY_S: Final = 60
"""At most so often texts are embedded while that fails, or while nobody answers."""

log = structlog.get_logger(__name__)


class Reaper:
    """Reaps from `start` to `stop`, whatever goes wrong in a round."""

    def __init__(self, here: Runtime, *, every_s: float = REAP_EVERY_S) -> None:
        self._here = here
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._reap_until_stopped, name="reaper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no further round, and wait a little for the one that runs."""
        self._stopped.set()
        self._thread.join(STOP_S)

    def _reap_until_stopped(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                reap(self._here)
            except Exception:  # noqa: BLE001 - a boundary like the task wrapper's: without this thread nothing recovers
                log.exception("reaper.failed")


def reap(here: Runtime) -> recovery.Reaped:
    """One round of the reaper. Safe anywhere and any number of times: all but one at a time find nothing to do."""
    with here.sessions.begin() as session:
        if not recovery.be_the_reaper(session):
            return recovery.Reaped()
        reaped = recovery.reap(session)
        gone = workers.mark_gone(session, here.settings.worker_gone_s)
        woken = recovery.wake_idle_jobs(session)
        silent = ledger.to_ring(session)
        drafts = requests.reap_requests(session)
        outbox.prune(session)
        embedder = here.settings.embedding_model
        unembedded = embedder is not None and meanings.lacks(session, embedder)
    if reaped.requeued or reaped.dead or gone or woken:
        log.info("reaper.acted", requeued=reaped.requeued, dead=reaped.dead, workers_gone=len(gone), woken=len(woken))
    metrics.reaped(reaped.requeued, reaped.dead)
    client.ring_all(ledger.take_doorbells(session))
    client.ring_missing(silent)
    client.ring_all(drafts)
    if unembedded:
        client.ring_once((str(embedder), QUEUE_LLM, EMBED), EMBED_EVERY_S)
    return reaped
