"""`kernelwright migrate`: bring the database's schema up to date with Alembic, once, before anything uses it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import typer
from alembic import command
from alembic.config import Config


def migrate() -> None:
    """Upgrade the schema of KERNELWRIGHT_DATABASE_URL to the newest revision. Doing it again changes nothing."""
    command.upgrade(alembic_config(), "head")
    typer.echo("the schema is up to date")


def alembic_config() -> Config:
    """Alembic's configuration; its env.py takes the URL from the settings."""
    spec = importlib.util.find_spec("migrations")
    assert spec is not None and spec.submodule_search_locations
    config = Config()
    config.set_main_option("script_location", str(Path(next(iter(spec.submodule_search_locations)))).replace("%", "%%"))
    return config
