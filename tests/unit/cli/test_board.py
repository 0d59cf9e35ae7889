"""The live picture: what the events say is in it, and it fits a terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from cli.board import SHOWN, Board
from tests.unit.cli.wire import BEST, event, job


def _text(board: Board, width: int = 100) -> str:
    console = Console(file=StringIO(), width=width, force_terminal=False)
    console.print(board)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def _board(**changes: object) -> Board:
    return Board(job(**changes), lambda _: 61.4)


def test_the_head_says_which_job_where_and_for_how_long() -> None:
    head = _text(_board()).splitlines()[0]
    assert head.split() == ["softmax", "on", "cpu:cpp", "running", "61", "s", "job_1"]


def test_the_counts_are_the_jobs_own() -> None:
    text = _text(_board(best=BEST))
    assert "4/20 candidates" in text
    assert "ok=2 incorrect=1 " in text
    assert "timeout" not in text
    assert "best 1.83x over compile [1.80, 1.87]" in text
    assert "$0.12" in text


def test_a_budget_without_a_number_of_candidates_shows_no_end() -> None:
    text = _text(_board(budget={"candidates": None, "usd": "5", "wall_s": None, "gpu_s": None}))
    assert "4 candidates" in text


def test_a_candidate_fills_its_line_as_its_events_come() -> None:
    board = _board()
    board.apply(
        event(1, "candidate.created", candidate_id="cand_7", ordinal=7, operator="refine", model="openai/gpt-5")
    )
    before = _text(board).splitlines()[-1]
    board.apply(event(2, "candidate.evaluated", candidate_id="cand_7", verdict="ok", speedup=1.5, latency_us=10.04))
    after = _text(board).splitlines()[-1]
    assert before.split() == ["7", "refine", "openai/gpt-5", "proposing"]
    assert after.split() == ["7", "refine", "openai/gpt-5", "ok", "1.50x", "10.0", "us"]


def test_a_bad_candidate_says_why() -> None:
    board = _board()
    board.apply(
        event(1, "candidate.evaluated", candidate_id="a", ordinal=1, verdict="incorrect", reason="row 3\nis NaN")
    )
    board.apply(event(2, "candidate.rejected", candidate_id="b", ordinal=2, failure="no_code", detail="empty"))
    lines = _text(board).splitlines()
    assert "row 3 is NaN" in lines[-2]
    assert lines[-1].split() == ["2", "rejected", "no_code:", "empty"]


def test_a_candidate_without_a_verdict_says_where_it_is() -> None:
    board = _board()
    for stage in ("created", "proposed", "evaluating"):
        board.apply(event(1, f"candidate.{stage}", candidate_id=stage, ordinal=1))
    assert [line.split()[1] for line in _text(board).splitlines()[-3:]] == ["proposing", "queued", "evaluating"]


def test_only_the_last_candidates_are_shown() -> None:
    board = _board()
    for ordinal in range(3 * SHOWN):
        board.apply(event(ordinal + 1, "candidate.proposed", candidate_id=f"cand_{ordinal}", ordinal=ordinal))
    assert [row.ordinal for row in board.rows] == list(range(2 * SHOWN, 3 * SHOWN))


def test_other_events_make_no_line() -> None:
    board = _board()
    board.apply(event(1, "job.started"))
    board.apply(event(2, "job.improved", candidate_id="cand_1", speedup=1.2))
    board.apply(event(3, "candidate.proposed", ordinal=1))
    assert board.rows == []


def test_it_fits_a_narrow_terminal_and_takes_nothing_for_markup() -> None:
    board = _board()
    reason = "[bold]expected[/bold] [1, 2] " * 20
    board.apply(event(1, "candidate.evaluated", candidate_id="a", ordinal=1, verdict="incorrect", reason=reason))
    text = _text(board, width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "[bold]" in text
