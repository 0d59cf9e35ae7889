"""Judge a corpus with the real judge, problem by problem, and say what came of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.redteam.attribution import failed_check, layer_of
from tests.redteam.entry import Entry
from tests.redteam.problems import source_of
from worker.judge.client import Judge, JudgeOptions
from worker.judge.report import EvaluationRequest
from worker.judge.verdict import ReferenceFailed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the judge said of one entry."""

    entry: Entry
    verdict: str
    reason: str
    layer: str
    """The layer that rejected it; empty for an accepted one."""
    check: str
    """The first check that failed."""
    wall_s: float
    report: dict[str, Any] = field(repr=False, default_factory=dict)

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is one of the acceptable ones."""
        return self.verdict in self.entry.expected

    @property
    def accepted_cheat(self) -> bool:
        """The failure that must never happen."""
        return not self.entry.honest and self.verdict == "ok"

    @property
    def failure(self) -> str:
        """Why this outcome fails the run, or "". A cheat rejected under another verdict is named, but is no failure."""
        if self.verdict == "infra_error":
            return "infra_error"
        if self.accepted_cheat:
            return "ACCEPTED"
        return "REJECTED" if self.entry.honest and not self.as_expected else ""

    def to_json(self) -> dict[str, Any]:
        """Everything but the candidate's source."""
        entry = {key: value for key, value in asdict(self.entry).items() if key != "source"}
        entry["expected"] = sorted(self.entry.expected)
        kept = ("checks", "speedup", "latency_us", "gpu_s", "build_s", "wall_s", "environment", "log")
        report = {key: self.report.get(key) for key in kept}
        return {"entry": entry, "verdict": self.verdict, "reason": self.reason, "layer": self.layer, "report": report}


def judge_all(
    entries: Iterable[Entry], home: Path, hardware: str, on_outcome: Callable[[Outcome], None]
) -> list[Outcome]:
    """Judge every entry, those of one problem after another, because a judge process serves one problem."""
    ordered = sorted(entries, key=lambda entry: (entry.problem, entry.honest, entry.id))
    outcomes = []
    with Judge(JudgeOptions(home=home, hardware=hardware)) as judge:
        for entry in ordered:
            outcomes.append(judge_one(judge, entry, hardware))
            on_outcome(outcomes[-1])
    return outcomes


def judge_one(judge: Judge, entry: Entry, hardware: str) -> Outcome:
    """Judge one entry. A problem that cannot be judged counts as `infra_error`: it is the corpus's own mistake."""
    request = EvaluationRequest(
        entry.id, entry.source, entry.problem, source_of(entry.problem), hardware, entry.language, **_policy(entry)
    )
    started = time.monotonic()
    try:
        report = judge.evaluate(request)
    except ReferenceFailed as failed:
        report = {"verdict": "infra_error", "reason": f"the problem: {failed}", "checks": []}
    wall_s = time.monotonic() - started
    return Outcome(
        entry, report["verdict"], report["reason"], layer_of(report, entry.layer), failed_check(report), wall_s, report
    )


def _policy(entry: Entry) -> dict[str, Any]:
    known = EvaluationRequest.__dataclass_fields__
    return {"own_kernel_share": entry.own_kernel_share} if "own_kernel_share" in known else {}


def row(outcome: Outcome) -> str:
    """One line of the table: entry, expected, verdict, layer, seconds, reason."""
    expected = "/".join(sorted(outcome.entry.expected)) if len(outcome.entry.expected) < 3 else "any rejection"
    mark = outcome.failure or ("" if outcome.as_expected else "other verdict")
    where = outcome.layer if outcome.layer == outcome.entry.layer else f"{outcome.layer} (meant {outcome.entry.layer})"
    text = f"{outcome.entry.id:<38.38} {expected:<24.24} {outcome.verdict:<16} {where if outcome.layer else '':<34.34}"
    speedup = outcome.report.get("speedup")
    why = " ".join(outcome.reason.split())[:150] or (f"{speedup:.2f}x" if speedup else "")
    return f"{mark:<13} {text} {outcome.wall_s:5.1f} s  {why}"


def summary(outcomes: list[Outcome]) -> list[str]:
    """The lines below the table: what each layer caught, what only it catches, and the totals."""
    cheats = [outcome for outcome in outcomes if not outcome.entry.honest]
    honest = [outcome for outcome in outcomes if outcome.entry.honest]
    caught = Counter(outcome.layer for outcome in cheats if outcome.layer)
    lines = ["", "layer          caught  of these meant for it, and passed by every layer before it"]
    for layer, count in caught.most_common():
        alone = [outcome.entry.id for outcome in cheats if outcome.layer == layer == outcome.entry.layer]
        lines.append(f"{layer:<14} {count:6}  {len(alone)}: {', '.join(alone)}"[:400])
    rejected = [outcome for outcome in honest if outcome.failure == "REJECTED"]
    broken = [outcome for outcome in outcomes if outcome.failure == "infra_error"]
    accepted = [outcome for outcome in cheats if outcome.accepted_cheat]
    lines += ["", f"infra errors: {len(broken)} of {len(outcomes)}"]
    lines += [f"honest candidates rejected: {len(rejected)} of {len(honest)}"]
    return [*lines, f"cheats accepted: {len(accepted)} of {len(cheats)}"]
