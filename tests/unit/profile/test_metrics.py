"""The frozen list of metrics: few, named once, each with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.profile.metrics import METRICS, NAMES, chosen


def test_there_are_twenty_to_thirty_each_with_a_reason_of_its_own() -> None:
    assert 20 <= len(METRICS) <= 30
    assert len(NAMES) == len({metric.why for metric in METRICS}) == len(METRICS)
    assert {metric.unit for metric in METRICS} == {"share", "1", "threads", "bytes"}


def test_no_counter_is_read_as_two_metrics() -> None:
    counters = [name for metric in METRICS for name in metric.ncu]
    assert len(counters) == len(set(counters))


def test_what_was_not_measured_is_left_out_and_the_order_is_frozen() -> None:
    found = chosen({"device_share": 0.123456, "sol_fraction": 0.5, "memory_share": None})
    assert list(found.items()) == [("sol_fraction", 0.5), ("device_share", 0.1235)]


def test_a_figure_outside_of_the_list_is_refused() -> None:
    with pytest.raises(KeyError, match="gigaflops"):
        chosen({"gigaflops": 1.0})


def test_the_documentation_lists_them_all() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "profile.md").read_text(encoding="utf-8")
    for metric in METRICS:
        assert f"| `{metric.name}` | {metric.unit} | {metric.why} |" in page
