"""The figures of `benchmarks.judge`: what they count, from runs whose answer is known."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.judge.aa import run_of
from benchmarks.judge.figures import (
    aa_figures,
    compared,
    cost_figures,
    planted_figures,
    protocol_figures,
    quartiles,
    share,
)
from benchmarks.judge.results import Results
from benchmarks.judge.table import table


def _samples(rng: random.Random, scale: float, count: int = 31, sd: float = 0.01) -> list[float]:
    return [scale * math.exp(rng.gauss(0, sd)) for _ in range(count)]


def test_a_ratio_is_the_geometric_mean_over_workloads() -> None:
    pairs = [([2.0] * 9, [1.0] * 9), ([8.0] * 9, [1.0] * 9)]
    found = compared(pairs, "cuda:0")
    assert found.ratio == pytest.approx(4.0)
    assert found.resampled_ci95 == pytest.approx((4.0, 4.0))
    assert found.ci95 == pytest.approx((4.0 / 1.01, 4.0 * 1.01))


def test_a_cpu_interval_is_widened_more() -> None:
    pair = [([1.0] * 9, [1.0] * 9)]
    assert compared(pair, "cpu").ci95[1] > compared(pair, "cuda:0").ci95[1]


def test_three_percent_at_one_percent_noise_is_found_and_nothing_is_not() -> None:
    rng = random.Random(1)
    found = [compared([(_samples(rng, 1.03), _samples(rng, 1.0))], "cuda:0") for _ in range(40)]
    nothing = [compared([(_samples(rng, 1.0), _samples(rng, 1.0))], "cuda:0") for _ in range(40)]
    assert sum(each.ci95[0] > 1 for each in found) >= 38
    assert sum(each.ci95[0] > 1 for each in nothing) <= 2


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(50, 50, 0.9287, 1.0), (0, 50, 0.0, 0.0713), (47, 50, 0.8378, 0.9794), (5, 10, 0.2366, 0.7634)],
)
def test_wilson_interval(hits: int, of: int, low: float, high: float) -> None:
    """Expected values from Wilson's formula, as statistics packages print them."""
    found = share(hits, of)
    assert found["share"] == hits / of
    assert found["ci95"] == pytest.approx([low, high], abs=2e-4)


def test_a_share_of_nothing_is_no_share() -> None:
    assert share(0, 0)["share"] is None


def test_quartiles() -> None:
    assert quartiles([]) is None
    one = quartiles([3.0])
    assert one is not None and one["median"] == one["q1"] == one["max"] == 3.0
    many = quartiles([4.0, 1.0, 3.0, 2.0, 5.0])
    assert many == {"median": 3.0, "q1": 2.0, "q3": 4.0, "min": 1.0, "max": 5.0, "mean": 3.0}


def _aa(low: float, ratio: float, high: float) -> dict[str, Any]:
    return {
        "problem": "p", "verdict": "ok", "reason": "",
        "ratio": ratio, "ci95": [low, high], "resampled_ci95": [low, high],
    }  # fmt: skip


def test_aa_tells_false_claims_from_wide_intervals() -> None:
    runs = [
        _aa(0.99, 1.0, 1.01),
        _aa(0.97, 1.03, 1.06),  # an estimate above, but nobody would announce it
        _aa(1.005, 1.025, 1.04),  # announced, though its lower end is below
        _aa(1.021, 1.03, 1.04),  # false beyond doubt
        _aa(0.95, 0.97, 0.99),
        {"problem": "p", "verdict": "suspicious", "reason": "late"},
    ]
    figures = aa_figures(runs)
    assert (figures["interval_holds_1"]["hits"], figures["interval_holds_1"]["of"]) == (2, 5)
    assert figures["false_faster_interval"]["hits"] == 1
    assert figures["false_faster_claim"]["hits"] == 2
    assert figures["false_faster_estimate"]["hits"] == 3
    assert figures["not_ok"] == ["p: suspicious: late"]


def test_planted_counts_only_intervals_on_the_right_side() -> None:
    def run(low: float, high: float, twin: tuple[float, float]) -> dict[str, Any]:
        slow = {"ratio": (low + high) / 2, "ci95": [low, high], "resampled_ci95": [low + 0.005, high - 0.005]}
        same = {"ratio": 1.0, "ci95": list(twin), "resampled_ci95": list(twin)}
        return {"slow_over_fast": slow, "twin_over_fast": same}

    alike = (0.99, 1.01)
    runs = [
        run(1.02, 1.04, alike),
        run(0.998, 1.05, alike),
        run(0.95, 0.99, (1.01, 1.02)),
        {"error": "timeout: no answer"},
    ]
    figures = planted_figures(runs)
    assert (figures["detected"]["hits"], figures["detected"]["of"]) == (1, 3)
    assert figures["detected_by_resampling"]["hits"] == 2
    assert figures["wrong_way"]["hits"] == 1
    assert figures["twin_told_apart"]["hits"] == 1
    assert figures["errors"] == ["timeout: no answer"]


def _judged(id: str, bad: bool, verdict: str, gpu_s: float, wall_s: float = 0.0) -> dict[str, Any]:
    return {"id": id, "bad": bad, "verdict": verdict, "reason": "why", "gpu_s": gpu_s, "wall_s": wall_s or gpu_s}


COST = [
    _judged("b1", True, "incorrect", 1.0),
    _judged("b2", True, "build_error", 0.0, 0.5),
    _judged("b3", True, "ok", 6.0),
    _judged("g1", False, "ok", 5.0, 8.0),
    _judged("g2", False, "incorrect", 2.0),
    _judged("x", False, "infra_error", 99.0),
]


def test_cost_leaves_the_judges_own_failures_out() -> None:
    figures = cost_figures(COST)
    assert figures["candidates"] == 5
    assert figures["bad_gpu_s"] == quartiles([0.0, 1.0])
    assert figures["survivor_wall_s"] == quartiles([8.0])
    assert figures["mean_gpu_s"] == pytest.approx(14 / 5)
    assert figures["per_gpu_hour"] == pytest.approx(3600 / 2.8)
    assert figures["bad_accepted"] == ["b3"]
    assert figures["good_rejected"] == ["g2: incorrect: why"]
    assert figures["infra_errors"] == ["x: why"]


def _cold(id: str, bad: bool, accepted: bool, held_s: float, built_s: float = 0.0) -> dict[str, Any]:
    return {"id": id, "bad": bad, "accepted": accepted, "held_s": held_s, "built_s": built_s, "reason": "why"}


def test_protocol_compares_only_what_both_judged() -> None:
    runs = [
        _cold("b1", True, True, 8.0),
        _cold("g1", False, True, 52.0, 40.0),
        _cold("g9", False, False, 100.0),  # the judge never got so far
        _cold("x", True, False, 50.0),  # the judge failed on it
    ]
    figures = protocol_figures(runs, COST)
    assert figures["compared"] == 2
    assert figures["judge_over_protocol"] == pytest.approx((1 + 5) / (8 + 52))
    assert figures["judge_over_protocol_without_builds"] == pytest.approx(6 / (8 + 12))
    assert figures["built_s"] == quartiles([40.0])
    assert figures["bad_accepted_ids"] == ["b1"]
    assert figures["bad_accepted"]["share"] == 0.5
    assert figures["good_rejected"] == ["g9: why"]


def test_protocol_without_the_judges_figures_compares_nothing() -> None:
    figures = protocol_figures([_cold("b1", True, True, 8.0)], [])
    assert figures["judge_over_protocol"] is None and figures["compared"] == 0


def _results(hardware: str, **parts: dict[str, Any]) -> dict[str, Any]:
    return {"hardware": hardware, "parts": {name: {"figures": figures} for name, figures in parts.items()}}


def test_the_table_says_what_is_not_met() -> None:
    rows = [_aa(0.99, 1.0, 1.01)] * 9 + [_aa(1.021, 1.03, 1.04)]
    text = table(_results("nvidia-h100", aa={"wanted": 10, **aa_figures(rows)}, cost=cost_figures(COST)))
    holds, above = text.splitlines()[2:4]
    assert "9 of 10 = 90%" in holds and holds.endswith("| **no** |")
    assert above.endswith("| **no** |")
    assert "| 0.50 s | at most 1.5 s | yes |" in text
    assert "| 8.00 s | at most 12 s | yes |" in text
    assert "| 1286 | at least 600 | yes |" in text
    assert "1: b3" in text


def test_the_table_requires_gpu_figures_only_of_a_gpu() -> None:
    slow = [_judged("b1", True, "incorrect", 100.0), _judged("g1", False, "ok", 100.0)]
    both = [_cold("b1", True, False, 1.0), _cold("g1", False, True, 1.0)]
    parts = {"cost": cost_figures(slow), "protocol": protocol_figures(both, slow)}
    assert "**no**" in table(_results("nvidia-h100", **parts))
    assert "**no**" not in table(_results("cpu", **parts))


def test_results_are_kept_run_by_run_and_part_by_part(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    results = Results(path, "cpu", quick=True)
    results.begin("cost")
    results.add("cost", {"id": "first"})
    assert json.loads(path.read_text())["parts"]["cost"]["runs"] == [{"id": "first"}]
    results.finish("cost", {"wanted": 1})
    again = Results(path, "cpu", quick=True)
    again.begin("aa")
    assert again.runs("cost") == [{"id": "first"}]
    assert Results(path, "nvidia-h100", quick=True).runs("cost") == []


def test_aa_reads_eager_and_the_candidate_from_a_report() -> None:
    samples = {"eager": [2.0] * 9, "candidate": [1.0] * 9, "compile": [0.1] * 9}
    report = {"verdict": "ok", "reason": "", "workloads": [{"name": "even", "samples_us": samples, "residue_us": 0.0}]}
    run = run_of(report, "cuda:0")
    assert run["ratio"] == pytest.approx(2.0)
    assert set(run["workloads"]["even"]["samples_us"]) == {"eager", "candidate"}
    assert "ci95" not in run_of({"verdict": "incorrect", "reason": "x", "workloads": []}, "cuda:0")
