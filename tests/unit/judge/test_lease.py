"""The device lease: verifications together, timings alone, and neither waits for ever."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from worker.judge import waiting
from worker.judge.lease import DeviceLease
from worker.judge.phases import Phases, Rhythm
from worker.judge.waiting import Queue


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


def test_a_timing_gets_its_turn_among_verifications_that_overlap(tmp_path: Path) -> None:
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
        self.away: Callable[[], AbstractContextManager[object]] | None = None

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


def test_what_must_not_be_stopped_is_shared_with_others_for_so_long(tmp_path: Path) -> None:
    first, second, third = (DeviceLease(tmp_path, "cpu") for _each in range(3))
    told: list[str] = []
    runner = Runner(told)

    def time_it() -> None:
        with second.exclusive():
            told.append("timed")

    timing = threading.Thread(target=time_it)
    with first.lent(runner):
        usual = runner.meanwhile
        with first.unstopped(runner, at_most_s=4.0):
            timing.start()
            until = time.monotonic() + 0.8
            while time.monotonic() < until:
                assert runner.meanwhile is not None and runner.meanwhile() == 0.0
            with third.shared():
                assert told == [], "and others share it meanwhile, though somebody wants it alone"
            deadline = time.monotonic() + 10
            while "timed" not in told and time.monotonic() < deadline:
                runner.meanwhile()
            assert told == ["stopped", "timed", "resumed"], "it took longer than it may"
        assert runner.meanwhile is usual
    timing.join()


def test_a_turn_comes_before_the_next_timing_of_whoever_times_all_the_time(tmp_path: Path) -> None:
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


def test_when_nobody_was_timed_for_a_while_a_timing_goes_before_turns(tmp_path: Path) -> None:
    rhythm = Rhythm(0.0, 0.0, 60.0, 0.0, 0.0, slice_s=0.5)
    over, order = threading.Event(), list[str]()

    def work(name: str, took_s: float) -> None:
        mine = DeviceLease(tmp_path, "gpu", rhythm)
        while not over.is_set():
            with mine.exclusive() if name == "timing" else mine.turn():
                order.append(name)
                time.sleep(took_s)

    threads = [threading.Thread(target=work, args=("turn", 0.1)) for _number in range(3)]
    threads += [threading.Thread(target=work, args=("timing", 0.1)) for _number in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(4.0)
    over.set()
    for thread in threads:
        thread.join(10)
    timings = [index for index, name in enumerate(order) if name == "timing"]
    assert len(timings) >= 3, "turns are wanted all the time"
    between = [after - before - 1 for before, after in zip(timings, timings[1:], strict=False)]
    assert max(between) >= 2, "and go first for half a second"


def test_for_something_short_the_device_is_shared_if_it_is_and_else_had_between_the_rounds_of_a_timing(
    tmp_path: Path,
) -> None:
    rhythm = Rhythm(0.0, 60.0, 60.0, 0.0, 0.0, slice_s=0.2)
    first, second = DeviceLease(tmp_path, "gpu", rhythm), DeviceLease(tmp_path, "gpu", rhythm)
    with first.shared(), second.briefly():
        assert second.turns_had == 0, "together"
    had = threading.Event()

    def short() -> None:
        with second.briefly():
            had.set()

    with first.exclusive() as give_way:
        thread = threading.Thread(target=short)
        thread.start()
        deadline = time.monotonic() + 10
        while not had.is_set() and time.monotonic() < deadline:
            time.sleep(0.05)
            give_way()
        assert had.is_set() and second.turns_had == 1, "a phase of timings lasts a minute"
    thread.join()


def test_turns_are_had_in_the_order_in_which_they_are_asked_for(tmp_path: Path) -> None:
    order: list[int] = []
    leases = [DeviceLease(tmp_path, "cpu") for _number in range(4)]

    def take_turn(number: int) -> None:
        with leases[number].turn():
            order.append(number)

    threads = [threading.Thread(target=take_turn, args=(number,)) for number in (2, 0, 3, 1)]
    with DeviceLease(tmp_path, "cpu").shared():
        for thread in threads:
            thread.start()
            time.sleep(0.1)
    for thread in threads:
        thread.join(10)
    assert order == [2, 0, 3, 1]


def test_the_device_is_free_while_something_is_built(tmp_path: Path) -> None:
    told: list[str] = []
    runner = Runner(told)
    mine = DeviceLease(tmp_path, "cpu")
    with mine.lent(runner):
        assert runner.away is not None
        with runner.away():
            with DeviceLease(tmp_path, "cpu").exclusive():
                told.append("timed")
            time.sleep(0.3)
        assert told == ["stopped", "timed", "resumed"]
    assert mine.held_s < 0.2, "what is built holds nothing"
    assert runner.away is None


def test_whoever_prepares_lets_timings_go_first(tmp_path: Path) -> None:
    timed = threading.Event()

    def timing() -> None:
        with DeviceLease(tmp_path, "cpu").exclusive():
            timed.set()

    with DeviceLease(tmp_path, "cpu").shared() as pause:
        pause()
        thread = threading.Thread(target=timing)
        thread.start()
        assert not timed.wait(0.3), "only between two steps"
        pause()
        assert timed.is_set()
    thread.join()


def test_of_two_timings_the_one_whose_work_began_first_goes_first(tmp_path: Path) -> None:
    leases = [DeviceLease(tmp_path, "cpu") for _number in range(4)]
    order: list[int] = []
    for number in (2, 0, 3, 1):
        leases[number].begin()

    def timing(number: int) -> None:
        with leases[number].exclusive():
            order.append(number)

    with DeviceLease(tmp_path, "cpu").shared():
        threads = [threading.Thread(target=timing, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join(10)
    assert order == [2, 0, 3, 1]


def test_of_the_threads_of_a_process_the_first_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_number", itertools.count(98))
    mine, order = DeviceLease(tmp_path, "cpu"), list[int]()

    def timing(number: int) -> None:
        with mine.exclusive():
            order.append(number)

    threads = [threading.Thread(target=timing, args=(number,)) for number in range(4)]
    with DeviceLease(tmp_path, "cpu").shared():
        for thread in threads:
            thread.start()
            time.sleep(0.1)
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3]


RHYTHM = Rhythm(shared_at_least_s=1.0, shared_at_most_s=1.0, alone_at_most_s=1.0, linger_s=0.3, drain_s=0.0)


class Crowd:
    """Threads of judges that all want the device, and who had it in what order."""

    def __init__(self, folder: Path) -> None:
        self.order: list[str] = []
        self._folder, self._over, self._threads = folder, threading.Event(), list[threading.Thread]()

    def start(self, work: Callable[[DeviceLease, list[str]], None], count: int) -> None:
        def on_and_on() -> None:
            mine = DeviceLease(self._folder, "gpu", RHYTHM)
            while not self._over.is_set():
                work(mine, self.order)

        self._threads += [threading.Thread(target=on_and_on) for _number in range(count)]
        for thread in self._threads[-count:]:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(20)


def time_for_a_while(mine: DeviceLease, order: list[str]) -> None:
    with mine.exclusive():
        order.append("alone")
        time.sleep(0.05)


def share_for_a_while(mine: DeviceLease, order: list[str]) -> None:
    with mine.shared() as pause:
        for _step in range(4):
            order.append("shared")
            time.sleep(0.05)
            pause()


def test_a_gpu_is_shared_for_a_while_and_then_had_alone_by_one_after_the_other(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    crowd.start(share_for_a_while, 3)
    crowd.start(time_for_a_while, 3)
    time.sleep(6.0)
    crowd.end()
    changes = sum(one != two for one, two in zip(crowd.order, crowd.order[1:], strict=False))
    assert 4 <= changes <= 8, "every second, and not whenever somebody has done with it"
    alone, shared = crowd.order.count("alone"), crowd.order.count("shared")
    assert alone >= 10 and shared >= 20


def test_who_has_had_the_device_alone_may_have_it_again_before_others_share_it(tmp_path: Path) -> None:
    slow = dataclasses.replace(RHYTHM, alone_at_most_s=5.0, linger_s=3.0)
    mine, other = DeviceLease(tmp_path, "gpu", slow), DeviceLease(tmp_path, "gpu", slow)
    joined = threading.Event()

    def share() -> None:
        with other.shared():
            joined.set()

    with mine.exclusive():
        thread = threading.Thread(target=share)
        thread.start()
    for _workload in range(3):
        time.sleep(0.1)
        with mine.exclusive():
            assert not joined.is_set()
    assert joined.wait(10)
    thread.join()


def test_after_a_short_turn_it_is_shared_for_a_short_time() -> None:
    rhythm = Rhythm(0.5, 2.5, 10.0, 0.1, 0.25)
    assert [rhythm.shared_s(alone_s) for alone_s in (0.0, 0.2, 4.0, 10.0, 60.0)] == [0.5, 0.5, 1.0, 2.5, 2.5]


def test_how_long_a_device_was_had_alone_is_known_while_it_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    phases = Phases(tmp_path / "gpu.phase")
    phases.seized()
    now += 2.0
    phases.left()
    now += 1.0
    phases.seized()
    now += 1.0
    phases.left()
    now += 5.0
    assert (phases.now().age_s, phases.now().idle_s) == (9.0, 5.0)
    phases.joined()
    now += 0.5
    phases.joined()
    assert not phases.now().alone and (phases.now().age_s, phases.now().alone_s) == (0.5, 4.0)


@pytest.mark.parametrize(("waits", "alone_s"), [(False, 0.0), (True, 0.8)])
def test_what_nobody_wanted_was_not_had_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool, alone_s: float
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    mine, phases = DeviceLease(tmp_path, "gpu", RHYTHM), Phases(tmp_path / "gpu.phase")
    with mine.turn():
        pass
    now += 0.8
    with Queue(tmp_path / "gpu.joining").waiting("0") if waits else contextlib.nullcontext(), mine.turn():
        pass
    now += 0.5
    with mine.shared():
        assert phases.now().alone_s == pytest.approx(alone_s)


def test_a_timing_lets_turns_go_first_between_its_rounds_and_goes_on_before_other_timings(tmp_path: Path) -> None:
    order: list[str] = []
    rhythm = Rhythm(0.0, 0.0, 60.0, 0.0, 0.0, slice_s=1.0)
    mine = DeviceLease(tmp_path, "gpu", rhythm)

    def work(name: str, *, turn: bool) -> threading.Thread:
        def do() -> None:
            lease = DeviceLease(tmp_path, "gpu", rhythm)
            with lease.turn() if turn else lease.exclusive():
                order.append(name)

        thread = threading.Thread(target=do)
        thread.start()
        return thread

    with mine.exclusive() as give_way:
        threads = [work("another timing", turn=False), work("a turn", turn=True)]
        order.append("first round")
        give_way()
        order.append("second round, soon after")
        time.sleep(1.2)
        give_way()
        order.append("third round")
        give_way()
    for thread in threads:
        thread.join(10)
    assert order == ["first round", "second round, soon after", "a turn", "third round", "another timing"]


def test_a_timing_lets_others_share_the_device_between_its_rounds_after_a_while(tmp_path: Path) -> None:
    rhythm = Rhythm(0.0, 0.0, 3.0, 0.0, 0.0, slice_s=1.0)
    mine, joined = DeviceLease(tmp_path, "gpu", rhythm), threading.Event()

    def share() -> None:
        with DeviceLease(tmp_path, "gpu", rhythm).shared():
            joined.set()

    thread = threading.Thread(target=share)
    with mine.exclusive() as give_way:
        thread.start()
        time.sleep(0.3)
        give_way()
        assert not joined.is_set()
        time.sleep(3.0)
        give_way()
        assert joined.is_set()
    thread.join(10)


def test_a_state_from_before_the_machine_started_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1e6)
    phases = Phases(tmp_path / "gpu.phase")
    assert not phases.now().alone and phases.now().age_s > 1e5
    phases.seized()
    phases.joined()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert phases.now().age_s == float("inf"), "long enough for whoever wants it alone"
    phases.seized()
    assert phases.now().alone and phases.now().age_s == 0.0


_WAITS = """
import sys, pathlib
from worker.judge.waiting import Queue
with Queue(pathlib.Path(sys.argv[1])).waiting("0") as first:
    print(first(), flush=True)
    sys.stdin.read()
"""


def test_a_process_that_died_while_it_waited_is_waited_for_by_nobody(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    command = [sys.executable, "-c", _WAITS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waits:
        assert waits.stdout is not None and waits.stdout.readline() == "True\n"
        with queue.waiting("1") as first:
            assert queue.any() and not first()
            waits.kill()
            waits.wait()
            assert first()
    assert not queue.any() and not list(tmp_path.iterdir())
