"""Judges that share a device wait for each other's memory, in turn."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from worker.judge import room
from worker.judge.room import Room, Shortfall

TOTAL = 100 << 30
"""What may be promised."""
DEVICE = int(TOTAL / room._SHARE) + 1

OTHER = """
import sys, pathlib, structlog
from worker.judge.room import Room
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
room = Room(pathlib.Path(sys.argv[1]), "gpu", int(sys.argv[2]))
room.take(int(sys.argv[3]), int(sys.argv[4]))
print("in", flush=True)
sys.stdin.readline()
room.leave()
print("out", flush=True)
sys.stdin.readline()
"""


class Other:
    """A judge in another process."""

    def __init__(self, folder: Path, nbytes: int, passing: int = 0) -> None:
        arguments = [sys.executable, "-c", OTHER, str(folder), str(DEVICE), str(nbytes), str(passing)]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def mine(tmp_path: Path) -> Room:
    return Room(tmp_path, "gpu", DEVICE)


def taken_within(room: Room, nbytes: int, limit_s: float) -> bool:
    thread = threading.Thread(target=room.take, args=(nbytes,), daemon=True)
    thread.start()
    thread.join(limit_s)
    return not thread.is_alive()


def test_whoever_is_alone_never_waits_whatever_it_asks_for(mine: Room) -> None:
    assert taken_within(mine, 10 * TOTAL, 10)
    assert taken_within(mine, 10 * TOTAL, 10)  # its own is given back first


def test_whoever_asks_for_no_more_than_it_has_goes_on_at_once(mine: Room, tmp_path: Path) -> None:
    mine.take(TOTAL - (1 << 30), passing=1 << 30)
    waits = Other(tmp_path, TOTAL)
    try:
        wait_until(lambda: mine.wanted(idle=True))
        assert taken_within(mine, TOTAL - (1 << 30), 10), "a finalist is prepared once more"
        assert not taken_within(mine, TOTAL, 1), "for more than it had it waits behind the other"
        assert waits.says() == "in"
    finally:
        waits.kill()


def test_two_that_fit_are_in_together_and_a_third_waits_until_one_leaves(mine: Room, tmp_path: Path) -> None:
    mine.take(40 << 30)
    second, third = Other(tmp_path, 40 << 30), None
    try:
        assert second.says() == "in"
        assert not mine.wanted(idle=True)
        third = Other(tmp_path, 40 << 30)
        wait_until(lambda: mine.wanted(idle=True))
        assert not mine.wanted(idle=False)  # at work: not before a minute is over
        second.leave()
        assert third.says() == "in"
        assert not mine.wanted(idle=True)
    finally:
        for other in filter(None, (second, third)):
            other.kill()


def test_whoever_takes_all_shares_with_nobody(mine: Room, tmp_path: Path) -> None:
    small = Other(tmp_path, 1 << 30)
    try:
        assert small.says() == "in"
        assert not taken_within(mine, mine.all, 1)
        assert not mine.has_all
        small.leave()
        wait_until(lambda: mine.has_all)
        assert mine.promised == DEVICE
    finally:
        small.kill()
    beside = Other(tmp_path, 1 << 20)
    try:
        wait_until(lambda: mine.wanted(idle=True))
        mine.keep(1 << 30)
        assert beside.says() == "in"
    finally:
        beside.kill()


def test_what_fits_passes_what_does_not_until_that_has_waited_for_minutes(mine: Room, tmp_path: Path) -> None:
    mine.take(60 << 30)
    others = [Other(tmp_path, 60 << 30)]
    try:
        wait_until(lambda: mine.wanted(idle=True))
        others.append(Other(tmp_path, 1 << 30))
        assert others[1].says() == "in", "it fits beside"
        with mine._entries() as entries:
            entries[:] = [entry if entry.held else replace(entry, since=entry.since - 400) for entry in entries]
        others.append(Other(tmp_path, 1 << 30))
        wait_until(lambda: len(json.loads((tmp_path / "gpu.json").read_text())) == 4)
        time.sleep(4 * room._POLL_S)
        held = [entry["held"] for entry in json.loads((tmp_path / "gpu.json").read_text())]
        assert held == [True, False, True, False], "now all wait behind the large one"
        mine.leave()
        assert others[0].says() == "in"
        assert others[2].says() == "in"
    finally:
        for other in others:
            other.kill()


def test_a_finalist_goes_before_those_who_came_earlier(mine: Room, tmp_path: Path) -> None:
    others = [Other(tmp_path, 90 << 30)]
    try:
        assert others[0].says() == "in"
        others.append(Other(tmp_path, 60 << 30))
        wait_until(lambda: len(json.loads((tmp_path / "gpu.json").read_text())) == 2)
        finalist = threading.Thread(target=mine.take, args=(60 << 30,), kwargs={"finalist": True}, daemon=True)
        finalist.start()
        wait_until(lambda: len(json.loads((tmp_path / "gpu.json").read_text())) == 3)
        others[0].leave()
        finalist.join(20)
        assert not finalist.is_alive() and mine.promised == 60 << 30
        assert mine.wanted(idle=True), "the other one waits still"
    finally:
        for other in others:
            other.kill()


def test_what_one_keeps_no_longer_others_have_at_once(mine: Room, tmp_path: Path) -> None:
    mine.take(60 << 30, passing=20 << 30)
    other = Other(tmp_path, 60 << 30)
    try:
        wait_until(lambda: mine.wanted(idle=True))
        mine.keep(10 << 30)
        assert other.says() == "in" and mine.promised == 10 << 30
        mine.keep(90 << 30)
        assert mine.promised == 10 << 30, "nobody keeps more than it has"
    finally:
        other.kill()


def test_what_is_needed_at_times_is_kept_for_the_two_that_need_most(mine: Room, tmp_path: Path) -> None:
    mine.take(10 << 30, passing=20 << 30)
    others = [Other(tmp_path, 10 << 30, 20 << 30) for _number in range(4)]
    try:
        assert [other.says() for other in others] == ["in"] * 4, "50 kept, and 40 for what passes"
        others.append(Other(tmp_path, 10 << 30, 30 << 30))
        wait_until(lambda: mine.wanted(idle=True))  # 60 kept, and 50
    finally:
        for other in others:
            other.kill()


def test_who_has_died_has_nothing(mine: Room, tmp_path: Path) -> None:
    other = Other(tmp_path, TOTAL)
    assert other.says() == "in"
    other.kill()
    assert taken_within(mine, TOTAL, 10)


def test_who_has_ended_has_nothing_though_nobody_asked_for_its_exit_code(mine: Room, tmp_path: Path) -> None:
    other = Other(tmp_path, TOTAL)
    try:
        assert other.says() == "in"
        other.process.send_signal(signal.SIGKILL)
        assert taken_within(mine, TOTAL, 10)
    finally:
        other.kill()


def test_after_a_minute_one_at_work_is_asked_to_leave(
    mine: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_PATIENCE_S", 0.5)
    mine.take(TOTAL)
    other = Other(tmp_path, TOTAL)
    try:
        wait_until(lambda: mine.wanted(idle=False))
    finally:
        other.kill()


def test_one_who_has_nothing_has_nothing_to_leave(tmp_path: Path, mine: Room) -> None:
    other = Other(tmp_path, TOTAL)
    try:
        assert other.says() == "in"
        assert not mine.wanted(idle=True)
    finally:
        other.kill()


def wait_until(true: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_judge_knows_whether_others_have_a_part(mine: Room, tmp_path: Path) -> None:
    mine.take(60 << 30)
    assert not mine.crowded
    guest = Other(tmp_path, 30 << 30)
    try:
        assert guest.says() == "in" and mine.crowded
        guest.leave()
        assert guest.says() == "out" and not mine.crowded
    finally:
        guest.kill()


def test_a_problem_asks_for_more_after_it_was_not_enough(tmp_path: Path) -> None:
    shortfall = Shortfall(tmp_path / "problem.room.json")
    assert shortfall.times == 1.0
    shortfall.add()
    assert Shortfall(tmp_path / "problem.room.json").times == 1.4
    for _again in range(5):
        shortfall.add()
    assert shortfall.times == 2.0, "whoever fills the device on purpose keeps others out no longer than that"
    for _again in range(20):
        shortfall.lessen()
    assert shortfall.times == 1.0
    (tmp_path / "problem.room.json").write_text("not a number")
    assert shortfall.times == 1.0
