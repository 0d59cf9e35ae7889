"""How many event streams a key holds open at this server: each is a connection for as long as a job runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from api.errors import TooManyStreams

RETRY_AFTER_S: Final = 30


class Streams:
    """Lives on one event loop. `most` of a key at a time; 0: any number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def check(self, key_id: str | None) -> None:
        """Before a stream is begun. Raises TooManyStreams."""
        if key_id is not None and self._most and self._open[key_id] >= self._most:
            raise TooManyStreams(headers={"Retry-After": str(RETRY_AFTER_S)})

    @contextmanager
    def counted(self, key_id: str | None) -> Iterator[None]:
        """Around a stream that is being sent. Those that are begun in the same moment may be a few too many."""
        if key_id is None:
            yield
            return
        self._open[key_id] += 1
        try:
            yield
        finally:
            self._open[key_id] -= 1
            if not self._open[key_id]:
                del self._open[key_id]
