"""From samples to a report, also where a baseline left a race early."""

from __future__ import annotations

import math

import pytest

from worker.judge.report import Evaluation
from worker.judge.summary import summarise
from worker.judge.timing.races import Timings


def _timings(workload: str, **more: list[float]) -> Timings:
    """The candidate takes 100 us and eager 150, and both twice as long from the fourth round on."""
    pace = [1.0] * 3 + [2.0] * 6
    return Timings(
        workload, {"candidate": [100 * each for each in pace], "eager": [150 * each for each in pace], **more}
    )


def _summed(*timings: Timings) -> Evaluation:
    evaluation = Evaluation("x")
    summarise(evaluation, timings, "cuda:0")
    return evaluation


def test_a_baseline_that_left_early_is_reported_and_changes_no_interval() -> None:
    found = _summed(_timings("only", compile=[200.0, 210.0, 190.0]))
    row = found.workloads[0]
    assert row.baselines_us == pytest.approx({"eager": 300, "compile": 200})
    assert (row.baseline, row.speedup) == ("eager", pytest.approx(1.5))
    assert found.speedups == pytest.approx({"eager": 1.5, "compile": 2.0})
    assert found.speedup == pytest.approx(1.5)
    assert (row.ci95, found.ci95) == (_summed(_timings("only")).workloads[0].ci95, _summed(_timings("only")).ci95)


def test_each_workload_has_its_own_rival_where_others_left() -> None:
    slower = [130.0 * each for each in [1.0] * 3 + [2.0] * 6]
    found = _summed(_timings("one", compile=[200.0] * 3), _timings("two", compile=slower))
    assert [row.baseline for row in found.workloads] == ["eager", "compile"]
    assert found.speedup == pytest.approx(math.sqrt(1.5 * 1.3))
    assert found.speedups["compile"] == pytest.approx(math.sqrt(2.0 * 1.3))
