"""A database that does not answer in time: a statement runs away, a lock is not given up, a transaction lies idle."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

import api.app
from api.app import create_app
from db.session import make_async_engine, make_engine
from db.settings import Settings
from tests.integration.api.conftest import BODY, Bells
from tests.integration.api.server import serving

Sessions = sessionmaker[Session]
STATEMENT_S, LOCK_S = 5.0, 0.2


@pytest.fixture
def app(database_url: str, bells: Bells, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """A server that waits less than the real one, so that the tests do."""
    hasty = functools.partial(make_async_engine, statement_timeout_s=STATEMENT_S, lock_timeout_s=LOCK_S)
    monkeypatch.setattr(api.app, "make_async_engine", hasty)
    return create_app(Settings(database_url=SecretStr(database_url)), ring=bells)


@pytest.fixture
def http(app: FastAPI) -> Iterator[httpx2.Client]:
    with serving(app) as url, httpx2.Client(base_url=url, timeout=30) as client:
        yield client


@contextmanager
def slowly(engine: Engine, seconds: float) -> Iterator[None]:
    """Each new problem takes its time, in a statement of the database's own."""
    body = f"BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"))
        connection.execute(
            text("CREATE TRIGGER slowly BEFORE INSERT ON problems FOR EACH ROW EXECUTE FUNCTION slowly()")
        )
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP FUNCTION slowly CASCADE"))


def assert_too_slow(answer: httpx2.Response) -> None:
    """What to do, when, and not a word of SQL or of Postgres."""
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    document = answer.json()
    assert document["type"] == "urn:kernelwright:error:too-slow"
    assert "Nothing was stored; try again" in document["detail"]
    said = answer.text.lower()
    assert not [word for word in ("select", "insert", "pg_", "statement", "timeout", "jobs where") if word in said]


def test_a_statement_that_runs_away_is_ended_and_stores_nothing(
    http: httpx2.Client, api_database: Engine, sessions: Sessions, bells: Bells
) -> None:
    with slowly(api_database, 30):
        assert_too_slow(http.post("/v1/jobs", json=BODY))
        with sessions.begin() as session:
            running = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
            assert session.scalar(running) == 0
    assert bells.rung == []
    assert http.get("/v1/jobs").json()["data"] == []
    assert http.post("/v1/jobs", json=BODY).status_code == 202


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_lock_that_is_not_given_up_is_not_waited_for(http: httpx2.Client, sessions: Sessions, method: str) -> None:
    with sessions.begin() as session:
        session.execute(text("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE"))
        assert_too_slow(http.get("/v1/jobs") if method == "get" else http.post("/v1/jobs", json=BODY))
    assert http.post("/v1/jobs", json=BODY).status_code == 202


def doze(sessions: Sessions) -> None:
    """As a process that was stopped for a minute between two statements of a transaction."""
    with sessions.begin() as session, sessions.begin() as other:
        mine = session.scalar(text("SELECT pg_backend_pid()"))
        session.execute(text("SET idle_in_transaction_session_timeout = '50ms'"))
        alive = text("SELECT pg_stat_clear_snapshot(), (SELECT count(*) FROM pg_stat_activity WHERE pid = :pid)")
        deadline = time.monotonic() + 30
        while other.execute(alive, {"pid": mine}).one()[1] and time.monotonic() < deadline:
            time.sleep(0.01)
        session.execute(text("SELECT 1"))


def test_a_transaction_that_lay_idle_for_too_long_is_the_same(
    app: FastAPI, http: httpx2.Client, sessions: Sessions
) -> None:
    app.add_api_route("/doze", functools.partial(doze, sessions))
    app.add_api_route("/fault", functools.partial(fault, sessions))
    assert_too_slow(http.get("/doze"))
    assert http.get("/fault").status_code == 500, "what else the driver calls internal is a fault of ours"


def fault(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.execute(text("SET TRANSACTION READ ONLY"))
        session.execute(text("DELETE FROM events"))


def test_every_connection_has_its_limits(database_url: str) -> None:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    limits = text("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))

    async def of_the_api() -> tuple[str, ...]:
        engine = make_async_engine(database_url, "tests")
        async with engine.connect() as connection:
            found = tuple((await connection.execute(limits)).one())
        await engine.dispose()
        return found

    engine = make_engine(database_url, "tests", pooled=False)
    with engine.connect() as connection:
        assert tuple(connection.execute(limits).one()) == ("1min", "30s", "1min")
    assert asyncio.run(of_the_api()) == ("5s", "4s", "1min")
