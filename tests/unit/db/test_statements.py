"""Tests of `db.statements`."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.ledger import SQL
from db.statements import load_statements


def test_each_statement_goes_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "some.sql"
    path.write_text("-- About this file.\n\n-- name: one\nSELECT 1\n\n-- name: two\n-- why\nSELECT :x\n")
    statements = load_statements(path)
    assert {name: str(statement) for name, statement in statements.items()} == {
        "one": "SELECT 1",
        "two": "-- why\nSELECT :x",
    }


def test_a_name_is_used_once(tmp_path: Path) -> None:
    path = tmp_path / "some.sql"
    path.write_text("-- name: one\nSELECT 1\n-- name: one\nSELECT 2\n")
    with pytest.raises(ValueError, match="twice"):
        load_statements(path)


def test_the_ledger_takes_every_decision_by_the_clock_of_postgres() -> None:
    leases = [str(statement) for statement in SQL.values() if "lease_expires_at =" in str(statement)]
    assert leases
    assert all("now() + make_interval" in lease or "lease_expires_at = NULL" in lease for lease in leases)
