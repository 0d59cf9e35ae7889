"""The device lease: verifications together, timings alone, and neither waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
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
        self.turn: Callable[[], AbstractContextManager[object]] | None = None

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


def test_a_turn_comes_before_the_next_timing_of_whoever_times_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_PATIENCE_S", 60.0)
    over, order = threading.Event(), []

    def time_on() -> None:
        mine = DeviceLease(tmp_path, "cpu")
        while not over.is_set():
            with mine.exclusive():
                order.append("timing")
                time.sleep(0.2)

    threads = [threading.Thread(target=time_on) for _number in range(3)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.1)
        before = len(order)
        with DeviceLease(tmp_path, "cpu").turn():
            order.append("turn")
            assert len(order) <= before + 2, "the one that was under way, or had just got the device, at most"
            time.sleep(0.1)
            assert order[-1] == "turn", "alone"
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_runners_that_share_the_device_have_their_turns_one_after_the_other(tmp_path: Path) -> None:
    order: list[str] = []

    def share(name: str) -> None:
        runner = Runner([])
        with DeviceLease(tmp_path, "cpu").lent(runner, turns=True):
            assert runner.turn is not None
            for _number in range(3):
                with runner.turn():
                    order.append(f"{name} begins")
                    time.sleep(0.05)
                    order.append(f"{name} ends")
        assert runner.turn is None

    threads = [threading.Thread(target=share, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(order) == 18
    assert all(one.split()[0] == two.split()[0] for one, two in zip(order[::2], order[1::2], strict=True))


def test_whoever_only_shares_the_device_may_not_ask_for_a_turn(tmp_path: Path) -> None:
    runner = Runner([])
    with DeviceLease(tmp_path, "cpu").lent(runner):
        assert runner.turn is None
