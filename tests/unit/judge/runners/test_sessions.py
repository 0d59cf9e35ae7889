"""What the judge does while it waits for a runner's answer, and what it keeps of the runner's output."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.judge.runners.processes import Processes, RefereeOptions
from worker.judge.runners.sessions import LOG_BYTES, Output
from worker.judge.verdict import Fault, Verdict

SLOW = """
import time

class ModelNew: pass

for _tick in range(20):
    time.sleep(0.05)
"""


def test_a_runner_that_is_stopped_meanwhile_loses_nothing_of_its_time(tmp_path: Path) -> None:
    processes = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False)
    try:
        with processes.runner() as runner:
            stops = 0

            def stop() -> float:
                nonlocal stops
                if stops == 5:
                    return 0.0
                stops += 1
                runner.freeze()
                time.sleep(2.0)
                runner.thaw()
                return 2.0

            runner.meanwhile = stop
            load = {"op": "load", "subject": "slow", "source": SLOW, "class": "ModelNew", "compile": None}
            runner.ask(load, 8.0)  # it takes 1 s where cores are free, and was stopped for 10
            assert stops == 5

            runner.meanwhile = lambda: 0.0
            endless = SLOW.replace("range(20)", "range(10**6)")
            with pytest.raises(Fault) as late:
                runner.ask(load | {"source": endless}, 0.5)
            assert late.value.verdict is Verdict.TIMEOUT
    finally:
        processes.close()


ASKING = """
import socket, sys

from worker.runner.turns import Turns

frame = sys._getframe()
while "control" not in frame.f_locals:
    frame = frame.f_back
turns = Turns(frame.f_locals["control"])

class ModelNew: pass

with turns.turn():
    with turns.turn():
        print("alone")
with turns.turn():
    print("alone again")
"""


def test_a_runner_gets_the_device_for_its_turns_where_it_may_ask_and_else_is_suspicious(tmp_path: Path) -> None:
    processes = Processes(RefereeOptions(tmp_path, "cpu"), on_gpu=False)
    load = {"op": "load", "subject": "asking", "source": ASKING, "class": "ModelNew", "compile": None}
    held: list[str] = []

    @contextlib.contextmanager
    def device() -> Iterator[None]:
        held.append("taken")
        yield
        held.append("given back")

    try:
        with processes.runner() as runner:
            runner.turn = device
            runner.ask(load, 20)
            assert held == ["taken", "given back"] * 2, "a turn within a turn is part of it"
        with processes.runner() as runner, pytest.raises(Fault) as refused:
            runner.ask(load, 20)
        assert refused.value.verdict is Verdict.SUSPICIOUS
    finally:
        processes.close()


def test_what_was_printed_is_known_before_the_reading_thread_had_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Output, "_drain", lambda _self: None)
    ours, theirs = os.pipe()
    output = Output(ours)
    assert output.tail() == b""
    os.write(theirs, b"it sees")
    assert output.tail() == b"it sees"
    os.write(theirs, b"y" * LOG_BYTES)
    assert output.tail() == b"y" * LOG_BYTES
    os.close(theirs)
    assert output.tail() == b"y" * LOG_BYTES
    output._pipe.close()  # which is the thread's to do


def test_the_tail_of_a_flood_is_kept_and_the_reader_ends_with_it() -> None:
    ours, theirs = os.pipe()
    output = Output(ours)
    with os.fdopen(theirs, "wb") as pipe:
        for number in range(300_000):
            pipe.write(b"%d\n" % number)
    output.reader.join(20)
    assert not output.reader.is_alive()
    assert len(output.tail()) == LOG_BYTES and output.tail().endswith(b"299998\n299999\n")
