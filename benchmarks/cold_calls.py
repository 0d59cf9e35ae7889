"""What a call of a known number of bytes takes on a GPU, cold, by several clocks: is what a chain adds the clock's?

    python -m benchmarks.cold_calls --out FILE            # one GPU, a minute

A copy and two sums of 32 to 512 MB are timed by device events behind two ways to evict the L2 cache, and as the judge
does it: a chain of calls, each behind an eviction (`worker.runner.eviction`), less the evictions alone. The rows differ
in one thing each: where the inputs lie (torch's allocator, or memory that the judge would share), how many sets of them
go in turn, what evicts, and whether clean lines are left behind.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from worker.runner import eviction, memory

SIZES = (32 << 20, 128 << 20, 512 << 20)
_REPEATS, _CALLS = 7, 24
_SETS = 4

Call = Callable[[torch.Tensor], object]


def main() -> int:
    """Measure all, print a line for each, and store them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_calls")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    for row in measured():
        rows.append(row)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def measured() -> Iterator[dict[str, Any]]:
    """A row for each size, operation and way."""
    arena = memory.create(eviction.BYTES, "cuda:0")
    evictor = eviction.Evictor(arena.bytes)
    clean = torch.ones(eviction.BYTES // 8, dtype=torch.int32, device="cuda:0")

    def evict() -> None:
        evictor.step(time.perf_counter_ns() % 1000, 1)

    def evict_clean() -> None:
        evict()
        torch.sum(clean)

    for nbytes in SIZES:
        shared = memory.create(_SETS * nbytes, "cuda:0")
        places = {
            "torch": [torch.rand(nbytes // 4, device="cuda:0") for _set in range(_SETS)],
            "shared": [shared.bytes[index * nbytes :][:nbytes].view(torch.float32) for index in range(_SETS)],
        }
        for own in places["shared"]:
            own.uniform_()
        for name, call, moved in _operations(nbytes):
            for place, inputs in places.items():
                for sets in (1, _SETS):
                    fixed = {"operation": name, "mb": nbytes >> 20, "place": place, "sets": sets}
                    for way, before in (("dirty", evict), ("clean", evict_clean)):
                        by_events, by_chain = _by_events(call, inputs[:sets], before), _by_chain(
                            call, inputs[:sets], before
                        )  # fmt: skip
                        figures = {"events_us": by_events, "chain_us": by_chain, "tb_per_s": moved / by_chain / 1e6}
                        yield fixed | {"left": way} | {key: round(value, 2) for key, value in figures.items()}
        del places, inputs, own
        shared.close()
    arena.close()


def _operations(nbytes: int) -> list[tuple[str, Call, float]]:
    """(name, call, bytes that it moves)."""
    out = torch.empty(nbytes // 4, device="cuda:0")
    return [
        ("copy", out.copy_, 2.0 * nbytes),
        ("sum", torch.sum, float(nbytes)),
        ("sum of columns", lambda x: torch.sum(x.view(-1, 4096), dim=0), float(nbytes)),
    ]


def _by_events(call: Call, inputs: list[torch.Tensor], before: Callable[[], None]) -> float:
    """Median microseconds of a call between two events."""
    taken = []
    for step in range(_CALLS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before()
        start.record()
        call(inputs[step % len(inputs)])
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) * 1e3)
    return statistics.median(taken)


def _by_chain(call: Call, inputs: list[torch.Tensor], before: Callable[[], None]) -> float:
    """Median microseconds of a call in a chain, less the chain without calls."""

    def chain(*, calls: bool) -> float:
        for _lead in range(12):
            before()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _lead in range(4):
            before()
        for step in range(_CALLS):
            before()
            if calls:
                call(inputs[step % len(inputs)])
        torch.cuda.synchronize()
        return time.perf_counter() - began

    taken = [chain(calls=True) - chain(calls=False) for _repeat in range(_REPEATS)]
    return statistics.median(taken) / _CALLS * 1e6


if __name__ == "__main__":
    sys.exit(main())
