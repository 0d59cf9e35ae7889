"""`kernelwright migrate`: bring the database's schema up to date with Alembic, once, before anything uses it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from cli.dumps import load_files
from cli.options import JsonOption
from cli.show import put_json
from problems.kernels import bundled_kernels


def migrate(
    kernels: Annotated[bool, typer.Option("--kernels", help="Also load the kernels that come with this.")] = False,
    json: JsonOption = False,
) -> None:
    """Upgrade the schema of KERNELWRIGHT_DATABASE_URL to the newest revision. Doing it again changes nothing."""
    config = alembic_config()
    command.upgrade(config, "head")
    loaded = sum(new for _, new in load_files(bundled_kernels())) if kernels else 0
    if json:
        put_json({"revision": ScriptDirectory.from_config(config).get_current_head(), "kernels_loaded": loaded})
    else:
        typer.echo(f"the schema is up to date{f', {loaded} kernels loaded' if loaded else ''}")


def alembic_config() -> Config:
    """Alembic's configuration; its env.py takes the URL from the settings."""
    spec = importlib.util.find_spec("migrations")
    assert spec is not None and spec.submodule_search_locations
    config = Config()
    config.set_main_option("script_location", str(Path(next(iter(spec.submodule_search_locations)))).replace("%", "%%"))
    return config
