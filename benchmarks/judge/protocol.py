"""The same mix under KernelBench's published protocol (`benchmarks.kernelbench_protocol`): GPU seconds held, and what
it accepts.

Every candidate gets a cold process with cold caches. Only one at a time holds the device; the next ones import torch
meanwhile, which is not counted, or build, which is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks import kernelbench_protocol as cold
from benchmarks.judge.figures import protocol_figures
from benchmarks.judge.mix import COUNT, QUICK_COUNT, Item, mix
from benchmarks.judge.plan import Deadline, Plan
from benchmarks.judge.results import Results
from problems.catalog import outline

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 30
"""On the device, per candidate. The published limit is 180 s: this one is kinder to the protocol."""
_BESIDE_S = 240.0
"""For importing and for waiting for the device, before a process is taken for dead."""
_CORES_PER_PROCESS, _MOST_AT_ONCE = 4, 4


def measure(plan: Plan, results: Results) -> None:
    """Run the part and write it, compared with what `cost` found in the same results file."""
    results.begin("protocol")
    deadline = plan.deadline()
    items = mix(plan.hardware, plan.runs(COUNT, QUICK_COUNT), quick=plan.quick)
    at_once = max(1, min(_MOST_AT_ONCE, (os.cpu_count() or 1) // _CORES_PER_PROCESS))
    with tempfile.TemporaryDirectory(prefix="cold-", dir=plan.home) as folder, ThreadPoolExecutor(at_once) as pool:
        home = Path(folder)
        futures = [pool.submit(run_cold, item, home / f"{place}", plan, deadline) for place, item in enumerate(items)]
        for future in as_completed(futures):
            run = future.result()
            if run is not None:
                results.add("protocol", run)
    figures = protocol_figures(results.runs("protocol"), results.runs("cost"))
    results.finish("protocol", {"wanted": len(items), "limit_s": _LIMIT_S, **figures})


def run_cold(item: Item, folder: Path, plan: Plan, deadline: Deadline) -> dict[str, Any] | None:
    """One candidate in a process of its own; None when it is too late to start it."""
    if deadline.passed:
        return None
    folder.mkdir(parents=True)
    workload = outline(item.problem_source, item.problem).spec.workloads_for(plan.hardware)[0]
    (folder / cold.PROBLEM).write_text(item.problem_source)
    (folder / cold.CANDIDATE).write_text(item.source)
    job = {
        "device": plan.device,
        "params": dict(workload.params),
        "locks": str(folder.parent / "locks"),
        "limit_s": _LIMIT_S,
    }
    (folder / cold.JOB).write_text(json.dumps(job))
    started = time.monotonic()
    code = _finished([str(folder)], folder, _BESIDE_S + _LIMIT_S)
    ended = time.monotonic()
    found = _read(folder / cold.TIMES) | _read(folder / cold.RESULT)
    built_s = found.get("built_s", 0.0)
    held_s = built_s + ended - found["leased"] if "leased" in found else 0.0
    reason = found.get("reason") or ("" if found.get("accepted") else f"the process ended with {code}")
    who = {"id": item.id, "problem": item.problem, "language": item.language, "bad": item.bad}
    return {
        **who,
        "accepted": bool(found.get("accepted")),
        "reason": reason,
        "held_s": held_s,
        "built_s": built_s,
        "wall_s": ended - started,
        "stages_s": found.get("stages_s"),
        "candidate_us": found.get("candidate_us"),
        "reference_us": found.get("reference_us"),
    }


def _finished(arguments: list[str], folder: Path, limit_s: float) -> int:
    """Run the cold process to its end, and end whatever it started; its exit code."""
    folders = ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR")
    environment = os.environ | {name: str(folder / name.lower()) for name in folders}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.kernelbench_protocol", *arguments],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            _end_group(process.pid)


def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):  # it died before, or while, it wrote
        return {}
    return found
