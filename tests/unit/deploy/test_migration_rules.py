"""Migrations keep to what can be done while old code runs: squawk reads the SQL of all that came after 0010."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from alembic import command

from tests.support.schema import alembic_config
from tests.unit.containers.files import ROOT

SETTLED = "0010"
"""The rules were written down beside it; 0009 adds constraints to the few rows of api_keys, and drops two indexes."""


def complaints(sql: str) -> str:
    squawk = Path(sys.executable).with_name("squawk")
    arguments = [str(squawk), "--config", str(ROOT / "migrations" / "squawk.toml"), "--reporter", "gcc"]
    done = subprocess.run(arguments, input=sql, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_no_migration_gets_in_the_way_of_the_code_that_runs_meanwhile() -> None:
    config = alembic_config("postgresql+psycopg://")
    config.output_buffer = sql = io.StringIO()
    command.upgrade(config, f"{SETTLED}:head", sql=True)
    news = len(list((ROOT / "migrations" / "versions").glob("*.py"))) - int(SETTLED)
    assert sql.getvalue().count("UPDATE alembic_version") == news
    assert complaints(sql.getvalue()) == ""


def test_what_would_get_in_the_way_is_found() -> None:
    assert "ban-drop-column" in complaints("ALTER TABLE jobs DROP COLUMN seed;")
    assert "renaming-column" in complaints("ALTER TABLE jobs RENAME COLUMN seed TO seeds;")
    assert "adding-required-field" in complaints("ALTER TABLE jobs ADD COLUMN team text NOT NULL;")
