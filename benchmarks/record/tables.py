"""What the results of the record say: a table for the suite, one for each operator, and where we lose.

After *dispatch* a workload has the kernel where it is surely faster than every baseline (the lower end of the 95 %
interval is above 1), and the fastest baseline, with a speedup of 1, elsewhere: as the exported package does. Everything
else here is the kernel alone.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record.plan import plan
from benchmarks.record.run import UNFINISHED_JOBS

NAME = "README.md"


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

    @property
    def loses(self) -> bool:
        """Whether it is slower than a baseline beyond what the interval leaves open."""
        return self.ci95[1] < 1.0

    @property
    def dispatched(self) -> float:
        """The speedup of what runs: 1 where that is the fastest baseline, by the rule of the package's dispatch."""
        return self.speedup if self.ci95[0] > 1.0 else 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """The winner of one operator: the better one of its languages."""

    problem: str
    language: str
    certified: bool
    bound: str
    proposer: str
    own_share: float | None
    rows: tuple[Row, ...]

    @property
    def speedup(self) -> float:
        """Geometric mean over the workloads, of the kernel alone."""
        return _geomean(row.speedup for row in self.rows)

    @property
    def dispatched(self) -> float:
        """The same with the fastest baseline where the kernel is not surely faster."""
        return _geomean(row.dispatched for row in self.rows)

    @property
    def sol_fraction(self) -> float | None:
        """Median over the workloads."""
        known = [row.sol_fraction for row in self.rows if row.sol_fraction is not None]
        return statistics.median(known) if known else None


def read_results(folder: Path) -> list[Result]:
    """The best result of each operator, by name; what an unfinished job had found where there is nothing else."""
    found = _best_of(sorted(folder.glob("*.*.json")))
    found = _best_of(sorted((folder / UNFINISHED_JOBS).glob("*.*.json"))) | found
    return [found[name] for name in sorted(found)]


def _best_of(paths: Sequence[Path]) -> dict[str, Result]:
    found: dict[str, Result] = {}
    for path in paths:
        document = json.loads(path.read_text())
        if document.get("best") is None or not document["best"]["timed"]:
            continue
        result = _result(document)
        if result.problem not in found or result.dispatched > found[result.problem].dispatched:
            found[result.problem] = result
    return found


def missing(folder: Path, results: Sequence[Result]) -> list[str]:
    """Operators whose jobs found nothing that could be timed."""
    known = {result.problem for result in results}
    return sorted({path.name.split(".")[0] for path in folder.glob("*.*.json")} - known)


def not_run(folder: Path) -> list[str]:
    """Bundled operators for the same hardware that have no results here."""
    files = sorted(folder.glob("*.*.json"))
    if not files:
        return []
    hardware = json.loads(files[0].read_text())["job"]["target"]["hardware"]
    seen = {path.name.split(".")[0] for path in files} | {result.problem for result in read_results(folder)}
    return sorted({entry.problem for entry in plan(hardware)} - seen)


def write_tables(folder: Path) -> None:
    """Write the tables beside the results."""
    results = read_results(folder)
    lines = [
        *summary(results, missing(folder, results), not_run(folder)),
        "",
        *_suite(results),
        "",
        *_losses(results),
        "",
    ]
    for result in results:
        lines += [*_operator(result), ""]
    (folder / NAME).write_text("\n".join(lines))


def summary(results: Sequence[Result], without: Sequence[str] = (), unseen: Sequence[str] = ()) -> Iterator[str]:
    """The figures of the whole suite; `without`: operators without a kernel, `unseen`: not run yet."""
    speedups = [result.dispatched for result in results]
    faster = sum(result.dispatched > 1.0 for result in results)
    bound_by_memory = [
        result.sol_fraction for result in results if result.bound == "memory" and result.sol_fraction is not None
    ]
    rows = [row for result in results for row in result.rows]
    everywhere = sum(all(row.ci95[0] > 1.0 for row in result.rows) for result in results)
    total = len(results) + len(without) + len(unseen)
    yield "| figure | seen |"
    yield "|---|---|"
    yield f"| operators with a certified kernel | {sum(each.certified for each in results)} of {total} |"
    if without:
        yield f"| without a kernel | {', '.join(without)} |"
    if unseen:
        yield f"| not run yet | {len(unseen)} |"
    if not results:
        return
    yield f"| geomean speedup over those that were run, after dispatch | {_geomean(speedups):.2f}x |"
    yield f"| median | {statistics.median(speedups):.2f}x |"
    yield f"| operators faster than every baseline | {faster} of {total} ({faster / total:.0%}) |"
    yield f"| of them on every workload, beyond the interval | {everywhere} |"
    yield f"| workloads on which the kernel alone is slower | {sum(row.loses for row in rows)} of {len(rows)} |"
    if bound_by_memory:
        light = statistics.median(bound_by_memory)
        yield f"| memory-bound operators: median share of the speed of light | {light:.2f} ({len(bound_by_memory)}) |"


def _suite(results: Sequence[Result]) -> Iterator[str]:
    yield "| operator | language | after dispatch | kernel alone | worst workload | speed of light | own kernels |"
    yield "|---|---|---|---|---|---|---|"
    for each in results:
        worst = min(each.rows, key=lambda row: row.speedup)
        light = "" if each.sol_fraction is None else f"{each.sol_fraction:.2f}"
        own = "" if each.own_share is None else f"{each.own_share:.2f}"
        name = each.problem if each.certified else f"{each.problem} (not certified)"
        yield (
            f"| {name} | {each.language} | {each.dispatched:.2f}x | {each.speedup:.2f}x | "
            f"{worst.workload} {worst.speedup:.2f}x | {light} | {own} |"
        )


def _losses(results: Sequence[Result]) -> Iterator[str]:
    lost = [(result, row) for result in results for row in result.rows if row.speedup < 1.0]
    if not lost:
        return
    yield "Where the kernel alone is not faster:"
    yield ""
    for result, row in sorted(lost, key=lambda pair: pair[1].speedup):
        low, high = row.ci95
        yield f"- `{result.problem}` {row.workload}: {row.speedup:.2f}x [{low:.2f}, {high:.2f}] of {row.baseline}"


def _operator(result: Result) -> Iterator[str]:
    names = sorted({name for row in result.rows for name in row.panel_us})
    yield f"### {result.problem}"
    yield ""
    yield f"| workload, us | {' | '.join(names)} | ours | over the fastest | speed of light |"
    yield "|---" * (len(names) + 4) + "|"
    for row in result.rows:
        panel = " | ".join(_us(row.panel_us.get(name)) for name in names)
        low, high = row.ci95
        light = "" if row.sol_fraction is None else f"{row.sol_fraction:.2f}"
        gain = f"{row.speedup:.2f}x [{low:.2f}, {high:.2f}] ({row.baseline})"
        yield f"| {row.workload} | {panel} | **{_us(row.ours_us)}** | {gain} | {light} |"


def _result(document: dict[str, Any]) -> Result:
    best, job = document["best"], document["job"]
    report = best["report"]
    light = {point["name"]: point["sol_fraction"] for point in _roofs(document)}
    return Result(
        problem=job["problem"]["name"],
        language=job["target"]["language"],
        certified=bool((document.get("certificate") or {}).get("certified")),
        bound=_bound(document),
        proposer=best["proposer"],
        own_share=_own_share(report),
        rows=tuple(
            Row(
                workload=row["name"],
                ours_us=row["latency_us"],
                speedup=row["speedup"],
                ci95=(row["ci95"][0], row["ci95"][1]),
                baseline=row["baseline"],
                sol_fraction=light.get(row["name"], row.get("sol_fraction")),
                panel_us=document["panel"].get(row["name"], row["baselines_us"]),
            )
            for row in report["workloads"]
        ),
    )


def _bound(document: dict[str, Any]) -> str:
    """Which ceiling is the nearer for most workloads, by the certificate's roofline; else the profile's word."""
    bounds = [point["bound"] for point in _roofs(document)]
    profile = document["best"]["report"].get("profile") or {}
    return statistics.mode(bounds) if bounds else str(profile.get("bound", ""))


def _roofs(document: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The workloads on the certificate's roofline, which counts inputs, parameters and outputs once each. What a report
    calls the speed of light counts only bytes that provably move: a gradient that cannot be probed proves none."""
    points: Sequence[dict[str, Any]] = ((document.get("certificate") or {}).get("roofline") or {}).get("points", ())
    return points


def _own_share(report: dict[str, Any]) -> float | None:
    shares = [check["figures"]["share"] for check in report["checks"] if check["name"] == "own kernel share"]
    return min(shares) if shares else None


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
