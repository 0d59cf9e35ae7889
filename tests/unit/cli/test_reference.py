"""The pages of docs/reference say what the code says, and leave nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.app import create_app
from cli.reference import __main__ as reference
from cli.reference import rest, settings
from tests.support.people import ROOT

_ONLY_IN_TESTS = {"KERNELWRIGHT_SCREENSHOTS", "KERNELWRIGHT_CHROMIUM", "KERNELWRIGHT_UPDATE_SNAPSHOTS"}


def test_the_pages_are_current() -> None:
    assert reference.stale() == [], f"docs/reference is older than the code: run `{reference.COMMAND}`"


def test_a_page_that_differs_or_is_missing_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    (tmp_path / "settings.md").write_text(settings.page().replace("KERNELWRIGHT_AUTH", "KERNELWRIGHT_AUTHS"))
    assert reference.stale() == ["rest.md", "settings.md"]
    monkeypatch.setattr("sys.argv", ["reference", "--check"])
    with pytest.raises(SystemExit, match="python -m cli.reference"):
        reference.main()


def test_every_operation_has_a_section() -> None:
    paths = create_app().openapi()["paths"]
    sections = re.findall(r"^### (.*)$", rest.page(), flags=re.MULTILINE)
    assert sorted(sections) == sorted(f"{m.upper()} {path}" for path, methods in paths.items() for m in methods)


def test_every_variable_that_the_code_names_has_a_row_that_says_something() -> None:
    rows = dict(re.findall(r"^\| `(KERNELWRIGHT_\w+)` \|.*\| (.*?) \|$", settings.page(), flags=re.MULTILINE))
    files = [
        file for folder in ("api", "worker", "search", "db", "cli", "deploy") for file in (ROOT / folder).rglob("*")
    ]
    files += [ROOT / "docker-compose.yml", *ROOT.glob("Dockerfile.*")]
    texts = [file.read_text() for file in files if file.suffix in {".py", ".yml", ".yaml", ".example", ".api"}]
    named = {name for text in texts for name in re.findall(r"KERNELWRIGHT_[A-Z_]*[A-Z]\b(?!_)", text)}
    assert named - _ONLY_IN_TESTS - set(rows) == set()
    assert [name for name, what in rows.items() if len(what) < 10] == []
