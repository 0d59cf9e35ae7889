"""Inline SVG by hand: scales, axes and marks. Colours are classes: the page's style sets them for light and dark.

Every text goes through `text`, which escapes it: names of problems, workloads and candidates are not ours.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixels, linearly or by their logarithm. Values outside are moved to the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Pixels of a value."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        share = math.log(at / low) / math.log(high / low) if self.log else (at - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, most: int = 7) -> list[float]:
        """Round values to mark: powers of ten on a logarithmic scale; 1, 2 or 5 times one otherwise."""
        if not self.log:
            return _round_steps(self.low, self.high, most)
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / most))
        return [10.0**power for power in range(first, last + 1, step)]


def log_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """Whole decades around positive values; a decade of its own when there are none."""
    usable = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
    low, high = math.floor(math.log10(min(usable)) - 1e-9), math.ceil(math.log10(max(usable)) + 1e-9)
    return Scale(10.0**low, 10.0 ** max(high, low + 1), start, end, log=True)


def power_of_ten(value: float) -> str:
    """10⁻⁴ for 0.0001; 1 and 10 stay as they are."""
    power = round(math.log10(value))
    return {0: "1", 1: "10"}.get(power) or f"10{str(power).translate(_SUPERSCRIPT)}"


def figure(width: int, height: float, title: str, description: str, body: Sequence[str]) -> str:
    """A drawing that scales with the page and says in words what it shows."""
    return (
        f'<svg viewBox="0 0 {width} {height:g}" role="img" preserveAspectRatio="xMinYMin meet">'
        f"<title>{clean(title)}</title><desc>{clean(description)}</desc>{''.join(body)}</svg>"
    )


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    """One line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{clean(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


def circle(x: float, y: float, radius: float, kind: str, hint: str = "") -> str:
    """A dot, with a hint for the pointer."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{kind}">{_hint(hint)}</circle>'


def rect(x: float, y: float, width: float, height: float, kind: str, hint: str = "") -> str:
    """A rectangle."""
    size = f'width="{max(width, 0):g}" height="{height:g}"'
    return f'<rect x="{x:g}" y="{y:g}" {size} class="{kind}">{_hint(hint)}</rect>'


def path(points: Sequence[tuple[float, float]], kind: str, *, closed: bool = False) -> str:
    """A line through points, or the area that it encloses."""
    steps = " ".join(f"{'L' if index else 'M'}{x:g} {y:g}" for index, (x, y) in enumerate(points))
    return f'<path d="{steps}{" Z" if closed else ""}" class="{kind}"/>'


def grid_x(scale: Scale, top: float, bottom: float, label: str) -> list[str]:
    """Vertical grid lines with their values below, and the axis's name."""
    parts = []
    for tick in scale.ticks():
        x = scale(tick)
        name = power_of_ten(tick) if scale.log else f"{tick:g}"
        parts += [line(x, top, x, bottom, "grid"), text(x, bottom + 17, name, "tick", "middle")]
    return [*parts, text(scale.end, bottom + 35, label, "axis", "end")]


def grid_y(scale: Scale, left: float, right: float, label: str) -> list[str]:
    """Horizontal grid lines with their values at the left, and the axis's name on top."""
    parts = []
    for tick in scale.ticks(6):
        y = scale(tick)
        name = power_of_ten(tick) if scale.log else f"{tick:g}"
        parts += [line(left, y, right, y, "grid"), text(left - 7, y + 4, name, "tick", "end")]
    return [*parts, text(left - 7, scale.end - 12, label, "axis")]


def clean(content: object) -> str:
    """Text that is safe in HTML and SVG, with control and direction characters made visible: candidates write some of
    it, and a right-to-left override can show a reader another program than the one that ran."""
    return html.escape("".join(_visible(char) for char in str(content)))


def _visible(char: str) -> str:
    code = ord(char)
    hidden = code < 0x20 and char not in "\n\t" or 0x7F <= code < 0xA0
    turning = 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069 or code in (0x200B, 0x200E, 0x200F, 0xFEFF)
    return f"⟨U+{code:04X}⟩" if hidden or turning or 0xD800 <= code <= 0xDFFF else char


def _hint(content: str) -> str:
    return f"<title>{clean(content)}</title>" if content else ""


def _round_steps(low: float, high: float, most: int) -> list[float]:
    raw = (high - low) / max(most - 1, 1)
    if raw <= 0:
        return [low]
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first
    return [round((first + index) * step, 12) for index in range(count + 1)]
