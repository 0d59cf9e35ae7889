"""`kernelwright demo`, piped: what happened line by line, a table, and one JSON line for machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.guides.pages import ROOT, read
from tests.support.people import home_of, python, wait_for_none


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_search_from_a_rest_call_to_a_kernel_file() -> None:
    with home_of("self") as home:
        demo = python("self", ["-m", "cli", "demo", "--home", str(home), "--candidates", "1"])
        output, _ = demo.communicate(timeout=580)
        assert demo.returncode == 0, output
        assert wait_for_none(home, wait_s=0) == []

        lines = output.splitlines()
        result = json.loads(lines[-1])
        assert result["job_id"].startswith("job_")
        assert (result["verdict"], result["state"]) == ("ok", "succeeded")
        assert result["baseline"] in ("eager", "compile", "library_sdpa")
        assert result["ci95"][0] <= result["speedup"] <= result["ci95"][1]
        for event in ("job.created", "candidate.proposed", "candidate.evaluated", "job.finished"):
            assert any(event in line for line in lines), event
        table = dict(line.split("\t", 1) for line in lines if "\t" in line)
        assert table["verdict"] == "ok"
        assert table["candidates tried"] == "1"
        assert "class ModelNew" in Path(table["source"]).read_text()
        assert list(table) == list(_table_of_readme())


def _table_of_readme() -> dict[str, str]:
    """What README.md says that `make demo` prints."""
    page = read("README.md", (ROOT / "README.md").read_text())
    (printed,) = (step.printed for step in page.steps() if "make demo" in step.commands.text)
    assert printed is not None
    return dict(line.split("\t", 1) for line in printed.text.splitlines() if "\t" in line)
