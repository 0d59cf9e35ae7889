"""The device lease: verifications together, timings alone, and neither waits for ever."""

from __future__ import annotations

import threading
import time
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


def test_who_shares_gives_way_to_a_timing_that_waits(tmp_path: Path) -> None:
    first, second = DeviceLease(tmp_path, "cpu"), DeviceLease(tmp_path, "cpu")
    told: list[str] = []
    timed = threading.Event()

    def timing() -> None:
        with second.exclusive():
            told.append("timed")
            timed.set()

    with first.shared() as share:
        assert share.give_way(lambda: told.append("stopped"), lambda: told.append("resumed")) == 0.0
        thread = threading.Thread(target=timing)
        thread.start()
        deadline = time.monotonic() + 10
        while not timed.is_set() and time.monotonic() < deadline:
            share.give_way(lambda: told.append("stopped"), lambda: told.append("resumed"))
        assert told == ["stopped", "timed", "resumed"]
        thread.join()

        def another() -> None:
            with second.exclusive():
                told.append("timed again")

        thread = threading.Thread(target=another)
        thread.start()
        time.sleep(0.2)
        assert told[-1] == "resumed", "it holds its share again"
    thread.join()
    assert told[-1] == "timed again"
