"""What a person watches on a terminal: the job's head, its progress bar and the last candidates, as one rich picture.

Events say what happens; the counts, the cost and the best come from the job itself, so that the numbers shown are those
that the API gives everybody else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli import show
from cli.client import Event, Job

# With head, bar and borders it fits a terminal of 24 lines.
SHOWN = 14

VERDICT_STYLE = {"ok": "green", "infra_error": "magenta"}

# Until there is a verdict, what the last event says about where the candidate is.
STAGE = {
    "candidate.created": "proposing",
    "candidate.proposed": "queued",
    "candidate.evaluating": "evaluating",
    "candidate.rejected": "rejected",
}


@dataclass(slots=True)
class Row:
    """One candidate as far as the events have told."""

    candidate_id: str
    ordinal: int | None = None
    operator: str | None = None
    proposer: str | None = None
    model: str | None = None
    verdict: str | None = None
    speedup: float | None = None
    latency_us: float | None = None
    reason: str | None = None
    failure: str | None = None
    detail: str | None = None
    stage: str = "proposing"

    @property
    def why(self) -> str:
        """What is wrong with it, in one line; empty when nothing is."""
        told = (self.failure, self.detail, self.reason if self.verdict != "ok" else None)
        return " ".join(": ".join(part for part in told if part).split())


_FROM_EVENT = frozenset(field.name for field in fields(Row)) - {"candidate_id", "stage"}


class Board:
    """The picture of one job. `elapsed_s` tells how long it has run, for the head."""

    def __init__(self, job: Job, elapsed_s: Callable[[Job], float]) -> None:
        self.job = job
        self._elapsed_s = elapsed_s
        self._rows: OrderedDict[str, Row] = OrderedDict()

    @property
    def rows(self) -> list[Row]:
        """The candidates that spoke last, the newest at the end."""
        return list(self._rows.values())

    def apply(self, event: Event) -> None:
        """Take in one event."""
        data = event["data"]
        candidate_id = data.get("candidate_id")
        if not isinstance(candidate_id, str) or not event["type"].startswith("candidate."):
            return
        row = self._rows.setdefault(candidate_id, Row(candidate_id))
        for name in _FROM_EVENT & data.keys():
            setattr(row, name, data[name])
        row.stage = STAGE.get(event["type"], row.stage)
        self._rows.move_to_end(candidate_id)
        while len(self._rows) > SHOWN:
            self._rows.popitem(last=False)

    def __rich__(self) -> RenderableType:
        return Group(self._head(), self._bar(), self._counts(), Text(), self._candidates())

    def _head(self) -> Text:
        job = self.job
        state = Text(job["state"], style=show.STATE_STYLE.get(job["state"], ""))
        name, elapsed = (job["problem"]["name"], "bold"), f"  {self._elapsed_s(job):.0f} s  "
        return Text.assemble(name, " on ", show.target(job), "  ", state, elapsed, (job["id"], "dim"))

    def _bar(self) -> RenderableType:
        judged, budget = judged_of(self.job)
        line = Table.grid(padding=(0, 1))
        line.add_row(ProgressBar(total=budget or None, completed=judged, width=40, pulse=not budget),
                     f"{judged}/{budget} candidates" if budget else f"{judged} candidates")  # fmt: skip
        return line

    def _counts(self) -> Text:
        verdicts = {name: count for name, count in self.job["progress"]["verdicts"].items() if count}
        best = self.job["best"]
        text = Text("best ")
        text.append(show.speedup(best["speedup"] if best else None), style="bold green" if best else "dim")
        if best and best["baseline"]:
            text.append(f" over {best['baseline']} {show.interval(best['ci95'])}")
        text.append(f"   {show.fields(verdicts)}   ${self.job['cost']['llm_usd']}")
        return text

    def _candidates(self) -> Table:
        grid = Table(box=None, header_style="dim", pad_edge=False)
        for name, right in (("#", True), ("operator", False), ("by", False), ("verdict", False), ("speedup", True),
                            ("latency", True)):  # fmt: skip
            grid.add_column(name, justify="right" if right else "left", no_wrap=True)
        grid.add_column("", overflow="ellipsis", no_wrap=True)
        for row in self.rows:
            grid.add_row(*_cells(row))
        return grid


def judged_of(job: Job) -> tuple[int, int]:
    """How many candidates are through, and how many the budget allows (0: no such limit)."""
    counts: dict[str, Any] = job["progress"]["candidates"]
    through = counts.get("evaluated", 0) + counts.get("rejected", 0)
    return through, int(job["budget"]["candidates"] or 0)


def _cells(row: Row) -> list[Text]:
    style = VERDICT_STYLE.get(row.verdict, "red") if row.verdict else "dim"
    return [
        Text("" if row.ordinal is None else str(row.ordinal)),
        Text(show.inert(row.operator or "")),
        Text(show.inert(row.model or row.proposer or "")),
        Text(row.verdict or row.stage, style=style),
        Text(show.speedup(row.speedup) if row.verdict else ""),
        Text(show.latency(row.latency_us) if row.verdict else ""),
        Text(show.inert(row.why), style="dim"),
    ]
