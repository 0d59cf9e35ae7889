"""Result files of the record, as `python -m benchmarks.record run` writes them, with what its tables and plots read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record.plan import Entry


def row(name: str, speedup: float, low: float, high: float, **more: Any) -> dict[str, Any]:
    """A workload of 10 us by `compile`."""
    baselines = {"eager": 20.0, "compile": 10.0}
    return {"name": name, "latency_us": 10.0 / speedup, "baselines_us": baselines, "baseline": "compile",
            "speedup": speedup, "ci95": [low, high], **more}  # fmt: skip


def candidate(ordinal: int, verdict: str, speedup: float | None = None, reason: str = "") -> dict[str, Any]:
    """One that was judged in the minute of its number."""
    at = f"2026-11-24T14:{ordinal:02}:00Z"
    return {"ordinal": ordinal, "verdict": verdict, "speedup": speedup, "reason": reason, "evaluated_at": at}


def certificate(roofs: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """One that was granted; `roofs`: the bound of each workload w0, w1, ..."""
    points = [
        {"name": f"w{index}", "bound": bound, "sol_fraction": 0.5, "latency_us": 10.0, "bytes_moved": 2e7,
         "flops": 4e9 if bound == "compute" else 1e6}
        for index, bound in enumerate(roofs)
    ]  # fmt: skip
    timing = {"speedup": 1.5, "ci95": [1.4, 1.6]}
    roofline = {"points": points, "bytes_per_s": 4e12, "flops_per_s": 7e14, "precision": "bfloat16"}
    return {"certified": True, "reason": "", "reservations": [], "timing": timing, "roofline": roofline, **more}


def store(
    folder: Path,
    entry: Entry,
    rows: list[dict[str, Any]] | None,
    *,
    roofs: Sequence[str] = (),
    certified: Mapping[str, Any] | None = None,
    candidates: Sequence[Mapping[str, Any]] = (),
    **report: Any,
) -> None:
    """A file of results. `rows`: None when nothing was accepted; `certified`: another certificate, empty for none;
    `report`: what else the winner's says."""
    share = {"name": "own kernel share", "passed": True, "detail": "", "figures": {"share": 0.97}}
    found = {"workloads": rows, "profile": {"bound": "memory"}, "checks": [share], "speedups": {}, "environment": {}}
    best = {"timed": True, "proposer": "ask/tell", "ci95": [1.1, 1.9], "report": found | report}
    document = {
        "job": {"problem": {"name": entry.problem}, "target": {"hardware": "nvidia-h200", "language": entry.language}},
        "best": None if rows is None else best,
        "certificate": certificate(roofs) if certified is None else dict(certified) or None,
        "panel": {},
        "candidates": [dict(each) for each in candidates],
    }
    folder.mkdir(exist_ok=True)
    (folder / entry.file).write_text(json.dumps(document))
