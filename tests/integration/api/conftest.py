"""A real API server before the embedded Postgres, and clients that speak to it.

Server and database are made once and emptied before each test: a fresh pair costs half a second, a hundred times.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from api.doorbell import Bell
from cli.client import Client, Job
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from db.settings import Settings
from db.tables import Base
from tests.integration.api.history import History
from tests.integration.api.server import serving

HEARD_S = 5.0
BODY: dict[str, Any] = {"problem": "softmax", "target": {"hardware": "cpu", "language": "cpp"}}
DATABASE = "test_api"
EMBEDDER = "openai/embedder-of-the-tests"
"""Whose vectors the server reads. It asks nobody for any."""


class Bells:
    """Stands where the ring to Celery stands, and remembers who was rung for."""

    def __init__(self) -> None:
        self.rung: list[tuple[str, str, str]] = []

    def __call__(self, bells: Sequence[Bell]) -> None:
        self.rung.extend(bells)

    def heard(self, count: int) -> list[tuple[str, str, str]]:
        """So many rings, sorted. The server rings in threads of its own, and answers without waiting for them."""
        until = time.monotonic() + HEARD_S
        while len(self.rung) < count and time.monotonic() < until:
            time.sleep(0.005)
        return sorted(self.rung)


@pytest.fixture(scope="session")
def api_database(postgres: EmbeddedPostgres, admin: Engine, template: str) -> Iterator[Engine]:
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {DATABASE} TEMPLATE {template}"))
    engine = create_engine(postgres.url_for(DATABASE))
    yield engine
    engine.dispose()


@pytest.fixture
def database_url(postgres: EmbeddedPostgres, api_database: Engine) -> str:
    """The database of the API's tests, empty."""
    tables = ", ".join(table.name for table in Base.metadata.sorted_tables)
    with api_database.begin() as connection:
        connection.execute(text(f"TRUNCATE {tables} RESTART IDENTITY CASCADE"))
    return postgres.url_for(DATABASE)


@pytest.fixture(scope="session")
def api_bells() -> Bells:
    return Bells()


@pytest.fixture(scope="session")
def api_url(
    api_database: Engine, valkey: EmbeddedValkey, postgres: EmbeddedPostgres, api_bells: Bells
) -> Iterator[str]:
    database_url = SecretStr(postgres.url_for(DATABASE))
    settings = Settings(database_url=database_url, redis_url=SecretStr(valkey.url), embedding_model=EMBEDDER)
    with serving(create_app(settings, ring=api_bells)) as url:
        yield url


@pytest.fixture
def bells(api_bells: Bells) -> Bells:
    api_bells.rung.clear()
    return api_bells


@pytest.fixture
def url(api_url: str, database_url: str) -> str:
    """The server, before a database that is empty."""
    return api_url


@pytest.fixture
def history(sessions: sessionmaker[Session]) -> History:
    return History(sessions)


@pytest.fixture
def http(url: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.fixture
def job(client: Client) -> Job:
    return client.submit(BODY)
