"""One wording for results, on a terminal and in a pipe."""

from __future__ import annotations

import json
from collections.abc import Callable

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


HOSTILE = "ok\x1b]0;owned\x07\x1b[2J\x9b31m\u202eko\x00\ud800"


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    "shown",
    [
        lambda: show.say(HOSTILE),
        lambda: show.note(HOSTILE),
        lambda: show.put_json({"reason": HOSTILE}),
        lambda: show.table(["reason"], [[HOSTILE]], empty=""),
        lambda: show.say(show.fields({"reason": HOSTILE})),
    ],
    ids=["say", "note", "json", "table", "fields"],
)
def test_nothing_that_others_wrote_moves_a_cursor(
    shown: Callable[[], None], terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "on_terminal", lambda: terminal)
    shown()
    printed = "".join(capsys.readouterr())
    assert "owned" in printed
    assert [letter for letter in printed if not letter.isprintable() and letter != "\n"] == []


def test_a_source_is_inert_on_a_terminal_and_itself_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "# \x1b[2J\tcaf\xe9\n"
    for terminal, wanted in ((True, "# \\x1b[2J\tcaf\xe9\n"), (False, source)):
        monkeypatch.setattr(show, "on_terminal", lambda on=terminal: on)
        show.say_source(source)
        assert capsys.readouterr().out == wanted


def test_json_stays_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    show.put_json({"reason": HOSTILE})
    assert json.loads(capsys.readouterr().out) == {"reason": HOSTILE}
