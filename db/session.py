"""Engines and sessions: one URL and one driver (psycopg 3) for the synchronous workers and the asynchronous API."""

from __future__ import annotations

import math
import time
from typing import Any

from sqlalchemy import Engine, NullPool, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from db.settings import sqlalchemy_url

API_STATEMENT_TIMEOUT_S = 5
API_LOCK_TIMEOUT_S = 4
"""Shorter than its statements may take, so that the log tells one that waits from one that works."""
WORKER_STATEMENT_TIMEOUT_S = 60
WORKER_LOCK_TIMEOUT_S = 30
"""What holds a row or a job that long has hung; the work is taken up again after its lease."""
IDLE_IN_TRANSACTION_TIMEOUT_S = 60
CONNECT_TIMEOUT_S = 5
PING_AFTER_S = 1.0


def make_engine(
    url: str,
    application_name: str,
    *,
    statement_timeout_s: float = WORKER_STATEMENT_TIMEOUT_S,
    lock_timeout_s: float = WORKER_LOCK_TIMEOUT_S,
    pool_size: int = 5,
    pooled: bool = True,
) -> Engine:
    """A synchronous engine. `pooled=False` opens a connection per use: for code that may fork between uses."""
    pool: dict[str, Any] = {"pool_size": pool_size, "max_overflow": 5} if pooled else {"poolclass": NullPool}
    connect_args = _connect_args(application_name, statement_timeout_s, lock_timeout_s)
    # What a statement was given (secrets, prompts, sources) is in no error and so in no log.
    engine = create_engine(sqlalchemy_url(url), connect_args=connect_args, hide_parameters=True, **pool)
    if pooled:
        _ping_when_idle(engine)
    return engine


def make_sessions(engine: Engine) -> sessionmaker[Session]:
    """Sessions whose objects stay readable after the commit: `with sessions.begin() as session: …`."""
    return sessionmaker(engine, expire_on_commit=False)


def make_async_engine(
    url: str,
    application_name: str,
    *,
    statement_timeout_s: float = API_STATEMENT_TIMEOUT_S,
    lock_timeout_s: float = API_LOCK_TIMEOUT_S,
    pool_size: int = 10,
    read_only: bool = False,
) -> AsyncEngine:
    """The asynchronous twin, for the API; it runs the same query functions through `AsyncSession.run_sync`.

    `read_only` is for what only looks: each statement is a transaction of its own, in which Postgres refuses to write.
    BEGIN and ROLLBACK would be two more journeys, as long as the question itself.
    """
    engine = create_async_engine(
        sqlalchemy_url(url),
        pool_size=pool_size,
        max_overflow=10,
        hide_parameters=True,
        isolation_level="AUTOCOMMIT" if read_only else "READ COMMITTED",
        connect_args=_connect_args(application_name, statement_timeout_s, lock_timeout_s, read_only),
    )
    _ping_when_idle(engine.sync_engine)
    return engine


def make_async_sessions(engine: AsyncEngine) -> async_sessionmaker[AsyncSession]:
    """Asynchronous sessions whose objects stay readable after the commit."""
    return async_sessionmaker(engine, expire_on_commit=False)


def _ping_when_idle(engine: Engine) -> None:
    """Try a connection that lay idle before it is used; `pool_pre_ping` would try one that was used a moment ago too.

    A connection that broke within that moment fails one request, and with it all others of the pool are made anew.
    """

    @event.listens_for(engine, "checkin")
    def _remember(connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
        record.info["used_at"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _ping(connection: DBAPIConnection, record: ConnectionPoolEntry, proxy: PoolProxiedConnection) -> None:
        if time.monotonic() - record.info.get("used_at", math.inf) < PING_AFTER_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError from error


def _connect_args(
    application_name: str, statement_timeout_s: float, lock_timeout_s: float, read_only: bool = False
) -> dict[str, Any]:
    options = {
        "statement_timeout": round(statement_timeout_s * 1000),
        "lock_timeout": round(lock_timeout_s * 1000),
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT_S * 1000,
        "timezone": "UTC",
        "default_transaction_read_only": "on" if read_only else "off",
    }
    return {
        "application_name": application_name,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
    }
