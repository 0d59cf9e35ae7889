"""All candidates of a service, fetched page by page: a page that does not come is asked for again.

At most one page is held, and the sources of the problems seen last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from cli.client import ApiError, Client, Unreachable
from cli.exchange.columns import Record

PAGE: Final = 500
PATIENCE_S: Final = 300.0
"""So long a service may be away, or refuse for a limit, before the export gives up."""
_FIRST_S, _LONGEST_S = 0.5, 20.0
_PASSING: Final = frozenset({429, 502, 503, 504})
_PROBLEMS: Final = 256
"""Sources of problems kept: 1 MiB each at the very most, 2 KB as a rule."""

Answer = TypeVar("Answer")


def records(
    client: Client, query: Mapping[str, Any], *, problems: bool = True, wait: Callable[[float], None] = time.sleep
) -> Iterator[Record]:
    """The candidates that the query means, oldest first. `problems`: each with its problem's source.

    Raises ApiError and Unreachable when a page does not come for `PATIENCE_S`.
    """

    sources = _Problems(client, wait)
    cursor: str | None = None
    while True:
        page = patiently(partial(client.all_candidates, limit=PAGE, cursor=cursor, **query), wait)
        for candidate in page["data"]:
            yield Record(candidate, sources.of(candidate) if problems else None)
        cursor = page["next_cursor"]
        if cursor is None:
            return


def patiently(call: Callable[[], Answer], wait: Callable[[float], None] = time.sleep) -> Answer:
    """What the call answers, tried for `PATIENCE_S`. Raises the last ApiError or Unreachable."""
    waited_s, pause_s = 0.0, _FIRST_S
    while True:
        try:
            return call()
        except (Unreachable, ApiError) as error:
            lasting = isinstance(error, ApiError) and error.status not in _PASSING
            if lasting or waited_s >= PATIENCE_S:
                raise
        wait(pause_s)
        waited_s, pause_s = waited_s + pause_s, min(2 * pause_s, _LONGEST_S)


class _Problems:
    """Sources of problems, each asked for once while it is among the last ones seen."""

    def __init__(self, client: Client, wait: Callable[[float], None]) -> None:
        self._client, self._wait = client, wait
        self._known: dict[str, str] = {}

    def of(self, candidate: Mapping[str, Any]) -> str:
        """The source of a candidate's problem: a job tells it."""
        wanted = candidate["problem"]["hash"]
        if wanted not in self._known:
            if len(self._known) >= _PROBLEMS:
                self._known.clear()
            asked = patiently(lambda: self._client.judging(candidate["job_id"]), self._wait)
            self._known[wanted] = asked["problem"]["source"]
        return self._known[wanted]
