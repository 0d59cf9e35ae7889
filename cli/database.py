"""The database itself, for commands of its operator: KERNELWRIGHT_DATABASE_URL, or that of `kernelwright up`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.orm import Session

from cli.errors import CliError
from db.session import make_engine, make_sessions
from db.settings import MissingDatabaseUrl, get_settings


class NoDatabase(CliError):
    """The database cannot be used ({why}): start `kernelwright up`, or check KERNELWRIGHT_DATABASE_URL."""

    exit_code = 4


@contextmanager
def database(name: str) -> Iterator[Session]:
    """A transaction, committed at the end; Postgres shows `name`. Raises NoDatabase, MissingDatabaseUrl."""
    try:
        engine = make_engine(_url(), name, pooled=False)
    except ArgumentError as error:
        raise NoDatabase(why="its address is not one") from error
    try:
        with make_sessions(engine).begin() as session:
            yield session
    except OperationalError as error:
        raise NoDatabase(why=str(error.orig).partition("\n")[0]) from error
    finally:
        engine.dispose()


def _url() -> str:
    settings = get_settings()
    try:
        return settings.sqlalchemy_url
    except MissingDatabaseUrl:
        if not (settings.home_path / "postgres").exists():
            raise
    from cli.embedded import EmbeddedPostgres

    return EmbeddedPostgres(settings.home_path).url
