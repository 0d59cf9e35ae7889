"""Where somebody stands who follows a job's events through broken connections and restarts of the server.

Both clients have the same loop around it: open the stream after `last`, hand on what is `fresh`, and when the stream
breaks or closes, pause and open it again, until `over`.
"""

from __future__ import annotations

from collections.abc import Callable

from cli.client.calls import Flow
from cli.client.errors import ApiError, Unreachable
from cli.client.job_calls import TERMINAL_STATES, JobCalls
from cli.client.types import Event, EventPage, Job

FINISHED = "job.finished"

# A server that restarts is back within seconds; after two minutes of silence a person should look.
PATIENCE_S = 120.0
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0


class Trail:
    """The last event seen, and how long nothing was heard."""

    def __init__(self, after: int, patience_s: float, clock: Callable[[], float]) -> None:
        self.last = after
        self.over = False
        self._patience_s = patience_s
        self._clock = clock
        self._heard()

    def _heard(self) -> None:
        self._heard_at, self._pause_s = self._clock(), _FIRST_PAUSE_S

    def fresh(self, event: Event) -> bool:
        """Whether the event is a new one; it is then the last."""
        if event["seq"] <= self.last:
            return False
        self.last = event["seq"]
        self.over = event["type"] == FINISHED
        self._heard()
        return True

    def closed(self, job: Job) -> None:
        """The stream closed in good order: the job ended before we came, or the server is going down."""
        self.over = job["state"] in TERMINAL_STATES
        self._heard_at = self._clock()

    def broke(self, error: Unreachable | ApiError) -> None:
        """The stream broke, or could not be opened. Raises the error when it is final, or patience is at its end."""
        # A 5xx is a server that starts, stops or has lost its database for a moment; another answer stays what it is.
        final = isinstance(error, ApiError) and error.status < 500 and error.status != 429
        if final or self._clock() - self._heard_at >= self._patience_s:
            raise error

    def pause_s(self) -> float:
        """Seconds until the stream is opened again: longer each time, until an event is heard."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s


def rest(job_id: str, after: int) -> Flow[list[Event]]:
    """The events above `after` of a job that has ended."""
    found: list[Event] = []
    more = True
    while more:
        page: EventPage = yield JobCalls.events.describe(None, job_id, after=after)
        found += page["data"]
        after, more = page["next_after"], page["has_more"]
    return found
