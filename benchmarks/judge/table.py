"""The Markdown table: each figure, what it must be, and whether it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Figures = Mapping[str, Any]
Row = tuple[str, str, str, bool | None]
"""Figure, measured, must be, met (None: not required here)."""


def table(results: Mapping[str, Any]) -> str:
    """All parts that were finished."""
    rows: list[Row] = []
    for part, write in _WRITERS.items():
        figures = results["parts"].get(part, {}).get("figures")
        if figures is not None:
            rows += write(figures, on_gpu=results["hardware"] != "cpu")
    lines = ["| figure | measured | must be | met |", "|---|---|---|---|"]
    words = {True: "yes", False: "**no**", None: "-"}
    return "\n".join([*lines, *(f"| {what} | {found} | {must} | {words[met]} |" for what, found, must, met in rows)])


def _aa(figures: Figures, *, on_gpu: bool) -> list[Row]:
    timed = figures["interval_holds_1"]["of"]
    one_in = f"{timed} timed of {figures['runs']} runs ({figures['wanted']} wanted)"
    rows = [
        _share_row(f"A/A: the 95 % interval holds 1; {one_in}", figures["interval_holds_1"], "at least 93 %", 0.93),
        _share_row("A/A: interval's lower end above 1.02", figures["false_faster_interval"], "at most 1 %", most=0.01),
        _share_row("A/A: would be announced as 2 % faster", figures["false_faster_claim"], "at most 1 %", most=0.01),
        _share_row("A/A: point estimate above 1.02", figures["false_faster_estimate"], "-"),
        _share_row("A/A: resampled interval alone holds 1", figures["resampled_interval_holds_1"], "-"),
        ("A/A: width of the interval, median", _of(figures["interval_width"], "median", "{:.2%}"), "-", None),
        ("A/A: ratio, median (lowest to highest)", _range(figures["ratio"]), "-", None),
    ]
    return [*rows, *(("A/A: not `ok`", text, "none", False) for text in figures["not_ok"])]


def _planted(figures: Figures, *, on_gpu: bool) -> list[Row]:
    must = ("at least 95 %", 0.95) if on_gpu else ("-", None)
    what = f"planted improvement, {figures['planted']:.2%} by the calibration: detected"
    return [
        _share_row(f"{what}; {figures['runs']} runs", figures["detected"], must[0], must[1]),
        ("planted: slow over fast, median (lowest to highest)", _range(figures["ratio"]), "-", None),
        _share_row("planted: control (same code twice) told apart", figures["twin_told_apart"], "-"),
        ("planted: width of the interval, median", _of(figures["interval_width"], "median", "{:.2%}"), "-", None),
        *(("planted: failed run", text, "none", False) for text in figures["errors"]),
    ]


def _cost(figures: Figures, *, on_gpu: bool) -> list[Row]:
    bad_s, survivor_s = figures["bad_gpu_s"], figures["survivor_wall_s"]
    counted = f"{figures['candidates']} candidates, {figures['bad']} bad"
    rows = [
        _limit_row("a bad candidate's device seconds until rejection, median", bad_s, 1.5, on_gpu),
        (
            "mean of them (the slowest)",
            f"{_of(bad_s, 'mean', '{:.2f} s')} ({_of(bad_s, 'max', '{:.1f} s')})",
            "-",
            None,
        ),
        _limit_row("a survivor's judgement, wall seconds, median", survivor_s, 12.0, on_gpu),
        _rate_row(f"judged per device-hour ({counted})", figures["per_gpu_hour"], 600 if on_gpu else None),
        _rate_row("judged per hour by the wall clock", figures["per_hour_by_wall"], None),
        ("bad candidates accepted", _names(figures["bad_accepted"]), "0", not figures["bad_accepted"]),
        ("good candidates rejected", _names(figures["good_rejected"]), "0", not figures["good_rejected"]),
    ]
    return [*rows, *(("the judge's own failure", text, "none", False) for text in figures["infra_errors"])]


def _protocol(figures: Figures, *, on_gpu: bool) -> list[Row]:
    ratio, built = figures["judge_over_protocol"], figures.get("built_s")
    met = None if ratio is None or not on_gpu else ratio <= 0.5
    must = "at most 50 %" if on_gpu else "-"
    ours_s, theirs_s = (_number(figures[key], "{:.2f}") for key in ("judge_mean_gpu_s", "protocol_mean_held_s"))
    held = f"{ours_s} s of {theirs_s} s"
    rows: list[Row] = [
        (f"device seconds held per candidate, judge of protocol ({figures['compared']} judged by both)",
         f"{_number(ratio, '{:.0%}')} ({held})", must, met),
        _rate_row("protocol: candidates per device-hour", figures["per_gpu_hour"], None),
        _share_row("protocol: bad candidates accepted", figures["bad_accepted"], "-"),
        ("protocol: accepted bad ones", ", ".join(figures["bad_accepted_ids"]) or "none", "-", None),
        ("protocol: good candidates rejected", _names(figures["good_rejected"]), "-", None),
    ]  # fmt: skip
    if built is not None:
        shorter = f"{figures['judge_over_protocol_without_builds']:.0%}"
        took = f"({built['median']:.0f} s a CUDA candidate by load_inline, median)"
        rows.append((f"the same, without the protocol's builds {took}", shorter, "-", None))
    return rows


_WRITERS = {"aa": _aa, "planted": _planted, "cost": _cost, "protocol": _protocol}


def _share_row(what: str, found: Figures, must: str, least: float | None = None, most: float | None = None) -> Row:
    value = found["share"]
    if value is None:
        return what, "no runs", must, None if must == "-" else False
    low, high = found["ci95"]
    met = None if least is None and most is None else value >= (least or 0.0) and value <= (most or 1.0)
    return what, f"{found['hits']} of {found['of']} = {value:.0%} [{low:.0%}, {high:.0%}]", must, met


def _limit_row(what: str, found: Figures | None, limit_s: float, required: bool) -> Row:
    met = None if not required else found is not None and found["median"] <= limit_s
    return what, _of(found, "median", "{:.2f} s"), f"at most {limit_s:g} s" if required else "-", met


def _rate_row(what: str, rate: float | None, least: float | None) -> Row:
    must = "-" if least is None else f"at least {least:g}"
    return what, _number(rate, "{:.0f}"), must, None if least is None else rate is not None and rate >= least


def _names(names: list[str]) -> str:
    return f"{len(names)}: {'; '.join(name[:100] for name in names)}" if names else "0"


def _range(found: Figures | None) -> str:
    return "no runs" if found is None else f"{found['median']:.4f} ({found['min']:.4f} to {found['max']:.4f})"


def _of(found: Figures | None, key: str, form: str) -> str:
    return "no runs" if found is None else form.format(found[key])


def _number(value: float | None, form: str) -> str:
    return "not measured" if value is None else form.format(value)
