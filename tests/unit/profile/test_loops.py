"""Samples and loops: which loop is hot, where in the source it is, and what the compiler said of it."""

from __future__ import annotations

from typing import Any

import pytest

from worker.profile.loops import HotLoop, Loop, Malformed, Report, hot_loops

SOURCE = "void f() {\n  for (int i = 0; i < n; i++)\n    s += x[i];\n  for (;;)\n    y = x * 2;\n}\n"
DATA: dict[str, Any] = {
    "shift": 0x1000,
    "loops": [
        {"start": 0x1100, "end": 0x1180, "mix": {"all": 40, "scalar": 4, "packed32": 8}},
        {"start": 0x1110, "end": 0x1120, "mix": {"all": 5, "scalar": 2}},
        {"start": 0x1200, "end": 0x1220, "mix": {"all": 9, "packed64": 4, "packed16": 1}},
    ],
    "lines": [[0x1100, 2], [0x1110, 3], [0x1124, 2], [0x1200, 5]],
    "remarks": [[2, "missed", "unsafe dependence"], [3, "missed", "control flow in loop."], [5, "optimized", "done"]],
}
REPORT = Report.from_json(DATA)


def test_a_sample_belongs_to_the_smallest_loop_around_it() -> None:
    hot = hot_loops(REPORT, SOURCE, [0x110] * 6 + [0x118] * 2 + [0x130], total=10)
    assert hot[0] == HotLoop(0.8, 3, "s += x[i];", 4, "control flow in loop.", {"all": 5, "scalar": 2})
    assert (hot[1].share, hot[1].line, hot[1].vector_bytes) == (0.1, 2, 32)


def test_a_loop_is_named_by_its_own_statement_and_what_is_hot_in_it_beside() -> None:
    """The machine code of a loop is often that of functions inlined into it."""
    report = Report.from_json(DATA | {"lines": [[0x1110, 3], [0x111E, 2], [0x1124, 4]]})
    (hot,) = hot_loops(report, SOURCE, [0x110] * 3 + [0x11E], total=4)
    assert (hot.line, hot.text) == (2, "for (int i = 0; i < n; i++)")
    assert hot.hottest == "line 3: s += x[i];"


def test_what_takes_less_than_a_tenth_is_not_hot() -> None:
    assert hot_loops(REPORT, SOURCE, [0x110] * 9, total=100) == ()
    assert hot_loops(REPORT, SOURCE, [0x900] * 90, total=100) == ()
    assert hot_loops(Report(), SOURCE, [0x110] * 9, total=10) == ()


def test_a_vectorised_loop_needs_no_reason() -> None:
    (hot,) = hot_loops(REPORT, SOURCE, [0x208] * 5, total=10)
    assert (hot.vector_bytes, hot.why, hot.text) == (64, "", "y = x * 2;")


@pytest.mark.parametrize(
    ("mix", "width"),
    [({"scalar": 3}, 4), ({"scalar": 1, "packed16": 1}, 16), ({"scalar": 2, "packed64": 1}, 4), ({"all": 7}, None)],
)
def test_the_width_of_a_loop_is_that_of_most_of_its_arithmetic(mix: dict[str, int], width: int | None) -> None:
    assert Loop(0, 9, mix).vector_bytes == width


def test_a_line_beyond_the_source_has_no_text() -> None:
    """`#line` in a hostile source can say anything."""
    report = Report.from_json(DATA | {"lines": [[0x1100, 7_000_000]]})
    (hot,) = hot_loops(report, SOURCE, [0x110] * 5, total=5)
    assert (hot.line, hot.text) == (7_000_000, "")


def test_a_line_cannot_move_a_terminals_cursor() -> None:
    hostile = SOURCE.replace("s += x[i];", "s += x[i]; // \x1b[2Jgone\r")
    assert hot_loops(REPORT, hostile, [0x110], total=1)[0].text == "s += x[i]; //  [2Jgone"


@pytest.mark.parametrize(
    "change",
    [{"loops": [{"start": 1}]}, {"lines": [[1]]}, {"remarks": [["x", "y", "z"]]}, {"shift": None}, {"loops": [7]}],
)
def test_what_is_no_report_is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        Report.from_json(DATA | change)
    with pytest.raises(Malformed):
        Report.from_json([])
