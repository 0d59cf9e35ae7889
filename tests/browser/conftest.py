"""A real server before a filled database, and the Chromium that this machine has. Without one, the tests are skipped.

KERNELWRIGHT_SCREENSHOTS=FOLDER keeps a picture of every page, KERNELWRIGHT_CHROMIUM names another browser.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, text

from api.app import create_app
from cli.embedded.postgres import EmbeddedPostgres
from cli.embedded.valkey import EmbeddedValkey
from db.session import make_engine, make_sessions
from db.settings import Settings
from tests.browser.pages import Visitor, visitor_of
from tests.integration.api.server import serving
from tests.integration.conftest import admin, postgres, template, valkey
from tests.support.showcase import Showcase, fill

__all__ = ["admin", "postgres", "template", "valkey"]

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DATABASE = "test_browser"


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's program."""
    named = os.environ.get("KERNELWRIGHT_CHROMIUM")
    found = named or next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium on this machine: apt install chromium, or set KERNELWRIGHT_CHROMIUM to its program")
    return found


@pytest.fixture(scope="session")
def filled(chromium: str, postgres: EmbeddedPostgres, admin: Engine, template: str) -> Iterator[tuple[str, Showcase]]:
    """The URL of a database with a history, and what is in it."""
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {DATABASE} TEMPLATE {template}"))
    url = postgres.url_for(DATABASE)
    engine = make_engine(url, "tests")
    yield url, fill(make_sessions(engine))
    engine.dispose()


@pytest.fixture(scope="session")
def showcase(filled: tuple[str, Showcase]) -> Showcase:
    return filled[1]


@pytest.fixture(scope="session")
def site(filled: tuple[str, Showcase], valkey: EmbeddedValkey) -> Iterator[str]:
    settings = Settings(database_url=SecretStr(filled[0]), redis_url=SecretStr(valkey.url))
    with serving(create_app(settings, ring=lambda _bells: None)) as url:
        yield url


@pytest.fixture(scope="session")
def database(filled: tuple[str, Showcase]) -> str:
    return filled[0]


@pytest.fixture(scope="session")
def visitor(chromium: str, site: str) -> Iterator[Visitor]:
    """Somebody with a browser."""
    folder = os.environ.get("KERNELWRIGHT_SCREENSHOTS")
    with visitor_of(chromium, site, Path(folder) if folder else None) as visitor:
        yield visitor
