"""The results file: figures, raw data and environment, written anew after every run, so that a cut-off keeps them."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from worker.judge import environment

_SMI_FIELDS = (
    "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,utilization.gpu,pstate,"
    "clocks_throttle_reasons.active"
)
_ROOT = Path(__file__).resolve().parents[2]
Figures = dict[str, Any]


class Results:
    """One file; parts that it already holds for the same hardware are kept until they are measured again."""

    def __init__(self, path: Path, hardware: str, *, quick: bool) -> None:
        self._path = path
        self.data: dict[str, Any] = {"hardware": hardware, "parts": {}}
        with contextlib.suppress(OSError, ValueError):  # none yet, or cut off in the middle: measured anew
            kept = json.loads(path.read_text())
            if kept.get("hardware") == hardware:
                self.data = kept
        self.data |= {"command": sys.argv[1:], "quick": quick, "environment": describe(hardware)}
        self.save()

    def begin(self, part: str) -> None:
        """A new, empty part; what is put into it is written with the next `save`."""
        self.data["parts"][part] = {"started_unix_s": time.time(), "machine": machine_state(), "runs": []}

    def add(self, part: str, run: dict[str, Any]) -> None:
        """Keep one run at once."""
        self.data["parts"][part]["runs"].append(run)
        self.save()

    def finish(self, part: str, figures: Figures) -> None:
        """Keep a part's figures and the state in which it left the machine."""
        entry = self.data["parts"][part]
        entry |= {"figures": figures, "machine_after": machine_state()}
        entry["wall_s"] = time.time() - entry["started_unix_s"]
        self.save()

    def runs(self, part: str) -> list[dict[str, Any]]:
        """The raw data of a part; empty when it was not measured."""
        return list(self.data["parts"].get(part, {}).get("runs", []))

    def note_environment(self, report: dict[str, Any]) -> None:
        """Add what the judge itself says of the machine: device, sandbox level."""
        self.data["environment"] |= report.get("environment") or {}

    def save(self) -> None:
        """Write the file whole or not at all."""
        partial = self._path.with_suffix(".part")
        partial.write_text(json.dumps(self.data, indent=1) + "\n")
        partial.replace(self._path)


def describe(hardware: str) -> dict[str, Any]:
    """The environment as this process sees it, without touching a GPU."""
    facts = environment.describe("cpu", "unknown")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False)
    return facts | {"hardware": hardware, "machine": platform.machine(), "commit": commit.stdout.strip() or None}


def machine_state() -> dict[str, Any]:
    """Load and, where there is a GPU, its clocks, temperature and throttling."""
    state: dict[str, Any] = {"load_average": list(os.getloadavg())}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # no nvidia-smi
        command = ["nvidia-smi", f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if listed.returncode == 0:
            values = [value.strip() for value in listed.stdout.splitlines()[0].split(",")]
            state["gpu"] = dict(zip(_SMI_FIELDS.split(","), values, strict=False))
    return state
