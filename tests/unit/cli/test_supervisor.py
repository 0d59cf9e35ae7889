"""When something that ended is started again."""

from __future__ import annotations

from cli.supervisor import Backoff


def test_what_keeps_ending_is_started_more_and_more_slowly() -> None:
    backoff = Backoff()
    assert [backoff.after(ran_s=0.1) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_minute_of_running_begins_anew() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.after(ran_s=1)
    assert backoff.after(ran_s=60) == 0.5
