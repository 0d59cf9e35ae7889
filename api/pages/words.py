"""How figures look on a page: one wording of a speedup, a time and a price for all templates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

NONE: Final = "–"


def speedup(value: float | None) -> str:
    """1.84×."""
    return NONE if value is None else f"{value:.2f}×"


def interval(value: tuple[float, float] | list[float] | None) -> str:
    """[1.75, 1.93], or nothing."""
    return "" if not value else f"[{value[0]:.2f}, {value[1]:.2f}]"


def latency(value_us: float | None) -> str:
    """In the unit that leaves few digits."""
    if value_us is None:
        return NONE
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if value_us >= size:
            return f"{_three(value_us / size)} {unit}"
    return f"{_three(value_us)} µs"


def _three(value: float) -> str:
    """Three digits, also where the last are zeros, so that columns can be compared."""
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:.0f}"


def usd(value: Decimal | float | None) -> str:
    """$0.42; small amounts keep the digits that say something."""
    if value is None:
        return NONE
    amount = float(value)
    return f"${amount:.4f}" if 0 < amount < 0.01 else f"${amount:,.2f}"


def seconds(value: float | None) -> str:
    """8.1 s, 3 min 20 s, 2 h 5 min."""
    if value is None:
        return NONE
    if value < 60:
        return f"{value:.3g} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def count(value: float | None) -> str:
    """1,234,567."""
    return NONE if value is None else f"{value:,.0f}"


def figure(value: Any) -> str:
    """A figure of a check: few digits, words as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return visible(value)
    return f"{value:.4g}"


def percent(value: float | None) -> str:
    """37 %."""
    return NONE if value is None else f"{value * 100:.0f} %"


def signed(value: float) -> str:
    """+0.12; what rounding leaves of nothing is 0."""
    return "0" if abs(value) < 1e-9 else f"{value:+.3g}"


def moment(value: datetime) -> str:
    """2026-11-22 13:04:05 UTC."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(value: datetime) -> str:
    """How long ago that was, coarsely: a page that changes each second is never unchanged."""
    past_s = (datetime.now(UTC) - value).total_seconds()
    if past_s < 60:
        return "just now"
    for size_s, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if past_s >= size_s:
            number = int(past_s // size_s)
            return f"{number} {unit}{'' if number == 1 else 's'} ago"
    return "just now"


def spaced(word: object) -> str:
    """`budget_candidates` as words."""
    return str(word).replace("_", " ")


def visible(content: object) -> str:
    """Text with control and direction characters made visible: a right-to-left override in a candidate's source can
    show a reader another program than the one that ran."""
    return "".join(_visible(char) for char in str(content))


def _visible(char: str) -> str:
    code = ord(char)
    hidden = code < 0x20 and char not in "\n\t" or 0x7F <= code < 0xA0
    turning = 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069 or code in (0x200B, 0x200E, 0x200F, 0xFEFF)
    return f"⟨U+{code:04X}⟩" if hidden or turning or 0xD800 <= code <= 0xDFFF else char


_TONES: Final = {
    "ok": "good",
    "succeeded": "good",
    "active": "good",
    "confirmed": "good",
    "running": "busy",
    "evaluating": "busy",
    "proposing": "busy",
    "cancelling": "warn",
    "draining": "warn",
    "suspicious": "warn",
    "infra_error": "warn",
    "tentative": "warn",
    "failed": "bad",
    "build_error": "bad",
    "launch_error": "bad",
    "illegal_access": "bad",
    "timeout": "bad",
    "incorrect": "bad",
    "nondeterministic": "bad",
    "quarantined": "bad",
}


def tone(word: object) -> str:
    """The colour of a state or a verdict; the word itself always stands beside it."""
    return _TONES.get(str(word), "calm")


FILTERS: Final[dict[str, Callable[..., str]]] = {
    "speedup": speedup,
    "interval": interval,
    "latency": latency,
    "usd": usd,
    "seconds": seconds,
    "count": count,
    "figure": figure,
    "percent": percent,
    "signed": signed,
    "moment": moment,
    "ago": ago,
    "spaced": spaced,
    "visible": visible,
    "tone": tone,
}
