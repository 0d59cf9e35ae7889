"""Whose token a request carries: asked of Postgres, and remembered for a few seconds while changes can be heard.

At 500 polls a second the question costs as much as the answer. What changes a key notifies in its transaction
(`db.keys`), and all that is remembered is forgotten; while nobody listens nothing is remembered. So a revoked key ends
at once at the server that revoked it, within milliseconds at every other, and after five seconds if a notification is
lost. What ends by the clock (a key, a rotated token) is remembered no longer than it is good.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from api.store import Store
from db import keys
from db.keys import Identity

REMEMBERED_S: Final = 5.0
MOST: Final = 10_000
"""Tokens. Only those that open something are remembered, so strangers cannot fill it."""


class Identities:
    """Lives on one event loop. `listening` says whether changes of keys are heard."""

    def __init__(self, store: Store, listening: Callable[[], bool]) -> None:
        self._store = store
        self._listening = listening
        self._known: dict[str, tuple[float, Identity]] = {}
        self._changes = 0

    def forget(self) -> None:
        """Something about some key has changed."""
        self._changes += 1
        self._known.clear()

    async def of(self, token: str) -> Identity:
        """Whose token it is; its use is written down now and then. Raises UnusableKey, and what a database raises."""
        digest = keys.token_hash(token)
        until, who = self._known.get(digest, (0.0, None))
        if who is not None and time.monotonic() < until:
            return who
        return await self._asked(token, digest)

    async def _asked(self, token: str, digest: str) -> Identity:
        changes, began = self._changes, time.monotonic()
        who = await self._store.read(keys.identify, token)
        if who.stale:
            await self._store.write(keys.touch, who.id)
        # What was read before a change may not be remembered after it.
        if self._listening() and changes == self._changes:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[digest] = (began + min(REMEMBERED_S, who.good_for_s), who)
        return who
