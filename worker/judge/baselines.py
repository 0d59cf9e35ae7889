"""Live baselines of one problem: eager and every mode of `torch.compile`, in runners of their own.

Built at the first timing, because `torch.compile` takes 20 s on a CPU and most bad candidates never get that far. The
first judgement of a problem on a machine races all of them and writes down what they took; later ones race eager,
`compile` and the one that was fastest, so that a survivor is not timed against four losers.

On a CPU each has a runner to itself, as the candidate has: with eager and `compile` in one, which then runs twice a
round and is asked for something just before, eager was up to 25 % faster than itself as a candidate (150 against 192 us
for sums of rows on two cores; 1.00 since). On a GPU they share one: a context and its arenas take gigabytes there, and
device time does not show it.

CUDA graphs are in `compile_reduce_overhead` and `compile_max_autotune_graphs`. The vendor's library is what eager
calls; what else a user could call (SDPA's backends, fused losses) a problem names as its `library`. With TF32 allowed
by the problem's precision policy, `eager_tf32` is there too, and the compiled ones and the library's use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import torch

from problems.catalog import Spec, Workload
from worker.judge.exhibits import Exhibits
from worker.judge.numerics.case import Case
from worker.judge.reference.problem import Problem, call_reference
from worker.judge.runners.bench import Contender, Workbench, Workshop
from worker.judge.runners.sessions import Runner
from worker.judge.verdict import BaselineFault, Fault, ReferenceFailed, Verdict

log = structlog.get_logger()

_COMPILE_LIMIT_S, _AHEAD_LIMIT_S = 600.0, 240.0
"""For one workload in one mode. A scan whose steps each look back twice as far was not compiled after nine minutes, in
which three compilers held 30 GB of an H100."""
_REFERENCE_LIMIT_S = 120.0
_UNUSABLE_S = 24 * 3600.0
"""Then what made a baseline unusable is tried again: a busy machine may have been it."""
_WARM_CASES = 3
"""Calls before the race, each on other values: torch.compile takes a size that depends on values for a constant at
first, and for one that varies when it has seen two; CUDA graphs are recorded in the second call."""
Held = Callable[[], AbstractContextManager[object]]
"""Holds a device for something short, so that nobody is timed meanwhile."""
OF_MEMORY = "out of memory"
"""In the reason of a fault for which a device's memory was full."""
TRUSTED = "eager"
_ALWAYS = (TRUSTED, "compile")


@dataclass(frozen=True, slots=True)
class Mode:
    """How one baseline is made from the reference."""

    name: str
    compile_mode: str | None
    """A mode of torch.compile, or None for eager."""
    tf32: bool = False
    model: str = "Model"
    """The class of the problem's file."""


def compile_ahead(
    problem: Problem,
    hardware: str,
    device: str,
    seed: int,
    runners: Sequence[Runner],
    held: Held,
    unusable: Unusable,
) -> bool:
    """Fill the compile cache of a problem's baselines in `runners`, with one set of inputs of each workload.

    A judge that compiles only when it needs the baselines holds the inputs, truths and arenas of all workloads
    meanwhile: 60 to 100 s in which others wait for a GPU's memory. The device is used in turns of the runners, and
    `held` to prepare them. Each runner compiles for one workload after the other, on one core: of 16, judges that had
    one each kept three busy. A baseline that the compiler refuses for one workload is none for the others either, and
    compiled no more here: on an H100 refusals came after 10 to 25 s each, 20 of them for one problem. Where one takes
    too long it and those that take longer are compiled no more, and `unusable` is told; also of one that spoils its
    process. Returns whether no memory was missing for any. Raises Fault, ReferenceFailed, and what torch raises when a
    device's memory is full.
    """
    trouble = _Trouble(unusable)
    modes = [mode for mode in _modes(device, problem.spec) if mode.compile_mode and mode.name not in unusable.reasons]
    making = threading.Lock()  # of inputs: torch's random numbers are one process's
    left: queue.SimpleQueue[Workload] = queue.SimpleQueue()
    for workload in problem.workloads(hardware):
        left.put(workload)

    def fill(runner: Runner) -> None:
        for mode in modes:
            runner.ask(_loading(mode, problem.outline.source, turns=True), _REFERENCE_LIMIT_S)
        while not runner.dead:
            try:
                workload = left.get_nowait()
            except queue.Empty:
                return
            fill_one(runner, workload)
            if device != "cpu":
                torch.cuda.empty_cache()  # others are judged meanwhile: judge and runners held 32 GB of an H100

    def fill_one(runner: Runner, workload: Workload) -> None:
        with held():
            with making:
                instance = problem.instance(workload, device, seed)
                case = Case("ahead", instance.like, (), call_reference(instance.call, instance.like), (), (), ())
            bench = Workbench(runner, instance, [case], device, 1)
            bench.write(0, 0)
        try:
            _compile(modes, bench, held, trouble)
        finally:
            bench.close()

    with ThreadPoolExecutor(len(runners)) as threads:
        for filled in [threads.submit(fill, runner) for runner in runners]:
            filled.result()
    return not trouble.short


@dataclass(slots=True)
class _Trouble:
    """Baselines that were not compiled ahead, by name."""

    unusable: Unusable
    refused: set[str] = field(default_factory=set)
    """By the compiler."""
    short: set[str] = field(default_factory=set)
    """Of memory."""

    @property
    def over(self) -> set[str]:
        """Those that are compiled no more."""
        return self.refused | set(self.unusable.reasons)


def _compile(modes: Sequence[Mode], bench: Workbench, held: Held, trouble: _Trouble) -> None:
    """Compile for one workload what is not over, and add what is now. A runner that took too long is lost. Raises Fault
    when it is lost otherwise."""
    for mode in modes:
        if mode.name in trouble.over:
            continue
        try:
            with held():
                bench.construct(mode.name, _REFERENCE_LIMIT_S)
            bench.run(mode.name, 0, _AHEAD_LIMIT_S)
        except Fault as fault:
            told = {"baseline": mode.name, "workload": bench.name, "reason": fault.reason[:300]}
            log.warning("baseline.not_compiled_ahead", **told)
            if fault.verdict is Verdict.TIMEOUT:
                for name in _at_least_as_long(mode, modes):
                    trouble.unusable.add(name, f"not compiled within {_AHEAD_LIMIT_S:.0f} s for {bench.name!r}")
                return
            if _spoilt(fault):
                trouble.unusable.suspect(mode.name, fault.reason)
            if _lost(fault, bench.runner):
                raise
            if OF_MEMORY in fault.reason:
                trouble.short.add(mode.name)
            elif fault.reason.startswith("InductorError"):
                trouble.refused.add(mode.name)
    bench.trim()


def _at_least_as_long(mode: Mode, modes: Sequence[Mode]) -> list[str]:
    """The baselines that take the compiler no less than this one: the modes of torch.compile that come after it make
    the same graph, and record it or search beside."""
    if mode.compile_mode is None:
        return [mode.name]
    return [each.name for each in modes[modes.index(mode) :] if each.compile_mode]


def _spoilt(fault: Fault) -> bool:
    """Whether nothing that its process does on a GPU from then on is right."""
    return fault.verdict is Verdict.ILLEGAL_ACCESS or "device-side assert" in fault.reason


def _lost(fault: Fault, runner: Runner) -> bool:
    """Whether more was lost than the baseline."""
    return fault.verdict in (Verdict.TIMEOUT, Verdict.INFRA_ERROR) or _spoilt(fault) or runner.dead


class Unusable:
    """Baselines that are none on this machine for a day, and why: they were not compiled in time, found no memory with
    the device to themselves, or spoilt two processes, as the compiled graphs of a reference whose sizes depend on
    values did on an H200. Kept on disk, for all devices of its kind."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._known: dict[str, tuple[float, str, bool]] = {}
        """By name: since when (Unix time), why, and whether that is sure."""
        self._read()

    @property
    def reasons(self) -> dict[str, str]:
        """Why each is none."""
        return {name: reason for name, (_since, reason, sure) in self._known.items() if sure}

    @property
    def known(self) -> dict[str, bool]:
        """Those that were told of, and whether each is none now: what changes when more is."""
        return {name: sure for name, (_since, _reason, sure) in self._known.items()}

    def add(self, name: str, reason: str) -> None:
        """From now on it is no baseline here."""
        self._keep(name, reason, sure=True)

    def suspect(self, name: str, reason: str) -> None:
        """It is none if this is the second time: once it may be the device that fails."""
        self._keep(name, reason, sure=False)

    def _keep(self, name: str, reason: str, *, sure: bool) -> None:
        with self._lock:
            self._read()  # evaluators of one device learn side by side
            said = self._known[name][1] if name in self._known else reason[:300]
            self._known = {**self._known, name: (time.time(), said, sure or name in self._known)}
            partial = self._path.with_suffix(f".{os.getpid()}.part")
            partial.write_text(json.dumps(self._known))
            partial.replace(self._path)

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # none yet, or cut off by a full disk
            oldest = time.time() - _UNUSABLE_S
            kept = json.loads(self._path.read_text()).items()
            self._known = {name: (since, said, sure) for name, (since, said, sure) in kept if since > oldest}


class Record:
    """What the baselines of a problem took on this machine, by workload, in microseconds; kept on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.latency_us: dict[str, dict[str, float]] = {}
        with contextlib.suppress(OSError, ValueError):  # none yet, or cut off by a full disk: raced again
            self.latency_us = json.loads(path.read_text())

    def keep(self, latency_us: Mapping[str, Mapping[str, float]]) -> None:
        """Store the latencies of a race of all baselines."""
        self.latency_us = {workload: dict(row) for workload, row in latency_us.items()}
        partial = self._path.with_suffix(f".{os.getpid()}.part")  # evaluators of one device may end a race together
        partial.write_text(json.dumps(self.latency_us))
        partial.replace(self._path)

    def fastest(self) -> set[str]:
        """The fastest baseline of each workload."""
        return {min(row, key=row.__getitem__) for row in self.latency_us.values() if row}


@dataclass(slots=True)
class _Place:
    """A runner with a workbench per workload, all in one arena."""

    runner: Runner
    benches: dict[str, Workbench]
    workshop: Workshop | None = None

    def close(self) -> None:
        """End the runner and release the arena."""
        with contextlib.suppress(Fault):
            self.runner.close()
        for bench in self.benches.values():
            bench.close()
        if self.workshop is not None:
            self.workshop.close()


class Baselines:
    """The baselines that are raced now, one workbench per workload."""

    def __init__(
        self,
        exhibits: Exhibits,
        spawn: Callable[[], Runner],
        record: Record,
        unusable: Unusable,
        *,
        eager_only: bool = False,
        crowded_out: Callable[[Fault], bool] = lambda _fault: False,
    ) -> None:
        """`spawn`: starts a runner. `crowded_out`: whether a fault is that others filled the device, since a panel
        without that baseline would flatter candidates.

        Raises ReferenceFailed when the reference does not run in a runner, Fault when one is lost or crowded out:
        `unusable` is told if that would happen again."""
        self._crowded_out = crowded_out
        self._exhibits, self._spawn, self._record, self._unusable = exhibits, spawn, record, unusable
        self.missing: dict[str, str] = dict(unusable.reasons)
        """Baselines that could not be made, and why."""
        self.short: set[str] = set()
        """Those that found no memory."""
        self._places: dict[str, _Place] = {}
        source, device = exhibits.problem.outline.source, exhibits.device
        self._modes = modes = _modes(device, exhibits.problem.spec)[: 1 if eager_only else None]
        self._full = set(record.latency_us) != {exhibit.name for exhibit in exhibits.workloads}
        wanted = {mode.name for mode in modes} if self._full else {*_ALWAYS, *record.fastest()}
        wanted -= set(unusable.reasons)
        try:
            self.names: list[str] = []
            for mode in modes:
                if mode.name not in wanted:
                    continue
                if self._make(mode, source):
                    self.names.append(mode.name)
                elif mode.name == TRUSTED:  # the first: the others may live in the process that it has spoilt
                    raise ReferenceFailed(f"the reference does not run in a runner: {self.missing[TRUSTED]}")
        except BaseException:
            self.close()  # nobody else has them
            raise

    @property
    def runners(self) -> list[Runner]:
        """The processes that the baselines live in."""
        return [place.runner for place in self._distinct]

    @property
    def _distinct(self) -> list[_Place]:
        return list({id(place): place for place in self._places.values()}.values())

    @property
    def dead(self) -> bool:
        """Whether a baseline has lost its process."""
        return any(runner.dead for runner in self.runners)

    def contenders(self, workload: str) -> list[Contender]:
        """The baselines of one workload, the trusted one (eager) first."""
        fastest = self._record.latency_us.get(workload, {})
        best = min(fastest, key=fastest.__getitem__, default=None)
        chosen = [name for name in self.names if self._full or name in _ALWAYS or name == best]
        return [Contender(name, self._places[name].benches[workload], name) for name in chosen]

    def timed(self, latency_us: Mapping[str, Mapping[str, float]]) -> None:
        """Learn from a race: by workload and baseline, in microseconds."""
        if self._full:
            self._record.keep(latency_us)
            self._full = False

    def learn(self, fault: BaselineFault) -> None:
        """Of a fault in a race. A process that is spoilt is ended, so that the panel is made again; a signal that ended
        one, as another process may send it, says nothing of the baseline."""
        runner = self._places[fault.name].runner
        if _spoilt(fault.cause) and not runner.dead:
            if fault.name != TRUSTED:
                self._unusable.suspect(fault.name, fault.cause.reason)
            runner.close()

    def close(self) -> None:
        """End the runners and release the arenas."""
        for place in self._distinct:
            place.close()

    def _make(self, mode: Mode, source: str) -> bool:
        """Load, construct and warm one baseline on every workload; False (with the reason kept) when it fails."""
        place = self._place(mode.name)
        try:
            place.runner.ask(_loading(mode, source), _REFERENCE_LIMIT_S)
            for bench in place.benches.values():
                bench.construct(mode.name, _REFERENCE_LIMIT_S)
                for number in reversed(range(min(_WARM_CASES, len(bench.cases)))):
                    bench.write(0, number)
                    outputs = bench.run(mode.name, 0, _COMPILE_LIMIT_S)
                self._trim(bench)
                wrong = [found.reason for found in bench.cases[0].judge(outputs) if not found.passed]
                del outputs
                self._trim(bench)
                if wrong and not mode.tf32:  # it stays one, since a user could call it, but it is worth knowing about
                    self.missing[mode.name] = wrong[0]
        except Fault as fault:
            self.missing[mode.name] = fault.reason
            log.warning("baseline.failed", baseline=mode.name, reason=fault.reason)
            self._learn_of(mode, fault)
            ours = mode.name == TRUSTED and _spoilt(fault) and not place.runner.dead  # the problem's own fault
            if not ours and (_lost(fault, place.runner) or self._crowded_out(fault)):
                raise
            if place is not self._places.get(TRUSTED):  # a library that is not here would hold a process
                self._places.pop(mode.name).close()
            return False
        return True

    def _trim(self, bench: Workbench) -> None:
        """Have both processes give back what they only keep: neither can take it from the other. Free blocks of
        comparisons filled 71 of an H100's 79 GiB beside a runner of 7.5 that found none."""
        if self._exhibits.device != "cpu":
            with contextlib.suppress(
                Fault
            ):  # no baseline's fault: whoever asks the runner next is told that it is lost
                bench.trim()
            torch.cuda.empty_cache()

    def _learn_of(self, mode: Mode, fault: Fault) -> None:
        """Of a baseline that could not be made."""
        if OF_MEMORY in fault.reason:
            self.short.add(mode.name)
        if mode.name == TRUSTED:
            return
        if fault.verdict is Verdict.TIMEOUT:
            for name in _at_least_as_long(mode, self._modes):
                self._unusable.add(name, f"not compiled and run within {_COMPILE_LIMIT_S:.0f} s")
        elif _spoilt(fault):
            self._unusable.suspect(mode.name, fault.reason)

    def _place(self, name: str) -> _Place:
        """Where a baseline is to live."""
        device = self._exhibits.device
        shared = next(iter(self._places.values()), None) if device != "cpu" else None
        if shared is None:
            # Kept at once, so that `close` finds what a failure leaves.
            shared = self._places[name] = _Place(self._spawn(), {})
            shared.workshop = self._exhibits.workshop()
            for exhibit in self._exhibits.workloads:
                shared.benches[exhibit.name] = Workbench(
                    shared.runner, exhibit.instance, exhibit.cases, device, exhibit.slots, workshop=shared.workshop
                )
        self._places[name] = shared
        return shared


def _loading(mode: Mode, source: str, *, turns: bool = False) -> dict[str, Any]:
    """The message that loads a baseline. `turns`: all that it does on the device it does alone."""
    message = {"op": "load", "subject": mode.name, "source": source, "class": mode.model}
    return message | {"compile": mode.compile_mode, "tf32": mode.tf32, "turns": turns}


def _modes(device: str, spec: Spec) -> list[Mode]:
    """All baselines for a device. On a CPU the other modes of torch.compile generate the same code."""
    tf32 = spec.precision.tf32 and device != "cpu"
    library = [Mode(f"library_{name}", None, tf32, model) for name, model in spec.library.items()]
    if device == "cpu":
        return [Mode(TRUSTED, None), Mode("compile", "default"), *library]
    modes = [
        Mode(TRUSTED, None),
        Mode("compile", "default", tf32),
        Mode("compile_reduce_overhead", "reduce-overhead", tf32),
        Mode("compile_max_autotune", "max-autotune-no-cudagraphs", tf32),
        Mode("compile_max_autotune_graphs", "max-autotune", tf32),
        *library,
    ]
    return [*modes, Mode("eager_tf32", None, tf32=True)] if tf32 else modes
