"""One wording for results, on a terminal and in a pipe."""

from __future__ import annotations

import json

import pytest

from cli import show
from tests.unit.cli.wire import BEST, job


def test_numbers() -> None:
    assert [show.speedup(1.2345), show.speedup(None)] == ["1.23x", "-"]
    assert [show.latency(9.87), show.latency(1234.5), show.latency(None)] == ["9.9 us", "1.23 ms", "-"]
    assert [show.interval([1.5, 2.0]), show.interval(None), show.interval([])] == ["[1.50, 2.00]", "", ""]


def test_fields_are_one_line_whatever_they_hold() -> None:
    data = {"verdict": "ok", "speedup": 1.83456, "reason": "two\nwords", "parents": ["a"], "none": None, "empty": {}}
    assert show.fields(data) == 'verdict=ok speedup=1.835 reason="two words" parents=["a"]'
    assert len(show.fields({"log": "x" * 5000})) < 200


def test_fields_come_in_an_order_that_a_reader_wants() -> None:
    assert (
        show.fields({"reason": "r", "speedup": 2.0, "verdict": "ok", "ordinal": 3})
        == "ordinal=3 verdict=ok speedup=2 reason=r"
    )


def test_zero_and_false_are_values() -> None:
    assert show.fields({"count": 0, "changed": False}) == "count=0 changed=false"


def test_an_outcome_says_how_it_ended_what_is_best_and_what_it_cost() -> None:
    ended = job(state="succeeded", stop_reason="target_reached", best=BEST)
    assert show.outcome(ended) == (
        "job_1: succeeded (target_reached); best 1.83x [1.80, 1.87] over compile, 12.3 us; "
        "3 candidates judged, $0.12, 4 GPU s"
    )


def test_an_outcome_without_a_best_says_what_went_wrong() -> None:
    ended = job(state="failed", stop_reason="error", error="no worker serves nvidia-h100")
    assert "no worker serves nvidia-h100" in show.outcome(ended)


def test_a_piped_table_is_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(("a", "b"), [("1", "two\nlines\tand a tab")], empty="nothing")
    assert capsys.readouterr().out == "a\tb\n1\ttwo lines and a tab\n"


def test_an_empty_table_leaves_stdout_empty(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(("a", "b"), [], empty="no such jobs")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "no such jobs\n")


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show.put_json({"text": "two\nlines é"})
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == {"text": "two\nlines é"}
