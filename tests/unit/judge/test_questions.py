"""The judge process between two questions: when others may have its room."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import cast

import pytest

from worker.judge import __main__ as process
from worker.judge.referee import Referee


class Idle:
    """A referee that notes whether it was said to be idle."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def make_room(self, *, idle: bool) -> None:
        self.told.append(idle)


def asked_after(monkeypatch: pytest.MonkeyPatch, seconds: float, grace_s: float) -> list[bool]:
    """What a referee is told while the next question takes so long."""
    monkeypatch.setattr(process, "_LOOK_S", 0.1)
    theirs, ours = os.pipe()
    referee = Idle()

    def ask() -> None:
        time.sleep(seconds)
        os.write(ours, b"a question\n")
        os.close(ours)

    with os.fdopen(theirs) as questions:
        monkeypatch.setattr(sys, "stdin", questions)
        thread = threading.Thread(target=ask)
        thread.start()
        assert process._next_line(cast(Referee, referee), grace_s) == "a question\n"
        thread.join()
    return referee.told


def test_a_judge_keeps_its_room_until_the_next_question_can_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    told = asked_after(monkeypatch, 3.0, grace_s=2.0)
    assert told[:2] == [False, False] and told[-1] and told == sorted(told)
    assert not any(asked_after(monkeypatch, 0.5, grace_s=60.0))


def test_after_a_certificate_others_may_have_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process._grace_s("certify") == 0.0
    assert process._grace_s("evaluate") > 1.0 and process._grace_s("fingerprint") > 1.0
    assert all(asked_after(monkeypatch, 0.5, grace_s=0.0))
