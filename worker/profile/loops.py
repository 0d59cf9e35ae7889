"""Hot loops of a C++ kernel: where its threads were found, in which loop of the machine code, and what g++ said of it.

The report comes from `worker.languages.cpp_report`, the offsets from `worker.profile.samples`. A sample belongs to the
smallest loop that holds its address. The report was made from hostile source inside the build sandbox, so what it says
is checked for its form here, and its words are only ever shown.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_MOST_LOOPS = 3
_LEAST_SHARE = 0.1
"""A loop with less of the kernel's time is not worth a word."""
_SCALAR_BYTES = 4
_HEAD = re.compile(r"\b(for|while|do)\b")


class Malformed(ValueError):
    """The report is not what `worker.languages.cpp_report` writes."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of the machine code, by its first and last address."""

    start: int
    end: int
    mix: Mapping[str, int]

    @property
    def vector_bytes(self) -> int | None:
        """The width of most of its arithmetic; 4 for scalar code, None where it has none."""
        widths = {_SCALAR_BYTES: self.mix.get("scalar", 0)}
        widths |= {width: self.mix.get(f"packed{width}", 0) for width in (16, 32, 64)}
        width, count = max(widths.items(), key=lambda item: (item[1], item[0]))
        return width if count else None


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in the machine code of one library."""

    shift: int = 0
    """Address less offset in the file."""
    loops: tuple[Loop, ...] = ()
    lines: tuple[tuple[int, int], ...] = ()
    """(address, line of the source), in order."""
    remarks: tuple[tuple[int, str, str], ...] = ()
    """(line, `optimized` or `missed`, text)."""

    @classmethod
    def from_json(cls, data: Any) -> Report:
        """Raises Malformed."""
        try:
            loops = [(int(loop["start"]), int(loop["end"]), loop["mix"]) for loop in data["loops"]]
            return cls(
                int(data["shift"]),
                tuple(Loop(start, end, {str(kind): int(n) for kind, n in mix.items()}) for start, end, mix in loops),
                tuple((int(address), int(line)) for address, line in data["lines"]),
                tuple((int(line), str(kind), str(text)) for line, kind, text in data["remarks"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as broken:
            raise Malformed(f"the report of the loops is malformed: {broken!r}") from broken

    def loop_at(self, address: int) -> Loop | None:
        """The smallest loop that holds the address."""
        holding = [loop for loop in self.loops if loop.start <= address <= loop.end]
        return min(holding, key=lambda loop: loop.end - loop.start, default=None)

    def line_at(self, address: int) -> int | None:
        """The line of the source whose code is at the address."""
        place = bisect_right(self.lines, (address, 1 << 30)) - 1
        return self.lines[place][1] if place >= 0 else None

    def lines_of(self, loop: Loop) -> set[int]:
        """The lines that a loop's code comes from, inlined functions included."""
        return {line for address, line in self.lines if loop.start <= address <= loop.end}


@dataclass(frozen=True, slots=True)
class HotLoop:
    """A loop in which much of the kernel's time goes."""

    share: float
    """Of the samples in the kernel's own code."""
    line: int | None
    """Of the loop itself where the code tells, else the one with most of its samples."""
    text: str
    """That line of the source."""
    vector_bytes: int | None
    why: str = ""
    """What g++ said kept it from vectorising it."""
    mix: Mapping[str, int] = field(default_factory=dict)
    hottest: str = ""
    """The line with most of its samples, where that is another: often an inlined function's."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def hot_loops(report: Report, source: str, offsets: Sequence[int], total: int) -> tuple[HotLoop, ...]:
    """The loops with a tenth or more of `total` samples, hottest first. `offsets`: of the samples, in the library."""
    held: dict[tuple[int, int], list[int]] = {}
    by_place = {(loop.start, loop.end): loop for loop in report.loops}
    for address in (offset + report.shift for offset in offsets):
        loop = report.loop_at(address)
        if loop is not None:
            held.setdefault((loop.start, loop.end), []).append(address)
    ranked = sorted(held.items(), key=lambda item: (-len(item[1]), item[0]))
    texts = source.splitlines()
    return tuple(
        _hot(report, by_place[place], addresses, texts, total)
        for place, addresses in ranked[:_MOST_LOOPS]
        if len(addresses) >= _LEAST_SHARE * total
    )


def _hot(report: Report, loop: Loop, addresses: Sequence[int], texts: Sequence[str], total: int) -> HotLoop:
    sampled = Counter(line for line in map(report.line_at, addresses) if line is not None)
    hottest = sampled.most_common(1)[0][0] if sampled else None
    line = _head(report, loop, texts) or hottest
    return HotLoop(
        round(len(addresses) / total, 3),
        line,
        _text(texts, line),
        loop.vector_bytes,
        _reason(report, loop) if loop.vector_bytes in (None, _SCALAR_BYTES) else "",
        dict(loop.mix),
        f"line {hottest}: {_text(texts, hottest)}" if hottest != line else "",
    )


def _head(report: Report, loop: Loop, texts: Sequence[str]) -> int | None:
    """The line of the loop's own statement: that of its last jump, or else the one before it that begins a loop."""
    last = report.line_at(loop.end) or 0
    heads = [line for line in report.lines_of(loop) | {last} if _HEAD.search(_text(texts, line))]
    return max((line for line in heads if line <= last), default=None) or min(heads, default=None)


def _text(texts: Sequence[str], line: int | None) -> str:
    return plain(texts[line - 1])[:100] if line is not None and 0 < line <= len(texts) else ""


def _reason(report: Report, loop: Loop) -> str:
    """What was said most often of the loop's lines."""
    lines = report.lines_of(loop)
    said = Counter(text for line, kind, text in report.remarks if kind == "missed" and line in lines)
    return plain(said.most_common(1)[0][0]) if said else ""


def plain(text: str) -> str:
    """One line that can be printed: what others wrote must not move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()
