"""A job's events from its beginning to its end, through broken connections and restarts of the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from cli.client import TERMINAL_STATES, ApiError, Client, Event, Unreachable

FINISHED = "job.finished"

# A server that restarts is back within seconds; after two minutes of silence a person should look.
PATIENCE_S = 120.0
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0


def follow(
    client: Client,
    job_id: str,
    *,
    after: int = 0,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Event]:
    """Each event above `after`, once and in order, until the job has ended.

    Raises Unreachable or ApiError when the server was away for `patience_s` seconds, ApiError when it does not know the
    job.
    """
    last, heard_at, pause_s = after, clock(), _FIRST_PAUSE_S
    while True:
        try:
            for event in client.stream(job_id, after=last):
                if event["seq"] <= last:
                    continue
                last, heard_at, pause_s = event["seq"], clock(), _FIRST_PAUSE_S
                yield event
                if event["type"] == FINISHED:
                    return
            # The stream closed in good order: the job ended before we came, or the server is going down.
            if client.job(job_id)["state"] in TERMINAL_STATES:
                yield from _rest(client, job_id, last)
                return
            heard_at = clock()
        except (Unreachable, ApiError) as error:
            if _final(error) or clock() - heard_at >= patience_s:
                raise
        sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _final(error: Unreachable | ApiError) -> bool:
    # A 5xx is a server that starts, stops or has lost its database for a moment; any other answer stays what it is.
    return isinstance(error, ApiError) and error.status < 500


def _rest(client: Client, job_id: str, after: int) -> Iterator[Event]:
    more = True
    while more:
        page = client.events(job_id, after=after)
        yield from page["data"]
        after, more = page["next_after"], page["has_more"]
