"""`kernelwright doctor` on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from cli.main import app


def test_everything_that_up_needs_is_found(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--json", "--home", str(tmp_path / "not-yet")])
    found = {finding["what"]: finding for finding in json.loads(result.stdout)}
    assert result.exit_code == 0, found
    for what in ("g++", "torch", "sqlalchemy", "embedded postgres", "embedded valkey", "home"):
        assert found[what]["state"] == "ok", found[what]
    assert found["sandbox"]["found"] in ("namespaces", "landlock", "process")
    assert not (tmp_path / "not-yet").exists()


def test_a_missing_compiler_is_found_missing(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--json", "--home", str(tmp_path)], env={"PATH": str(tmp_path)})
    found = {finding["what"]: finding for finding in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert found["g++"]["state"] == "missing"
    assert "apt install g++" in found["g++"]["advice"]
