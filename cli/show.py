"""How results look as text: one wording of a speedup, a latency and a verdict for tables and for plain lines."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    # For `kernelwright evaluate` this module must not need an HTTP client.
    from cli.client import Estimate, Job
    from cli.client.types import Expected

# One line of a terminal; what is longer belongs to --json.
_VALUE_CHARS = 120

# Control characters but line ends and tabs, DEL to the end of C1, and what turns the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# What a reader looks for first; the database keeps the fields of an event in no order of ours.
_FIRST = ("ordinal", "operator", "proposer", "model", "verdict", "speedup", "latency_us")

STATE_STYLE = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "cancelling": "yellow"}


def on_terminal() -> bool:
    """Whether stdout is a terminal: a live table there, plain lines elsewhere."""
    return sys.stdout.isatty()


def console() -> Console:
    """A console on the present stdout. Its words are the service's data, so nothing in them is taken for markup."""
    return Console(highlight=False, markup=False, emoji=False)


def inert(text: str) -> str:
    """The text with everything that could move a cursor, ring, recolour or turn the direction written as an escape.

    Sources, reasons and logs are written by models and by hostile code.
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def say(text: str) -> None:
    """A line of results."""
    typer.echo(inert(text))


def say_source(source: str) -> None:
    """A source or a listing: as it is for a file or a pipe, inert on a terminal."""
    shown = inert(source) if on_terminal() else source
    # color: or click takes what looks like a colour out of what goes into a pipe
    typer.echo(shown, nl=not source.endswith("\n"), color=True)


def put_json(value: object) -> None:
    """One JSON value on one line, at once: a reader of the pipe must not wait for a buffer."""
    typer.echo(_CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], json.dumps(value, ensure_ascii=False)))


def note(text: str) -> None:
    """A line for the reader, on stderr: stdout stays what a script wants."""
    typer.echo(inert(text), err=True)


def speedup(value: float | None) -> str:
    """`1.83x`, or a dash."""
    return "-" if value is None else f"{value:.2f}x"


def latency(value_us: float | None) -> str:
    """`12.3 us` or `4.56 ms`, or a dash."""
    if value_us is None:
        return "-"
    return f"{value_us:.1f} us" if value_us < 1000 else f"{value_us / 1000:.2f} ms"


def interval(ci95: Sequence[float] | None) -> str:
    """`[1.80, 1.86]`, or nothing."""
    return "" if not ci95 else f"[{ci95[0]:.2f}, {ci95[1]:.2f}]"


def moment(at: str | None) -> str:
    """An RFC 3339 time in the reader's zone, to the second, or a dash."""
    return "-" if at is None else datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def target(job: Job) -> str:
    """`cpu:cpp`, as --target takes it."""
    return f"{job['target']['hardware']}:{job['target']['language']}"


def fields(values: Mapping[str, Any]) -> str:
    """`verdict=ok speedup=1.83`: what has no value is left out, what is long is cut, what matters most comes first."""
    names = [*(name for name in _FIRST if name in values), *(name for name in values if name not in _FIRST)]
    return " ".join(f"{name}={_value(values[name])}" for name in names if values[name] not in (None, "", [], {}))


def outcome(job: Job) -> str:
    """A job in one line: how it ended or where it is, its best and what it cost."""
    tried = job["progress"]["candidates"].get("evaluated", 0)
    parts = [f"{job['state']} ({job['stop_reason']})" if job["stop_reason"] else job["state"]]
    best = job["best"]
    if best is not None:
        against = f" over {best['baseline']}" if best["baseline"] else ""
        gain = f"{speedup(best['speedup'])} {interval(best['ci95'])}".rstrip()
        parts.append(f"best {gain}{against}, {latency(best['latency_us'])}")
    elif job["error"]:
        parts.append(job["error"])
    parts.append(f"{tried} candidates judged, {money(job)}, {job['cost']['gpu_s']:.0f} GPU s")
    return ": ".join((job["id"], "; ".join(parts)))


def money(job: Job) -> str:
    """What the models took: `$0.12`, and how many calls nobody knows the price of."""
    unpriced = job["cost"].get("unpriced_calls", 0)
    return f"${job['cost']['llm_usd']}" + (f" and {unpriced} calls of unknown price" if unpriced else "")


def estimate(found: Estimate) -> str:
    """What a job may cost, in one line."""
    usd, gpu_s = found["usd"], found["gpu_s"]
    parts = []
    if found["llm_calls"]["high"]:
        tokens: Expected = {
            "low": found["tokens_in"]["low"] + found["tokens_out"]["low"],
            "high": found["tokens_in"]["high"] + found["tokens_out"]["high"],
        }
        parts = [f"{_span(found['llm_calls'])} model calls", f"{_span(tokens)} tokens"]
        prices = f"an unknown price ({', '.join(found['unknown_prices'])})"
        parts.append(prices if usd is None else f"${float(usd['low']):.2f} to ${float(usd['high']):.2f}")
    if gpu_s is not None:
        parts.append(f"{_span(gpu_s)} s of the device")
    return ", ".join(parts) or "no model calls; the device's time is not known yet"


def _span(values: Expected) -> str:
    return f"{values['low']:,.0f} to {values['high']:,.0f}"


def counts(by_word: Mapping[str, int]) -> str:
    """`3 running, 0 queued`."""
    return ", ".join(f"{count} {word}" for word, count in by_word.items())


def table(columns: Iterable[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Rows as a table on a terminal, tab-separated with a heading when piped. `empty` says what none means."""
    heads, lines = list(columns), [list(row) for row in rows]
    if not lines:
        note(empty)
    elif on_terminal():
        grid = Table(*heads, box=None, header_style="bold", pad_edge=False)
        for line in lines:
            grid.add_row(*map(inert, line))
        console().print(grid)
    else:
        for line in [heads, *lines]:
            say("\t".join(" ".join(cell.split()) for cell in line))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    text = text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}…"
    return f'"{text}"' if isinstance(value, str) and (" " in text or "=" in text) else text
