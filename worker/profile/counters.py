"""A CPU's hardware counters of some calls, by `perf stat` on the runner's threads. The runner has no part in it.

    counts = count(runner, bench, calls)           # raises NotCounted, with the reason, where counters are forbidden

Only what runs in user mode is counted (`:u`), which is all that a process may see at perf_event_paranoid 2. Calls are
on cold caches, as timing has them; between calls the runner sleeps and nothing is counted.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from worker.judge.runners import quiet
from worker.judge.runners.bench import Workbench
from worker.judge.runners.sessions import Runner
from worker.judge.timing.evicting import HostEviction
from worker.judge.trial import SUBJECT
from worker.judge.verdict import Fault
from worker.runner import protocol

EVENTS = ("cycles", "instructions", "cache-misses", "branch-misses", "dTLB-load-misses")
"""Five, most of which fit a core's counters at once: perf takes turns with more, and then says less."""
NEEDED = ("cycles", "instructions")
LINE_BYTES = 64
_BRANCH_CYCLES, _WALK_CYCLES = 15, 30
_BUDGET_S, _MOST_CALLS, _FEWEST_CALLS = 0.4, 50, 3
_ANSWER_S, _CALL_LIMIT_S = 2.0, 20.0


class NotCounted(Exception):
    """There are no hardware counters for us here. The message says why: no perf, no right, or no counters."""


def count(runner: Runner, bench: Workbench) -> dict[str, float]:
    """Counts of one call by event; those of `NEEDED` are there. Raises NotCounted, or the Fault that ended a call."""
    perf, pid = shutil.which("perf"), quiet.runner_of(runner._pid)
    if perf is None or pid is None:
        raise NotCounted("perf is not installed" if perf is None else "the runner is not to be found")
    eviction = HostEviction()
    bench.write(0, 0)
    bench.heat(SUBJECT, None)
    try:
        runner.ring(protocol.CALL, _CALL_LIMIT_S, number=0)  # the threads that will work exist from now on
        with _watching(perf, pid) as watch:
            calls, deadline = 0, time.monotonic() + _BUDGET_S
            while calls < _FEWEST_CALLS or (calls < _MOST_CALLS and time.monotonic() < deadline):
                eviction.flush()
                runner.ring(protocol.CALL, _CALL_LIMIT_S, number=0)
                calls += 1
            counts = parse(watch.stop())
    finally:
        with contextlib.suppress(Fault):
            bench.cool()
    return {event: value / calls for event, value in counts.items()}


def parse(text: str) -> dict[str, float]:
    """Counts by event, from `perf stat -x,`. Raises NotCounted where one of `NEEDED` is missing."""
    found: dict[str, float] = {}
    refused = ""
    for line in text.splitlines():
        fields = line.split(",")
        event = fields[2].split(":")[0] if len(fields) > 2 else ""
        if event not in EVENTS:
            continue
        try:
            found[event] = float(fields[0])
        except ValueError:
            refused = refused or f"{event}: {fields[0].strip('<>')}"
    missing = [event for event in NEEDED if not found.get(event)]
    if missing:
        raise NotCounted(refused or f"perf counted no {missing[0]}")
    return found


def metrics(counts: Mapping[str, float], least_bytes: float) -> dict[str, float | None]:
    """Metrics by the names of `worker.profile.metrics`. The traffic is that of last-level misses, loads and stores."""
    cycles = counts["cycles"]
    misses = counts.get("cache-misses")
    return {
        "instructions_per_cycle": counts["instructions"] / cycles,
        "branch_stall_share": min(1.0, counts.get("branch-misses", 0.0) * _BRANCH_CYCLES / cycles),
        "tlb_stall_share": min(1.0, counts.get("dTLB-load-misses", 0.0) * _WALK_CYCLES / cycles),
        "traffic_ratio": misses * LINE_BYTES / least_bytes if misses and least_bytes else None,
    }


class _Watch:
    """A perf process that counts when told to, through a pair of pipes."""

    def __init__(self, perf: str, pid: int) -> None:
        self._report = tempfile.NamedTemporaryFile(prefix="kernelwright-perf-", delete=False)  # noqa: SIM115
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        command = [perf, "stat", "-x,", "-o", self._report.name, "-e", ",".join(f"{event}:u" for event in EVENTS)]
        command += ["-D", "-1", "--control", f"fd:{orders},{answers}", "-p", str(pid)]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=(orders, answers),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
            )
        finally:
            os.close(orders)
            os.close(answers)

    def tell(self, order: str) -> None:
        """`enable` or `disable`, done when this returns. Raises NotCounted."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, f"{order}\n".encode())
            ready, _, _ = select.select([self._answers], [], [], _ANSWER_S)
            if ready and os.read(self._answers, 16):
                return
        raise NotCounted(self._complaint())

    def stop(self) -> str:
        """End the counting; the report. Raises NotCounted."""
        self.tell("disable")
        self._end(signal.SIGINT)
        return Path(self._report.name).read_text(errors="replace")

    def close(self) -> None:
        """Release everything."""
        self._end(signal.SIGKILL)
        for descriptor in (self._orders, self._answers):
            os.close(descriptor)
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._report.close()
        Path(self._report.name).unlink(missing_ok=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(_ANSWER_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _complaint(self) -> str:
        """What perf said when it gave up, in one line."""
        self._end(signal.SIGKILL)
        said = (self._process.stderr.read() if self._process.stderr else "").split("\n")
        lines = [line.strip() for line in said if line.strip() and not line.startswith(("Error", "Usage"))]
        return (lines[0] if lines else "perf stat did not answer")[:200]


@contextlib.contextmanager
def _watching(perf: str, pid: int) -> Iterator[_Watch]:
    """Counting from the block's first line until `stop`."""
    watch = _Watch(perf, pid)
    try:
        watch.tell("enable")
        yield watch
    finally:
        watch.close()
