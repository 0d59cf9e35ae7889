"""Work of a worker in a thread, for tests that do something to it meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from db.ledger import Claim, Fenced
from worker.heartbeat import CancelRequested
from worker.runtime import Runtime

LONGEST_S = 120.0
"""Far more than an interrupted judge takes, beside other tests too; the work itself would take 600 s."""


class Working(threading.Thread):
    """`work(here, claim)` while the block runs; it has to end with the block, and `raised` is what stopped it."""

    def __init__(self, work: Callable[[Runtime, Claim], None], here: Runtime, claim: Claim) -> None:
        super().__init__(daemon=True)
        self.judge = here.judge("cpu")  # made before both threads ask for it
        self.raised: BaseException | None = None
        self._do = lambda: work(here, claim)

    def run(self) -> None:
        try:
            self._do()
        except (Fenced, CancelRequested) as error:
            self.raised = error

    def lose_the_judge(self) -> None:
        """Abort the judge until the work ends: an abort before the judge is asked does nothing."""
        until = time.monotonic() + LONGEST_S
        while self.is_alive() and time.monotonic() < until:
            self.judge.abort()
            self.join(0.5)

    def __enter__(self) -> Working:
        self.start()
        time.sleep(2)  # where cores are slow it may not have come to the judge yet; both have to work
        assert self.is_alive()
        return self

    def __exit__(self, *_: object) -> None:
        self.join(LONGEST_S)
        assert not self.is_alive()
