"""Judge a corpus with the real judge, problem by problem, and say what came of it."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.redteam.attribution import failed_check, layer_of
from tests.redteam.certificates import as_report
from tests.redteam.entry import Entry
from tests.redteam.problems import source_of
from worker.judge.client import Judge, JudgeOptions
from worker.judge.report import EvaluationRequest
from worker.judge.verdict import ReferenceFailed

_GAIN = 1.05
"""The lower end of a defused attack's speedup is at most this: what it gains cannot be told from nothing."""


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
        return self.verdict in self.entry.expected or self.defused

    @property
    def defused(self) -> bool:
        """Accepted, right, and without any gain from what it attempted."""
        low = (self.report.get("ci95") or [float("inf")])[0]
        return self.entry.defused and self.verdict == "ok" and low <= _GAIN

    @property
    def accepted_cheat(self) -> bool:
        """The failure that must never happen."""
        return not self.entry.honest and self.verdict == "ok" and not self.defused

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
        report = {key: self.report.get(key) for key in _KEPT}
        told = {"verdict": self.verdict, "reason": self.reason, "layer": self.layer, "check": self.check}
        return {"entry": entry} | told | {"judged_s": round(self.wall_s, 2), "report": report}

    @classmethod
    def from_json(cls, entry: Entry, row: dict[str, Any]) -> Outcome:
        """What `to_json` wrote."""
        told = (row[key] for key in ("verdict", "reason", "layer", "check", "judged_s", "report"))
        return cls(entry, *told)


_KEPT = ("checks", "speedup", "ci95", "certified", "reservations", "latency_us", "gpu_s", "build_s", "wall_s",
         "environment", "log")  # fmt: skip


def judge_all(
    entries: Iterable[Entry], home: Path, hardware: str, on_outcome: Callable[[Outcome], None], jobs: int = 1
) -> list[Outcome]:
    """Judge every entry, those of one problem after another, because a judge process serves one problem.

    With several `jobs` problems are dealt to so many judges. On a GPU they share a home, and with it the lease: who is
    timing has the device alone. On a CPU each has its own: they do not wait for each other, so the figures are
    rougher than those of one.
    """
    left: queue.SimpleQueue[list[Entry]] = queue.SimpleQueue()
    for dealt in _by_problem(entries):
        left.put(dealt)
    outcomes: list[Outcome] = []
    lock = threading.Lock()

    def serve(number: int) -> None:
        own_home = home / f"job{number}" if jobs > 1 and hardware == "cpu" else home
        own_home.mkdir(parents=True, exist_ok=True)
        with Judge(JudgeOptions(home=own_home, hardware=hardware, eager_only=True)) as judge:
            while not left.empty():
                for entry in _next(left):
                    outcome = judge_one(judge, entry, hardware)
                    with lock:
                        outcomes.append(outcome)
                        on_outcome(outcome)

    with ThreadPoolExecutor(jobs) as pool:
        for served in [pool.submit(serve, number) for number in range(jobs)]:
            served.result()
    return outcomes


def _by_problem(entries: Iterable[Entry]) -> list[list[Entry]]:
    """One list for each problem, cheats first; the longest list first, so that all judges end at about one time."""
    found: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.problem, entry.honest, entry.id)):
        found.setdefault(entry.problem, []).append(entry)
    return sorted(found.values(), key=len, reverse=True)


def _next(left: queue.SimpleQueue[list[Entry]]) -> list[Entry]:
    try:
        return left.get_nowait()
    except queue.Empty:  # another judge was quicker
        return []


def judge_one(judge: Judge, entry: Entry, hardware: str) -> Outcome:
    """Judge one entry, as a finalist where only the certificate can tell.

    A problem that cannot be judged counts as `infra_error`: it is the corpus's own mistake.
    """
    request = EvaluationRequest(
        entry.id,
        entry.source,
        entry.problem,
        source_of(entry.problem),
        hardware,
        entry.language,
        own_kernel_share=entry.own_kernel_share,
    )
    started = time.monotonic()
    try:
        report = as_report(judge.certify(request)) if entry.certified else judge.evaluate(request)
    except ReferenceFailed as failed:
        report = {"verdict": "infra_error", "reason": f"the problem: {failed}", "checks": []}
    wall_s = time.monotonic() - started
    return Outcome(
        entry, report["verdict"], report["reason"], layer_of(report, entry.layer), failed_check(report), wall_s, report
    )


def row(outcome: Outcome) -> str:
    """One line of the table: entry, expected, verdict, layer, seconds, reason."""
    expected = "/".join(sorted(outcome.entry.expected)) if len(outcome.entry.expected) < 3 else "any rejection"
    mark = outcome.failure or ("defused" if outcome.defused else "" if outcome.as_expected else "other verdict")
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
    defused = [outcome.entry.id for outcome in cheats if outcome.defused]
    lines += ["", f"infra errors: {len(broken)} of {len(outcomes)}"]
    lines += [f"honest candidates rejected: {len(rejected)} of {len(honest)}"]
    lines += [f"defused: {len(defused)} (accepted, no gain){': ' if defused else ''}{', '.join(defused)}"]
    return [
        *lines,
        f"cheats accepted: {len(accepted)} of {len(cheats)}; with the defused {len(accepted) + len(defused)}",
    ]
