"""A GPU candidate's kernels one by one, in the untrusted process: by torch's profiler, or under Nsight Compute.

`profile.kernels`: some calls under torch's profiler (CUPTI), each behind an eviction of the caches; every kernel with
its launch: grid, block, registers, shared memory. `profile.ncu`: one call in a process of its own under ncu, its
hardware counters by their names.

What comes back may be forged and serves advice alone: no verdict and no time hangs on it.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.autograd.profiler import profile as _Profile

from worker.runner import examine, values

_EVICT_BYTES = 512 << 20
_EVICTION = "bitwise_not"
"""The eviction's kernel is told from the candidate's by this name."""
_MOST_KERNELS, _MOST_NAME = 40, 200
_LAUNCH = {
    "grid": "grid",
    "block": "block",
    "registers per thread": "registers",
    "shared memory": "shared_bytes",
    "blocks per SM": "blocks_per_sm",
    "est. achieved occupancy %": "occupancy_percent",
}


class _Session(Protocol):
    device: str
    arenas: dict[str, Any]
    subjects: dict[str, Any]


def kernels(session: _Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """`calls` calls on a slot's inputs: `kernels`, longest first, each with name, count, total_us and its launch."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it announces every start on stderr
    call = session.subjects[message["subject"]].calls[message["workload"]]
    inputs = tuple(values.decode(message["inputs"], session.arenas[message["workload"]].bytes))
    buffer = torch.zeros(_EVICT_BYTES, dtype=torch.uint8, device=session.device)
    with torch.no_grad():
        call(*inputs)
        torch.cuda.synchronize()
        with _Profile(use_device="cuda", use_kineto=True) as recorded:
            for _step in range(message["calls"]):
                buffer.bitwise_not_()
                call(*inputs)
            torch.cuda.synchronize()
    trace = Path.cwd() / "kernels.json"
    recorded.kineto_results.save(str(trace))
    return {"kernels": listed(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"])}


def listed(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The kernels of a Chrome trace, longest first, one entry for each name and launch."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.get("cat") != "kernel" or _EVICTION in event["name"]:
            continue
        launch = {ours: event["args"][theirs] for theirs, ours in _LAUNCH.items() if theirs in event["args"]}
        key = json.dumps([event["name"], launch])
        entry = found.setdefault(key, {"name": event["name"][:_MOST_NAME], "count": 0, "total_us": 0.0, **launch})
        entry["count"] += 1
        entry["total_us"] += float(event["dur"])
    return sorted(found.values(), key=lambda entry: -entry["total_us"])[:_MOST_KERNELS]


def counters(session: _Session, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """One call under `tool` (ncu with its options): `kernels` of name and `counters` by name, exit code and last words.

    Raises NotPossible when the tool cannot be run here.
    """
    folder = examine.prepare(session, message, fds)
    report = folder / "counters.csv"
    command = [*message["tool"], "--log-file", report.name, *examine.DRIVE]
    environment = os.environ | {"TMPDIR": str(folder), "HOME": str(folder)}
    code, said = examine.watched(command, folder, environment, message["limit_s"])
    text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    complaints = [line for line in text.splitlines() if line.startswith("==ERROR==")]
    return {"code": code, "kernels": counted(text, message["wanted"]), "said": (complaints or [said])[0][-500:]}


def counted(text: str, wanted: Sequence[str]) -> list[dict[str, Any]]:
    """The kernels in ncu's raw page as CSV: a line of names, one of units, one for each kernel."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    found = []
    for row in rows[1:] if rows else []:  # the first holds units
        numbers = {name: _number(row.get(name)) for name in wanted}
        found.append(
            {
                "name": str(row.get("Kernel Name", ""))[:_MOST_NAME],
                "counters": {name: value for name, value in numbers.items() if value is not None},
            }
        )
    return found[:_MOST_KERNELS]


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


HANDLERS: dict[str, Callable[[Any, dict[str, Any], list[int]], dict[str, Any]]] = {
    "profile.kernels": kernels,
    "profile.ncu": counters,
}
"""For `worker.runner.child`, by the name of the control message."""
