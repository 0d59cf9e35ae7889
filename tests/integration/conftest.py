"""A real Postgres and a real Valkey for each test session; a migrated and empty database for each test."""

from __future__ import annotations

import gc
import itertools
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from db.session import make_engine, make_sessions
from db.settings import Settings
from tests.support.schema import empty, migrate

_numbers = itertools.count(1)


@pytest.fixture(autouse=True, scope="module")
def what_litellm_leaves() -> Iterator[None]:
    """Its cached clients hold sockets. Else the collector finds them in a test of another file, which fails for it."""
    yield
    if "litellm" in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sys.modules["litellm"].in_memory_llm_clients_cache.flush_cache()
            gc.collect()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def admin(postgres: EmbeddedPostgres) -> Iterator[Engine]:
    """Creates and drops databases; connected to none of those that the tests use."""
    engine = create_engine(postgres.url_for("postgres"), isolation_level="AUTOCOMMIT", pool_size=1)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def template(postgres: EmbeddedPostgres, admin: Engine) -> str:
    """A migrated database that is copied and never used."""
    with admin.connect() as connection:
        connection.execute(text("CREATE DATABASE template_migrated"))
    migrate(postgres.url_for("template_migrated"))
    return "template_migrated"


@pytest.fixture(scope="module")
def module_database(postgres: EmbeddedPostgres, admin: Engine, template: str) -> Iterator[str]:
    """A migrated database for the tests of one module; its name."""
    name = f"test_{next(_numbers)}"
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    yield name
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def database_url(postgres: EmbeddedPostgres, admin: Engine, module_database: str) -> Iterator[str]:
    """A migrated and empty database. Emptying one takes 10 ms, making one 150."""
    url = postgres.url_for(module_database)
    yield url
    with admin.connect() as connection:
        others = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
        connection.execute(others, {"name": module_database})
    empty(url)


@pytest.fixture
def sessions(database_url: str) -> Iterator[sessionmaker[Session]]:
    engine = make_engine(database_url, "tests", pool_size=20)
    yield make_sessions(engine)
    engine.dispose()


@pytest.fixture
def settings(database_url: str, valkey: EmbeddedValkey, tmp_path: Path) -> Settings:
    """What a process of ours would be told."""
    return Settings(home=tmp_path, database_url=SecretStr(database_url), redis_url=SecretStr(valkey.url))
