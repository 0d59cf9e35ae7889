"""What a run's traces say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from benchmarks.rehearsal import trace
from benchmarks.rehearsal.trace import Interval

_ALONE = (trace.ALONE, trace.TURN)
_WANTED = (trace.TO_SHARE, trace.TO_BE_ALONE, trace.FOR_A_TURN)
_HANDED, _IDLE = "nobody works, though somebody waits for it", "nobody works, nor waits for it"
_OF_COMPILERS = (trace.FOR_A_TURN, trace.TURN, trace.AHEAD)


@dataclass(frozen=True, slots=True)
class Summary:
    """One run."""

    seconds: float
    certified_at: list[float]
    """When operators were through."""
    shares: dict[str, float]
    """Of the run, by what the device was in."""
    beside: float
    """How many worked at a time while it was shared."""
    changes: int
    """Between being had alone and being shared."""
    change_s: float
    """For how long nobody worked at each, on average."""
    judge_s: dict[str, float]
    """By what judges did or waited for; of their other threads only what compilers do."""


def summarise(found: Sequence[Interval], seconds: float) -> Summary:
    """The figures of one run."""
    cut = [replace(each, start=min(each.start, seconds), end=min(each.end, seconds)) for each in found]
    judge_s: dict[str, float] = defaultdict(float)
    for each in cut:
        if (each.main or each.kind in _OF_COMPILERS) and each.kind != trace.DONE:
            judge_s[each.kind] += each.took_s
    steps = _steps(cut, seconds)
    shares = dict.fromkeys((trace.ALONE, trace.TURN, trace.SHARED, _HANDED, _IDLE), 0.0)
    workers_s = 0.0
    for length_s, now in steps:
        shares[_state(now)] += length_s / seconds
        workers_s += length_s * now.get(trace.SHARED, 0)
    gaps = _changes(steps)
    return Summary(
        seconds=seconds,
        certified_at=sorted(each.end for each in found if each.kind == trace.DONE),
        shares=shares,
        beside=workers_s / max(1e-9, shares[trace.SHARED] * seconds),
        changes=len(gaps),
        change_s=sum(gaps) / max(1, len(gaps)),
        judge_s=dict(judge_s),
    )


def overlaps(found: Iterable[Interval]) -> list[tuple[Interval, Interval]]:
    """Pairs that worked at a time though one of them had the device alone: there must be none."""
    works = sorted((each for each in found if each.kind in (*_ALONE, trace.SHARED)), key=lambda each: each.start)
    wrong = list[tuple[Interval, Interval]]()
    last_alone: Interval | None = None
    last: Interval | None = None
    for each in works:
        before = last if each.kind in _ALONE else last_alone
        if before is not None and before.end > each.start:
            wrong.append((before, each))
        if last is None or each.end > last.end:
            last = each
        if each.kind in _ALONE and (last_alone is None or each.end > last_alone.end):
            last_alone = each
    return wrong


def _steps(found: Sequence[Interval], seconds: float) -> list[tuple[float, dict[str, int]]]:
    """Pieces of the run in which nothing changes: their length, and how many do what."""
    moments = [(each.start, each.kind, 1) for each in found] + [(each.end, each.kind, -1) for each in found]
    counts: dict[str, int] = defaultdict(int)
    steps, before = list[tuple[float, dict[str, int]]](), 0.0
    for moment, kind, change in sorted(moments):
        if moment > before:
            steps.append((moment - before, {name: count for name, count in counts.items() if count}))
            before = moment
        counts[kind] += change
    return [*steps, (max(0.0, seconds - before), {})]


def _state(now: dict[str, int]) -> str:
    for kind in (*_ALONE, trace.SHARED):
        if kind in now:
            return kind
    return _HANDED if any(kind in now for kind in _WANTED) else _IDLE


def _changes(steps: Sequence[tuple[float, dict[str, int]]]) -> list[float]:
    """Seconds in which nobody worked though somebody waited, for each change between alone and shared."""
    gaps, gap_s, last = list[float](), 0.0, None
    for length_s, now in steps:
        state = _state(now)
        if state in (_HANDED, _IDLE):
            gap_s += length_s if state == _HANDED else 0.0
            continue
        alone = state in _ALONE
        if last is not None and last != alone:
            gaps.append(gap_s)
        last, gap_s = alone, 0.0
    return gaps
