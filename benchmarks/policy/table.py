"""The figures as Markdown tables, for `docs/search.md`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.policy.contenders import USUAL


def pools(facts: Mapping[str, Any]) -> str:
    """What was recorded."""
    lines = [
        "| problem | programs | accepted | slowest | median | fastest | interval's width | judge |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, pool in facts.items():
        accepted = pool["verdicts"].get("ok", 0) / pool["programs"]
        speedup = pool["speedup"]
        lines.append(
            f"| {name} | {pool['programs']} | {accepted:.0%} | {speedup['slowest']:.2f} | {speedup['median']:.2f} "
            f"| {speedup['fastest']:.2f} | {pool['interval_width_median']:.2f} | {pool['judge_s']} s |"
        )
    return "\n".join(lines)


def compared(rows: Mapping[str, Any], ours: str) -> str:
    """One line a contender, the best area first; wins are those of `ours` over it."""
    lines = [
        f"| policy | reached (median) | area (median) | {ours} ahead: reached | {ours} ahead: area | USD | device s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["area"][0]):
        wins = ["–" if name == ours else _share(row[f"{figure}_wins"]) for figure in ("reached", "area")]
        lines.append(
            f"| {name} | {_interval(row['reached'])} | {_interval(row['area'])} | {wins[0]} | {wins[1]} "
            f"| {row['cost_usd']:.2f} | {row['device_s']:.0f} |"
        )
    return "\n".join(lines)


def ablated(rows: Mapping[str, Any]) -> str:
    """One line a lever: what switching it changes on average, with an interval; below zero it is right as it is."""
    lines = ["| switched | reached: change | area: change | verdict |", "|---|---|---|---|"]
    for name, row in rows.items():
        if name != USUAL:
            reached, area = row["reached_difference"], row["area_difference"]
            lines.append(f"| {name} | {_signed(reached)} | {_signed(area)} | {_verdict(area)} |")
    return "\n".join(lines)


def live(figures: Mapping[str, Any]) -> str:
    """One line a policy of the live searches."""
    ours = figures["ours"]
    done = ", ".join(f"{name} {count} seeds" for name, count in figures["seeds"].items())
    lines = [
        f"Budget {figures['budget']}; {done}.\n",
        f"| policy | reached (median) | area (median) | {ours} ahead: reached | {ours} ahead: area |",
        "|---|---|---|---|---|",
    ]
    for name, row in sorted(figures["policies"].items(), key=lambda item: -item[1]["area"][0]):
        wins = ["–" if name == ours else _share(row[f"{figure}_wins"]) for figure in ("reached", "area")]
        lines.append(f"| {name} | {_interval(row['reached'])} | {_interval(row['area'])} | {wins[0]} | {wins[1]} |")
    return "\n".join(lines)


def _interval(figures: list[float]) -> str:
    return f"{figures[0]:.3f} [{figures[1]:.3f}, {figures[2]:.3f}]"


def _signed(figures: list[float]) -> str:
    return f"{figures[0]:+.3f} [{figures[1]:+.3f}, {figures[2]:+.3f}]"


def _share(figures: list[float]) -> str:
    return f"{figures[0]:.0%} [{figures[1]:.0%}, {figures[2]:.0%}]"


def _verdict(figures: list[float]) -> str:
    if figures[2] < 0:
        return "right as it is"
    return "better switched" if figures[1] > 0 else "no difference shown"
