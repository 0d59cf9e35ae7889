"""Leak slope: memory over a thousand calls whose results are dropped, in bytes a call.

The judge reads the figure: resident memory from /proc on a CPU, used device memory from the driver on a GPU, where the
check has the device to itself, because the driver counts everyone's. The slope is Theil and Sen's (the median over all
pairs of points), so that a single jump of an allocator does not count. What looks like a leak is measured again, up to
three times: a leak leaks again, while other users of a GPU, who know nothing of our lease, made an honest kernel "grow"
by 2 MiB in every batch of 100 calls, and by 3 MiB in every call.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from worker.judge.certificate.stage import SystemBench, SystemCheck, bench_of
from worker.judge.runners import quiet
from worker.judge.runners.sessions import Runner
from worker.judge.trial import Trial
from worker.judge.verdict import Fault, Verdict

NAME = "leak slope"
_BATCHES, _CALLS = 10, 100
_WARMUP_CALLS = 20
_LOOKS = 4
_SURE_BATCHES, _PLENTY_BYTES = 5, 1 << 30
"""After five batches one jump no longer moves the median; who has leaked so much by then is not given more to leak."""
_BUDGET_S = 20.0
_BATCH_LIMIT_S = 60.0
_LIMIT_BYTES_PER_CALL = 1024.0
_NOISE_BYTES = 1 << 20
"""An interpreter's heap and an allocator's pools may grow this much once. Over few calls that is a steep slope."""


def check(trial: Trial) -> None:
    """Raises Fault `suspicious`: a module that keeps memory with every call is a cache or a leak; both end badly."""
    bench = bench_of(trial)
    bench.write(0, 0)
    calls = _calls_per_batch(bench)
    for _look in range(_LOOKS):
        points = _growth(trial, bench, calls)
        made = points[-1][0]
        slope = theil_sen(points)
        limit = max(_LIMIT_BYTES_PER_CALL, _NOISE_BYTES / made)
        if slope <= limit:
            break
    figures: dict[str, float | str] = {
        "leak_bytes_per_call": round(slope, 1),
        "limit_bytes_per_call": limit,
        "calls": made,
        "first_bytes": points[0][1],
        "last_bytes": points[-1][1],
    }
    if slope > limit:
        reason = f"memory grows by {slope:,.0f} bytes with every call"
        raise trial.refuse(NAME, Verdict.SUSPICIOUS, reason, **figures)
    trial.record(NAME, True, f"{slope:,.0f} bytes a call over {made} calls", **figures)


def _growth(trial: Trial, bench: SystemBench, calls: int) -> list[tuple[int, float]]:
    """(calls so far, bytes in use) after each batch, the first before any."""
    points = [(0, _used_bytes(trial))]
    for batch in range(1, _BATCHES + 1):
        bench.examine("repeat", _BATCH_LIMIT_S, count=calls)
        points.append((batch * calls, _used_bytes(trial)))
        if batch >= _SURE_BATCHES and points[-1][1] - points[0][1] > _PLENTY_BYTES:
            break
    return points


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    """The median slope over all pairs of (x, y) points."""
    return statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(points, 2))


def _calls_per_batch(bench: SystemBench) -> int:
    """Warm up, and choose batches that fit the budget."""
    bench.examine("repeat", _BATCH_LIMIT_S, count=_WARMUP_CALLS)
    start = time.monotonic()
    bench.examine("repeat", _BATCH_LIMIT_S, count=_WARMUP_CALLS)
    call_s = (time.monotonic() - start) / _WARMUP_CALLS
    return max(2, min(_CALLS, int(_BUDGET_S / _BATCHES / call_s)))


def _used_bytes(trial: Trial) -> float:
    if trial.device != "cpu":
        free, total = torch.cuda.mem_get_info()
        return float(total - free)
    return float(_resident_bytes(trial.runner))


def _resident_bytes(runner: Runner) -> int:
    """Anonymous memory and shared memory of the runner's process; the arena is constant in it. Raises Fault."""
    pid = quiet.runner_of(runner._pid)
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError as gone:
        raise Fault(Verdict.INFRA_ERROR, "the runner's memory cannot be read from /proc", runner.log()) from gone
    fields = dict(line.split(":", 1) for line in lines if line.startswith("Rss"))
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


CHECK = SystemCheck(NAME, check, alone=True)
