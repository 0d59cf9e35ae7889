"""From runs to figures: pure functions, tested without a judge.

A share comes with its 95 % interval by Wilson (1927): 50 runs cannot tell 93 % from 99 %, and the table should not
pretend that they can.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from worker.judge.timing import stats

_Z95 = 1.959964
_FASTER = 1.02
Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """a over b, from rounds in which both were timed."""

    ratio: float
    """Geometric mean over workloads of the median ratio of a workload's rounds."""
    resampled_ci95: tuple[float, float]
    ci95: tuple[float, float]
    """As the judge reports it: the resampled one, widened by what two runs of the same code differ in."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compared(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], device: str, residues_us: Sequence[float] = (0.0,)
) -> Compared:
    """Compare a with b; `pairs` holds per workload the samples of a and of b in microseconds, round by round,
    `residues_us` by how much each workload's samples may be off in all rounds alike."""
    series = [stats.log_ratios(a, b) for a, b in pairs]
    low, high = stats.interval(series, random.Random(0))  # resampling only
    shortest = [min(statistics.median(a), statistics.median(b)) for a, b in pairs]
    residue = statistics.fmean(us / median for us, median in zip(residues_us, shortest, strict=False))
    ratio = stats.geomean([stats.ratio(logs) for logs in series])
    return Compared(ratio, (low, high), stats.widened((low, high), device, residue))


def share(hits: int, of: int) -> dict[str, Any]:
    """hits / of with its Wilson interval; a share of nothing is None."""
    if of == 0:
        return {"hits": 0, "of": 0, "share": None, "ci95": None}
    p, z2 = hits / of, _Z95**2
    middle = (p + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z95 / (1 + z2 / of) * math.sqrt(p * (1 - p) / of + z2 / (4 * of * of))
    return {"hits": hits, "of": of, "share": p, "ci95": [max(0.0, middle - half), min(1.0, middle + half)]}


def holds(interval: Sequence[float], value: float = 1.0) -> bool:
    """Whether an interval holds a value."""
    return interval[0] <= value <= interval[1]


def quartiles(numbers: Sequence[float]) -> dict[str, float] | None:
    """Median, quartiles, extremes and mean; None of nothing."""
    if not numbers:
        return None
    ordered = sorted(numbers)
    low, middle, high = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    return {
        "median": middle,
        "q1": low,
        "q3": high,
        "min": ordered[0],
        "max": ordered[-1],
        "mean": statistics.fmean(ordered),
    }


def aa_figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Eager against itself. A run: `verdict`, and if it was timed `ratio`, `ci95` and `resampled_ci95`, each of eager
    over candidate."""
    timed = [run for run in runs if run.get("ci95")]
    lows = [run["ci95"][0] for run in timed]
    return {
        "runs": len(runs),
        "not_ok": [f"{run['problem']}: {run['verdict']}: {run['reason']}" for run in runs if run["verdict"] != "ok"],
        "interval_holds_1": share(sum(holds(run["ci95"]) for run in timed), len(timed)),
        "resampled_interval_holds_1": share(sum(holds(run["resampled_ci95"]) for run in timed), len(timed)),
        "false_faster_interval": share(sum(low > _FASTER for low in lows), len(timed)),
        "false_faster_claim": share(
            sum(run["ratio"] > _FASTER and run["ci95"][0] > 1 for run in timed), len(timed)
        ),  # what a user would be told: the estimate is above, and the interval excludes 1
        "false_faster_estimate": share(sum(run["ratio"] > _FASTER for run in timed), len(timed)),
        "ratio": quartiles([run["ratio"] for run in timed]),
        "interval_width": quartiles([run["ci95"][1] / run["ci95"][0] - 1 for run in timed]),
    }


def planted_figures(runs: Sequence[Run]) -> dict[str, Any]:
    """A run: `slow_over_fast` and `twin_over_fast` (`Compared` as JSON), or `error`."""
    timed = [run for run in runs if "slow_over_fast" in run]
    found = [run["slow_over_fast"] for run in timed]
    twins = [run["twin_over_fast"] for run in timed]
    return {
        "runs": len(runs),
        "errors": [run["error"] for run in runs if "error" in run],
        "detected": share(sum(each["ci95"][0] > 1 for each in found), len(found)),
        "detected_by_resampling": share(sum(each["resampled_ci95"][0] > 1 for each in found), len(found)),
        "wrong_way": share(sum(each["ci95"][1] < 1 for each in found), len(found)),
        "ratio": quartiles([each["ratio"] for each in found]),
        "interval_width": quartiles([each["ci95"][1] / each["ci95"][0] - 1 for each in found]),
        "twin_told_apart": share(sum(not holds(each["ci95"]) for each in twins), len(twins)),
        "twin_ratio": quartiles([each["ratio"] for each in twins]),
    }


def cost_figures(runs: Sequence[Run]) -> dict[str, Any]:
    """A run: `id`, `bad`, `verdict`, `gpu_s`, `wall_s`. A judge's own failure is no judgement and is only named."""
    judged = [run for run in runs if run["verdict"] != "infra_error"]
    bad = [run for run in judged if run["bad"]]
    survivors = [run for run in judged if not run["bad"] and run["verdict"] == "ok"]
    gpu, wall = _means(judged, "gpu_s"), _means(judged, "wall_s")
    return {
        "candidates": len(judged),
        "bad": len(bad),
        "bad_gpu_s": quartiles([run["gpu_s"] for run in bad if run["verdict"] != "ok"]),
        "survivor_wall_s": quartiles([run["wall_s"] for run in survivors]),
        "survivor_gpu_s": quartiles([run["gpu_s"] for run in survivors]),
        "mean_gpu_s": gpu,
        "per_gpu_hour": 3600 / gpu if gpu else None,
        "per_hour_by_wall": 3600 / wall if wall else None,
        "bad_accepted": [run["id"] for run in bad if run["verdict"] == "ok"],
        "good_rejected": [
            f"{run['id']}: {run['verdict']}: {run['reason']}"
            for run in judged
            if not run["bad"] and run["verdict"] != "ok"
        ],
        "infra_errors": [f"{run['id']}: {run['reason']}" for run in runs if run["verdict"] == "infra_error"],
    }


def protocol_figures(runs: Sequence[Run], judged: Sequence[Run]) -> dict[str, Any]:
    """The same candidates under both. A run: `id`, `bad`, `accepted`, `held_s` and, of that, `built_s`; `judged` as in
    `cost_figures`."""
    gpu_s = {run["id"]: run["gpu_s"] for run in judged if run["verdict"] != "infra_error"}
    both = [run for run in runs if run["id"] in gpu_s]
    theirs = _means(both, "held_s")
    ours = statistics.fmean(gpu_s[run["id"]] for run in both) if both else None
    bad = [run for run in runs if run["bad"]]
    figures = {
        "candidates": len(runs),
        "held_s": quartiles([run["held_s"] for run in runs]),
        "held_s_bad": quartiles([run["held_s"] for run in bad]),
        "held_s_good": quartiles([run["held_s"] for run in runs if not run["bad"]]),
        "per_gpu_hour": 3600 / mean if (mean := _means(runs, "held_s")) else None,
        "bad_accepted": share(sum(run["accepted"] for run in bad), len(bad)),
        "bad_accepted_ids": [run["id"] for run in bad if run["accepted"]],
        "good_rejected": [f"{run['id']}: {run['reason']}" for run in runs if not run["bad"] and not run["accepted"]],
        "compared": len(both),
        "protocol_mean_held_s": theirs,
        "judge_mean_gpu_s": ours,
        "judge_over_protocol": ours / theirs if ours is not None and theirs else None,
        "built_s": quartiles([run["built_s"] for run in runs if run.get("built_s")]),
    }
    if both and ours is not None:
        unbuilt = statistics.fmean(run["held_s"] - run["built_s"] for run in both)
        figures["judge_over_protocol_without_builds"] = ours / unbuilt if unbuilt else None
    return figures


def _means(runs: Sequence[Run], key: str) -> float | None:
    return statistics.fmean(run[key] for run in runs) if runs else None
