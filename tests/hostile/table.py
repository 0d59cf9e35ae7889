"""The table of docs/sandbox.md: attempt by level, refused or not covered and why, from results."""

from __future__ import annotations

from collections.abc import Iterable

from tests.hostile.attempt import Attempt, Outcome
from worker.runner.sandbox import LEVELS


def table(outcomes: Iterable[Outcome]) -> str:
    """Markdown, one row for each attempt, in the order of the corpus."""
    found: dict[str, dict[str, Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.attempt.id, {})[outcome.level] = outcome
    rows = ["| topic | the candidate ... | " + " | ".join(f"`{level}`" for level in LEVELS) + " |"]
    rows.append("|---|---|" + "---|" * len(LEVELS))
    for by_level in found.values():
        attempt = next(iter(by_level.values())).attempt
        cells = [_cell(by_level.get(level)) for level in LEVELS]
        rows.append(f"| {attempt.topic} | {attempt.what} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def headings(attempts: Iterable[Attempt]) -> list[str]:
    """What the rows' second column says."""
    return [attempt.what for attempt in attempts]


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not tried"
    why = outcome.attempt.uncovered.get(outcome.level)
    if not outcome.seen:
        return "refused"
    return f"not covered: {why}" if why else f"**{outcome.seen}**"
