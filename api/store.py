"""How the asynchronous API runs the synchronous query functions of `db`: each call is one short session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from api.doorbell import Doorbell
from db.ledger import take_doorbells

P = ParamSpec("P")
T = TypeVar("T")


class Store:
    """Hands a session to a function and takes it back when the function returns.

    No request holds a connection while it waits for something else, so a few connections serve thousands of waiters.
    """

    def __init__(
        self,
        sessions: async_sessionmaker[AsyncSession],
        doorbell: Doorbell,
        *,
        readers: async_sessionmaker[AsyncSession] | None = None,
    ) -> None:
        self._sessions = sessions
        self._readers = readers or sessions
        self._doorbell = doorbell

    async def read(self, query: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query function that changes nothing: before `readers` Postgres refuses what would."""
        async with self._readers() as session:
            return await session.run_sync(query, *args, **kwargs)

    async def write(self, change: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that changes rows, commit, then ring for the work that it made; when it raises, roll back."""
        async with self._sessions() as session:
            async with session.begin():
                result = await session.run_sync(change, *args, **kwargs)
            doorbells = take_doorbells(session.sync_session)
        self._doorbell.ring_soon(doorbells)
        return result
