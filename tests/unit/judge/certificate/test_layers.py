"""Checks sorted into layers, with the figure that decided each."""

from __future__ import annotations

import pytest

from tests.unit.judge.certificate.samples import value_check
from worker.judge.certificate.document import Outcome
from worker.judge.certificate.layers import grouped, row
from worker.judge.verdict import Check


@pytest.mark.parametrize(
    ("check", "layer"),
    [
        (value_check("small/normal/output0", 0.1), "numerics"),
        (value_check("small/special/grad:x", 0.1), "numerics"),
        (value_check("generality/rows 7", 0.1), "semantics"),
        (value_check("small/sensitivity/other x/output0", 0.1), "semantics"),
        (Check("late results", True), "timing"),
        (Check("small/repeats", True), "determinism"),
        (Check("small/guard zones", False), "hygiene"),
        (Check("timed outputs", True), "timing"),
        (Check("physics floor", True), "physics"),
        (Check("something new", True), "other"),
    ],
)
def test_a_check_lands_in_its_layer(check: Check, layer: str) -> None:
    assert [found.id for found in grouped([check], [])] == [layer]


def test_layers_come_in_the_judges_order_and_system_checks_last() -> None:
    checks = [Check("timed outputs", True), value_check("small/normal/output0", 0.1)]
    found = [layer.id for layer in grouped(checks, [Check("system: leak slope", True)])]
    assert found == ["numerics", "timing", "system"]


def test_the_deciding_figure_is_picked_out() -> None:
    found = row(value_check("small/normal/output0", 0.5))
    assert (found.statistic, found.threshold, found.unit) == (5e-5, 1e-4, "relative error")
    leak = row(Check("leak", True, "", {"leak_bytes_per_call": 3.0, "limit_bytes_per_call": 9.0}))
    assert (leak.statistic, leak.threshold, leak.unit) == (3.0, 9.0, "bytes a call")
    assert row(Check("plain", True)).statistic is None


def test_a_check_says_itself_when_it_is_a_reservation_or_does_not_apply() -> None:
    said = [row(Check("c", False, "", {"outcome": str(outcome)})).outcome for outcome in Outcome]
    assert said == [Outcome.FAILED, Outcome.FAILED, Outcome.RESERVATION, Outcome.NOT_APPLICABLE]
    assert row(Check("c", True)).outcome is Outcome.PASSED
