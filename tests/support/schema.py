"""Alembic for tests: the migrations that production runs, against any database."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import NullPool, create_engine, text

import migrations
from db.tables import Base


def alembic_config(url: str) -> Config:
    """The configuration for one database."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def migrate(url: str, revision: str = "head") -> None:
    """Upgrade the database."""
    command.upgrade(alembic_config(url), revision)


def empty(url: str) -> None:
    """Delete every row, and start the event numbers again."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())
        connection.execute(text("ALTER SEQUENCE events_seq_seq RESTART"))
    engine.dispose()
