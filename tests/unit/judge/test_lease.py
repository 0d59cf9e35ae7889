"""The device lease: verifications together, timings alone, and neither waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.judge import lease
from worker.judge.lease import DeviceLease


def test_verifications_share_and_a_timing_is_alone(tmp_path: Path) -> None:
    first, second = DeviceLease(tmp_path, "cpu"), DeviceLease(tmp_path, "cpu")
    with first.shared(), second.shared():
        pass
    alone = threading.Event()

    def timing() -> None:
        with second.exclusive():
            alone.set()

    with first.shared():
        thread = threading.Thread(target=timing)
        thread.start()
        assert not alone.wait(0.5)
    assert alone.wait(10)
    thread.join()


def test_a_timing_gets_its_turn_among_verifications_that_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_PATIENCE_S", 0.3)
    over, timed = threading.Event(), threading.Event()

    def verify(delay_s: float) -> None:
        mine = DeviceLease(tmp_path, "cpu")
        time.sleep(delay_s)
        while not over.is_set():
            with mine.shared():
                time.sleep(0.3)

    def timing() -> None:
        with DeviceLease(tmp_path, "cpu").exclusive():
            timed.set()

    threads = [threading.Thread(target=verify, args=(0.1 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.6)  # from now on one of them holds it at any moment
    threads.append(threading.Thread(target=timing))
    threads[-1].start()
    try:
        assert timed.wait(10)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_only_counted_seconds_are_counted(tmp_path: Path) -> None:
    mine = DeviceLease(tmp_path, "cpu")
    with mine.shared(counted=False):
        time.sleep(0.05)
    assert mine.held_s == 0.0
    with mine.exclusive():
        time.sleep(0.05)
    assert mine.held_s >= 0.05


class Runner:
    """Something that can be stopped, and tells when."""

    def __init__(self, told: list[str]) -> None:
        self._told = told
        self.meanwhile: Callable[[], float] | None = None

    def freeze(self) -> None:
        self._told.append("stopped")

    def thaw(self) -> None:
        self._told.append("resumed")


def test_a_runner_that_is_waited_for_gives_way_to_a_timing(tmp_path: Path) -> None:
    first, second = DeviceLease(tmp_path, "cpu"), DeviceLease(tmp_path, "cpu")
    told: list[str] = []
    runner = Runner(told)

    def timing(name: str) -> threading.Thread:
        def timed() -> None:
            with second.exclusive():
                told.append(name)

        thread = threading.Thread(target=timed)
        thread.start()
        return thread

    with first.lent(runner):
        assert runner.meanwhile is not None
        assert runner.meanwhile() == 0.0 and not told, "nobody waits"
        one = timing("timed")
        deadline = time.monotonic() + 10
        while "timed" not in told and time.monotonic() < deadline:
            runner.meanwhile()
        assert told == ["stopped", "timed", "resumed"]
        one.join()
        another = timing("timed again")
        time.sleep(0.2)
        assert told[-1] == "resumed", "the device is shared again"
    another.join()
    assert told[-1] == "timed again" and runner.meanwhile is None
