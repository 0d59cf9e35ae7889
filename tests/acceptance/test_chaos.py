"""A short schedule of faults against a fleet in real processes: the checker finds nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_half_a_minute_of_faults(tmp_path: Path) -> None:
    out = tmp_path / "chaos.jsonl"
    command = [sys.executable, "-m", "tests.chaos", "--seeds", "3", "--length-s", "30", "--in-flight", "30"]
    done = subprocess.run([*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert out.exists(), done.stderr
    (schedule,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert schedule["violations"] == [], done.stdout
    assert len(schedule["faults"]) >= 8 and schedule["jobs"] >= 30 and schedule["evaluations"] >= 60
