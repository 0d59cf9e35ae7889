"""Engines and sessions: one URL and one driver (psycopg 3) for the synchronous workers and the asynchronous API."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from db.settings import sqlalchemy_url

API_STATEMENT_TIMEOUT_S = 5
WORKER_STATEMENT_TIMEOUT_S = 60
IDLE_IN_TRANSACTION_TIMEOUT_S = 60
CONNECT_TIMEOUT_S = 5


def make_engine(
    url: str,
    application_name: str,
    *,
    statement_timeout_s: float = WORKER_STATEMENT_TIMEOUT_S,
    pool_size: int = 5,
    pooled: bool = True,
) -> Engine:
    """A synchronous engine. `pooled=False` opens a connection per use: for code that may fork between uses."""
    pool: dict[str, Any] = {"pool_size": pool_size, "max_overflow": 5} if pooled else {"poolclass": NullPool}
    return create_engine(
        sqlalchemy_url(url),
        pool_pre_ping=pooled,
        connect_args=_connect_args(application_name, statement_timeout_s),
        **pool,
    )


def make_sessions(engine: Engine) -> sessionmaker[Session]:
    """Sessions whose objects stay readable after the commit: `with sessions.begin() as session: …`."""
    return sessionmaker(engine, expire_on_commit=False)


def make_async_engine(
    url: str,
    application_name: str,
    *,
    statement_timeout_s: float = API_STATEMENT_TIMEOUT_S,
    pool_size: int = 10,
) -> AsyncEngine:
    """The asynchronous twin, for the API; it runs the same query functions through `AsyncSession.run_sync`."""
    return create_async_engine(
        sqlalchemy_url(url),
        pool_pre_ping=True,
        pool_size=pool_size,
        max_overflow=10,
        connect_args=_connect_args(application_name, statement_timeout_s),
    )


def make_async_sessions(engine: AsyncEngine) -> async_sessionmaker[AsyncSession]:
    """Asynchronous sessions whose objects stay readable after the commit."""
    return async_sessionmaker(engine, expire_on_commit=False)


def _connect_args(application_name: str, statement_timeout_s: float) -> dict[str, Any]:
    options = {
        "statement_timeout": round(statement_timeout_s * 1000),
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT_S * 1000,
        "timezone": "UTC",
    }
    return {
        "application_name": application_name,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
    }
