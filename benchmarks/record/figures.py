"""What the record is to show, next to what it shows: each figure with `met`, `missed` or `not measured yet`.

All figures are of the whole suite. An operator counts with its certified kernel after dispatch; one whose jobs have
ended without a certified kernel counts as its fastest baseline, 1x; and while any has yet to be run, or to get its
certificate, no figure of the suite is met.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from benchmarks.record.results import Result, Row, geomean
from problems.catalog import bundled

GEOMEAN: Final = 2.0
MEDIAN: Final = 1.5
FASTER_SHARE: Final = 0.9
MEMORY_SOL: Final = 0.9
CONV1D_OVER_EAGER: Final = 2.5
TRIANGLE_US: Final = 900.0
LIBRARY: Final = "library_"
BESIDE_LIBRARIES: Final = ("rmsnorm_residual", "layernorm", "cross_entropy", "swiglu", "rope")
"""Operators for which users have kernels in libraries."""
COMPILED: Final = ("compile", "compile_reduce_overhead", "compile_max_autotune", "compile_max_autotune_graphs")
"""The modes of torch.compile that are raced on a GPU."""
_TRIANGLE: Final = "triangle_multiplicative_update"


class Outcome(StrEnum):
    """How a figure stands."""

    MET = "met"
    MISSED = "missed"
    OPEN = "not measured yet"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the list."""

    what: str
    wanted: str
    seen: str
    outcome: Outcome
    why: str = ""
    """What is missing, or what missed it."""


@dataclass(frozen=True, slots=True)
class Suite:
    """How far the suite has come on one kind of hardware."""

    hardware: str
    certified: tuple[Result, ...]
    failed: tuple[str, ...]
    """Their jobs have ended without a certified kernel."""
    judged: tuple[str, ...]
    """They have a judged kernel, and neither a certificate nor a refusal yet."""
    unseen: tuple[str, ...]
    """Not run yet."""

    @property
    def total(self) -> int:
        """All its operators."""
        return len(self.certified) + len(self.failed) + self.open

    @property
    def open(self) -> int:
        """Operators of which nothing can be said yet."""
        return len(self.judged) + len(self.unseen)

    @property
    def progress(self) -> str:
        """How many have been run to their end."""
        return f"{self.total - self.open} of {self.total} run"

    @property
    def speedups(self) -> list[float]:
        """After dispatch, of the operators that were run to their end."""
        return [each.dispatched for each in self.certified] + [1.0] * len(self.failed)


def suite_of(
    hardware: str, results: Sequence[Result], without: Sequence[str] = (), unseen: Sequence[str] = ()
) -> Suite:
    """`without`: operators whose jobs found nothing, `unseen`: not run yet."""
    refused = [each.problem for each in results if each.stated is not None and not each.certified]
    return Suite(
        hardware=hardware,
        certified=tuple(each for each in results if each.certified),
        failed=tuple(sorted((*without, *refused))),
        judged=tuple(each.problem for each in results if each.stated is None),
        unseen=tuple(unseen),
    )


def figures(suite: Suite) -> list[Figure]:
    """The whole list. The last lines are of workloads for a GPU."""
    general: tuple[Callable[[Suite], Figure], ...] = (_certified, _geomean, _median, _faster, _slower, _memory)
    found = [figure(suite) for figure in general]
    if suite.hardware != "cpu":
        found += [_conv1d(suite), _triangle(suite), *(_beside_libraries(suite, name) for name in BESIDE_LIBRARIES)]
    return found


def _certified(suite: Suite) -> Figure:
    seen = f"{len(suite.certified)} of {suite.total}"
    why = f"without one: {', '.join(suite.failed)}" if suite.failed else ""
    outcome = Outcome.MISSED if suite.failed else _decided(suite, good=True)
    return Figure("operators with a certified kernel", "all", seen, outcome, why or _progress(suite))


def _geomean(suite: Suite) -> Figure:
    value = geomean(suite.speedups)
    return _of_all(suite, "geometric mean of the speedup, after dispatch", value, GEOMEAN)


def _median(suite: Suite) -> Figure:
    value = statistics.median(suite.speedups or [float("nan")])
    return _of_all(suite, "median of the speedup, after dispatch", value, MEDIAN)


def _of_all(suite: Suite, what: str, value: float, least: float) -> Figure:
    seen = f"{value:.2f}x" if suite.speedups else ""
    return Figure(what, f">= {least:.1f}x", seen, _decided(suite, good=value >= least), _progress(suite))


def _faster(suite: Suite) -> Figure:
    """On some workload: on none is it slower after dispatch."""
    faster = sum(value > 1.0 for value in suite.speedups)
    everywhere = sum(all(row.wins for row in each.rows) for each in suite.certified)
    seen = f"{faster} of {len(suite.speedups)}, {everywhere} of them on every workload beyond the interval"
    wanted = FASTER_SHARE * suite.total
    hopeless = faster + suite.open < wanted
    outcome = Outcome.MISSED if hopeless else _decided(suite, good=faster >= wanted)
    what = "operators faster than every baseline, after dispatch"
    return Figure(what, f">= {FASTER_SHARE:.0%}", seen, outcome, _progress(suite))


def _slower(suite: Suite) -> Figure:
    """The kernel runs where it wins, and the fastest baseline elsewhere: what is left to look for is a workload that
    the kernel is given although one of the baselines had the smaller median in the same race."""
    rows = [row for each in suite.certified for row in each.rows]
    slower = [row for row in rows if row.wins and row.ours_us > min(row.raced_us.values())]
    seen = f"{len(slower)} of {len(rows)}"
    outcome = Outcome.MISSED if slower else _decided(suite, good=True)
    baselines = sum(not row.wins for row in rows)
    why = "; ".join(
        part for part in (_progress(suite), f"{baselines} run the fastest baseline" if baselines else "") if part
    )
    return Figure("workloads slower than the fastest baseline, after dispatch", "0", seen, outcome, why)


def _memory(suite: Suite) -> Figure:
    """What has no kernel has no bound either: it counts as long as it could change the answer, had it reached 0."""
    known = [each.sol_fraction for each in suite.certified if each.bound == "memory" and each.sol_fraction is not None]
    what, wanted = "memory-bound operators: median share of the speed of light", f">= {MEMORY_SOL:.2f}"
    if not known:
        return Figure(what, wanted, "", Outcome.OPEN, _progress(suite))
    value = statistics.median(known)
    outcome, why = _decided(suite, good=value >= MEMORY_SOL), _progress(suite)
    if outcome == Outcome.MET and statistics.median([*known, *[0.0] * len(suite.failed)]) < MEMORY_SOL:
        outcome, why = Outcome.OPEN, "those without a kernel may be among them"
    return Figure(what, wanted, f"{value:.2f} (of {len(known)})", outcome, why)


def _conv1d(suite: Suite) -> Figure:
    what, wanted = "`conv1d` over eager, workload `fp16`", f">= {CONV1D_OVER_EAGER:.1f}x"
    rows = [row for row in _rows(suite, "conv1d") if row.workload == "fp16" and "eager" in row.raced_us]
    if not rows:
        return _of_one(suite, "conv1d", what, wanted)
    value = rows[0].raced_us["eager"] / rows[0].ours_us
    return Figure(what, wanted, f"{value:.2f}x", _verdict(value >= CONV1D_OVER_EAGER))


def _triangle(suite: Suite) -> Figure:
    listed = {each.name for each in bundled()[_TRIANGLE].spec.workloads_for(suite.hardware)}
    what = f"`{_TRIANGLE}`: geometric mean of its {len(listed)} workloads"
    wanted = f"<= {TRIANGLE_US / 1e3:.2f} ms"
    times = {row.workload: row.ours_us for row in _rows(suite, _TRIANGLE) if row.workload in listed}
    if not times:
        return _of_one(suite, _TRIANGLE, what, wanted)
    value, all_of_them = geomean(times.values()), len(times) == len(listed)
    outcome = _verdict(value <= TRIANGLE_US) if all_of_them else Outcome.OPEN
    return Figure(what, wanted, f"{value / 1e3:.2f} ms", outcome, "" if all_of_them else f"{len(times)} workloads")


def _beside_libraries(suite: Suite, name: str) -> Figure:
    """The kernel alone, geometric mean over the workloads against each of them."""
    what, wanted = f"`{name}` over its library's kernels and every mode of torch.compile", "> 1x each"
    found = [each for each in suite.certified if each.problem == name]
    if not found:
        return _of_one(suite, name, what, wanted)
    over = found[0].over
    rivals = {rival: value for rival, value in over.items() if rival in COMPILED or rival.startswith(LIBRARY)}
    absent = [mode for mode in COMPILED if mode not in rivals and mode not in found[0].unmade]
    absent += [] if any(rival.startswith(LIBRARY) for rival in rivals) else ["a library's kernel"]
    seen = ", ".join(f"{rival} {value:.2f}x" for rival, value in sorted(rivals.items(), key=lambda pair: pair[1]))
    if any(value <= 1.0 for value in rivals.values()):
        return Figure(what, wanted, f"no: {seen}", Outcome.MISSED)
    if absent:
        return Figure(what, wanted, seen, Outcome.OPEN, f"not raced: {', '.join(absent)}")
    return Figure(what, wanted, f"yes: {seen}", Outcome.MET)


def _of_one(suite: Suite, name: str, what: str, wanted: str) -> Figure:
    """A figure of one operator whose certified kernel, if it has one, was not timed on what is asked for."""
    if name in suite.failed:
        return Figure(what, wanted, "", Outcome.MISSED, "no certified kernel")
    reasons = [(suite.unseen, "not run"), (suite.judged, "no certificate yet")]
    why = next((reason for names, reason in reasons if name in names), "no such workload in its result")
    return Figure(what, wanted, "", Outcome.OPEN, why)


def _rows(suite: Suite, name: str) -> Iterator[Row]:
    return (row for each in suite.certified if each.problem == name for row in each.rows)


def _decided(suite: Suite, *, good: bool) -> Outcome:
    return _verdict(good) if suite.total and not suite.open else Outcome.OPEN


def _verdict(good: bool) -> Outcome:
    return Outcome.MET if good else Outcome.MISSED


def _progress(suite: Suite) -> str:
    return suite.progress if suite.open or not suite.total else ""
