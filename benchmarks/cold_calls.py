"""What a call of a known number of bytes takes on a GPU, cold, by several clocks, from memory of several kinds.

    python -m benchmarks.cold_calls --out FILE            # one GPU, a minute or two
    python -m benchmarks.cold_calls --out FILE --sets 16  # 8 GB of inputs

Kernels that read 512 MB far apart at any moment take 200 us in the judge, and those that read it in order 130 (H200);
kernels that gather rows of 768 MB took 15 times as long there as on memory of their own process (H100). The rows
differ in one thing each:

    memory     torch: its allocator's; own: an arena of this process; opened: an arena of another process, as runners
               have it
    odd        whether its size is no whole number of pages of 2 MB, as those of the judge's arenas were until
               27 November: what opens it has it in small ones
    sets       so many sets of inputs go in turn
    left       what the eviction leaves in the L2 cache: half-written lines, or clean ones
    events_us  between two device events behind an eviction
    chain_us   in a chain of calls, each behind an eviction, less the evictions (`worker.judge.timing.clocks`)
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from worker.runner import eviction, memory

NBYTES = 512 << 20
_REPEATS, _CALLS = 5, 24
_ODD = 300 << 10
_ROW = 512
_SPANS_MB = (512, 768, 1024, 2048)

Call = Callable[[torch.Tensor], object]


def main() -> int:
    """Measure all, print a line for each, and store them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_calls")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sets", type=int, default=4, help="of inputs, 512 MB each")
    parser.add_argument("--handle", help="of memory that another process made: this is its child")
    parser.add_argument("--odd", action="store_true", help="whether that memory's size is odd")
    options = parser.parse_args()
    child = _opened(json.loads(options.handle), options.sets, odd=options.odd) if options.handle else None
    rows = []
    for row in child or everything(options.sets):
        rows.append(row)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    if options.out:
        found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def everything(sets: int) -> Iterator[dict[str, Any]]:
    """A row for each kind of memory, operation, number of sets and eviction."""
    yield from measured("torch", list(torch.empty(sets, NBYTES // 4, device="cuda:0")))
    torch.cuda.empty_cache()
    for more in (0, _ODD):
        size = sets * NBYTES + more
        arena = memory.DeviceArena(memory._allocated(size), size, owner=True)  # `create` makes none that are odd
        yield from measured("own", _sets_of(arena, sets), odd=bool(more))
        yield from _in_child(arena.handle()[0], sets, odd=bool(more))
        arena.close()


def measured(kind: str, inputs: list[torch.Tensor], *, odd: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of one kind of memory. `inputs` lie one behind the other."""
    for values in inputs:
        values.uniform_()
    arena = memory.create(eviction.BYTES, "cuda:0")
    evictor = eviction.Evictor(arena.bytes)
    clean = torch.ones(eviction.BYTES // 8, dtype=torch.int32, device="cuda:0")

    def evict() -> None:
        evictor.step(time.perf_counter_ns() % 1000, 1)

    def evict_clean() -> None:
        evict()
        torch.sum(clean)

    for name, call, moved in _operations(inputs):
        for sets in sorted({1, len(inputs)}):
            for left, before in (("dirty", evict), ("clean", evict_clean)):
                if (left == "clean" or "rows of 512" in name) and sets > 1:
                    continue
                by_events, by_chain = (clock(call, inputs[:sets], before) for clock in (_by_events, _by_chain))
                yield {
                    "memory": kind,
                    "odd": odd,
                    "operation": name,
                    "sets": sets,
                    "left": left,
                    "events_us": round(by_events, 1),
                    "chain_us": round(by_chain, 1),
                    "tb_per_s": round(moved / by_chain / 1e6, 2),
                }


def _operations(inputs: list[torch.Tensor]) -> list[tuple[str, Call, float]]:
    """(name, call, bytes that it moves)."""
    out = torch.empty(NBYTES // 4, device="cuda:0")
    return [
        ("copy", out.copy_, 2.0 * NBYTES),
        ("sum of rows of 32 KB", lambda x: torch.sum(x.view(-1, 8192), dim=1), float(NBYTES)),
        ("sum of columns, rows of 32 KB", lambda x: torch.sum(x.view(-1, 8192), dim=0), float(NBYTES)),
        ("sum of columns, rows of 8 MB", lambda x: torch.sum(x.view(64, -1), dim=0), float(NBYTES)),
        *(_rows_of(inputs, megabytes, out) for megabytes in _SPANS_MB if megabytes << 20 <= len(inputs) * NBYTES),
    ]


def _rows_of(inputs: list[torch.Tensor], megabytes: int, out: torch.Tensor) -> tuple[str, Call, float]:
    """As many rows of 512 bytes as half a gigabyte has, from anywhere in the first so many megabytes of all inputs."""
    rows = (megabytes << 20) // _ROW
    whole = inputs[0].as_strided((rows, _ROW // 4), (_ROW // 4, 1))
    order, some = torch.randint(rows, (NBYTES // _ROW,), device="cuda:0"), out.view(-1, _ROW // 4)
    return (
        f"rows of {_ROW} bytes in any order of {megabytes} MB",
        lambda _x: torch.index_select(whole, 0, order, out=some),
        2.0 * NBYTES,
    )


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


# --- memory of another process ----------------------------------------------------------------------------------------


def _in_child(told: dict[str, Any], sets: int, *, odd: bool) -> Iterator[dict[str, Any]]:
    """What another process measures in memory of this one."""
    command = [sys.executable, "-m", "benchmarks.cold_calls", "--handle", json.dumps(told), "--sets", str(sets)]
    done = subprocess.run(command + ["--odd"] * odd, capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr[-2000:])
    yield from (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))


def _opened(told: dict[str, Any], sets: int, *, odd: bool) -> Iterator[dict[str, Any]]:
    yield from measured("opened", _sets_of(memory.open_arena(told, []), sets), odd=odd)


def _sets_of(arena: memory.Arena, sets: int) -> list[torch.Tensor]:
    return [arena.bytes[index * NBYTES :][:NBYTES].view(torch.float32) for index in range(sets)]


if __name__ == "__main__":
    sys.exit(main())
