"""What the result files say: the winner of each operator with its evidence, and what there is of every job.

After *dispatch* a workload has the kernel where it is surely faster than every baseline (the lower end of the 95 %
interval is above 1), and the fastest baseline, with a speedup of 1, elsewhere: as the exported package does. Everything
else here is the kernel alone.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record.plan import plan
from benchmarks.record.run import UNFINISHED_JOBS, panel

Document = dict[str, Any]
"""A result file."""
_PATTERN = "*.*.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One workload of a winner."""

    workload: str
    ours_us: float
    speedup: float
    """Over the fastest baseline, raced in turn with it."""
    ci95: tuple[float, float]
    baseline: str
    sol_fraction: float | None
    panel_us: dict[str, float]
    """Every baseline, of the judgement that raced all of them."""
    raced_us: dict[str, float]
    """The baselines of the same judgement as `ours_us`."""

    @property
    def loses(self) -> bool:
        """Whether it is slower than a baseline beyond what the interval leaves open."""
        return self.ci95[1] < 1.0

    @property
    def wins(self) -> bool:
        """Whether it is faster than every baseline beyond what the interval leaves open."""
        return self.ci95[0] > 1.0

    @property
    def dispatched(self) -> float:
        """The speedup of what runs: 1 where that is the fastest baseline, by the rule of the package's dispatch."""
        return self.speedup if self.wins else 1.0


@dataclass(frozen=True, slots=True)
class Stated:
    """What a certificate says, be it granted or refused."""

    certified: bool
    reason: str
    """Why it is refused."""
    speedup: float | None
    """The smaller of its two measurements."""
    ci95: tuple[float, float] | None
    reservations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The winner of one operator: the better one of its languages."""

    problem: str
    language: str
    stated: Stated | None
    """None: judged, and no certificate was asked for yet."""
    bound: str
    proposer: str
    own_share: float | None
    ci95: tuple[float, float]
    """Of `speedup`."""
    over: Mapping[str, float]
    """Geometric mean over the workloads against each baseline that all of them have."""
    unmade: Mapping[str, str]
    """Baselines that could not be made, and why."""
    profile: Mapping[str, Any]
    device: str
    rows: tuple[Row, ...]

    @property
    def certified(self) -> bool:
        """Whether there is a certificate, and it was granted."""
        return self.stated is not None and self.stated.certified

    @property
    def speedup(self) -> float:
        """Geometric mean over the workloads, of the kernel alone."""
        return geomean(row.speedup for row in self.rows)

    @property
    def dispatched(self) -> float:
        """The same with the fastest baseline where the kernel is not surely faster."""
        return geomean(row.dispatched for row in self.rows)

    @property
    def sol_fraction(self) -> float | None:
        """Median over the workloads."""
        known = [row.sol_fraction for row in self.rows if row.sol_fraction is not None]
        return statistics.median(known) if known else None


def read_documents(folder: Path) -> dict[str, list[Document]]:
    """What every job found, by operator; what an unfinished job had found where there is nothing else of it."""
    paths = {path.name: path for path in (folder / UNFINISHED_JOBS).glob(_PATTERN)}
    paths |= {path.name: path for path in folder.glob(_PATTERN)}
    found: dict[str, list[Document]] = {}
    for name in sorted(paths):
        found.setdefault(name.split(".")[0], []).append(json.loads(paths[name].read_text()))
    return found


def read_results(folder: Path) -> list[Result]:
    """The best result of each operator, by name. A certified one is better than any that is not."""
    found = []
    for documents in read_documents(folder).values():
        baselines = _panel(documents)
        timed = [each for each in documents if each.get("best") is not None and each["best"]["timed"]]
        results = [_result(each, baselines) for each in timed]
        found += [max(results, key=lambda each: (each.certified, each.dispatched))] if results else []
    return found


def missing(folder: Path, results: Sequence[Result]) -> list[str]:
    """Operators whose jobs have ended and found nothing that could be timed."""
    known = {result.problem for result in results}
    return sorted({path.name.split(".")[0] for path in folder.glob(_PATTERN)} - known)


def not_run(folder: Path) -> list[str]:
    """Bundled operators for the same hardware that have no results here."""
    hardware = hardware_of(read_documents(folder))
    seen = {path.name.split(".")[0] for path in folder.glob(_PATTERN)} | {each.problem for each in read_results(folder)}
    return sorted({entry.problem for entry in plan(hardware)} - seen) if hardware else []


def hardware_of(documents: Mapping[str, Sequence[Document]]) -> str:
    """What the results were measured on: a folder has those of one kind."""
    return next((str(each[0]["job"]["target"]["hardware"]) for each in documents.values()), "")


def geomean(values: Iterable[float]) -> float:
    """NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _result(document: Document, baselines: Mapping[str, dict[str, float]]) -> Result:
    best, job = document["best"], document["job"]
    report = best["report"]
    light = {point["name"]: point["sol_fraction"] for point in roofs(document)}
    rows = tuple(
        Row(
            workload=row["name"],
            ours_us=row["latency_us"],
            speedup=row["speedup"],
            ci95=(row["ci95"][0], row["ci95"][1]),
            baseline=row["baseline"],
            sol_fraction=light.get(row["name"], row.get("sol_fraction")),
            panel_us=baselines.get(row["name"], row["baselines_us"]),
            raced_us=row["baselines_us"],
        )
        for row in report["workloads"]
    )
    low, high = best["ci95"]
    return Result(
        problem=job["problem"]["name"],
        language=job["target"]["language"],
        stated=_stated(document.get("certificate")),
        bound=_bound(document),
        proposer=best["proposer"],
        own_share=_own_share(report),
        ci95=(low, high),
        over=_over(rows) | report["speedups"],
        unmade=report["environment"].get("baselines_missing", {}),
        profile=report.get("profile") or {},
        device=_device(report["environment"]),
        rows=rows,
    )


def _panel(documents: Sequence[Document]) -> dict[str, dict[str, float]]:
    """Every baseline of every workload: later jobs of a problem race those that had been fast, and not all."""
    rows = [{"name": name, "baselines_us": us} for each in documents for name, us in each["panel"].items()]
    return panel([{"workloads": rows}])


def _over(rows: Sequence[Row]) -> dict[str, float]:
    """By the medians: what is known of baselines that were not raced in turn with this very kernel."""
    everywhere = set.intersection(*(set(row.panel_us) for row in rows))
    return {name: geomean(row.panel_us[name] / row.ours_us for row in rows) for name in sorted(everywhere)}


def _stated(certificate: Mapping[str, Any] | None) -> Stated | None:
    if not certificate:
        return None
    timing = certificate.get("timing") or {}
    return Stated(
        certified=bool(certificate["certified"]),
        reason=certificate.get("reason", ""),
        speedup=timing.get("speedup"),
        ci95=(timing["ci95"][0], timing["ci95"][1]) if timing else None,
        reservations=tuple(certificate.get("reservations", ())),
    )


def _bound(document: Document) -> str:
    """Which ceiling is the nearer for most workloads, by the certificate's roofline; else the profile's word."""
    bounds = [point["bound"] for point in _points(document)]
    profile = document["best"]["report"].get("profile") or {}
    return statistics.mode(bounds) if bounds else str(profile.get("bound", ""))


_SKIPPED_HALF = 2.0
"""Times the ceiling of products, for a kernel that leaves out the half that causal attention masks."""


def roofs(document: Document) -> Sequence[dict[str, Any]]:
    """The workloads on the certificate's roofline, which counts inputs, parameters and outputs once each. What a report
    calls the speed of light counts only bytes that provably move: a gradient that cannot be probed proves none.

    Without those that multiply more than twice as fast as their ceiling: until 26 November 2026 that was the peak of
    the widest output, a loss in float32 for products in bf16."""
    return [each for each in _points(document) if each["bound"] != "compute" or each["sol_fraction"] <= _SKIPPED_HALF]


def _points(document: Document) -> Sequence[dict[str, Any]]:
    points: Sequence[dict[str, Any]] = ((document.get("certificate") or {}).get("roofline") or {}).get("points", ())
    return points


def _device(environment: Mapping[str, Any]) -> str:
    parts = [environment.get("device") or environment.get("cpu") or ""]
    parts += [f"{name} {environment[name]}" for name in ("torch", "triton") if environment.get(name)]
    return ", ".join(part for part in parts if part)


def _own_share(report: Mapping[str, Any]) -> float | None:
    shares = [check["figures"]["share"] for check in report["checks"] if check["name"] == "own kernel share"]
    return min(shares) if shares else None
