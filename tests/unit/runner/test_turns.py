"""Turns on the device, as the judge sees them."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import torch

from worker.runner import protocol, turns
from worker.runner.turns import Turns, take_turns


class Compiler:
    """Stands for torch's: what it times is a method of each kind."""

    def __call__(self) -> str:
        return self.choose()

    @classmethod
    def choose(cls) -> str:
        return cls.benchmark()

    @staticmethod
    def benchmark() -> str:
        return "fastest"


def test_all_baselines_of_a_runner_have_their_turns_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is loaded with a request for turns. Class methods got a turn within a turn by that, and none was compiled
    ahead whose products of matrices are chosen from templates."""
    found = [(__name__, "Compiler", name) for name in ("__call__", "choose", "benchmark")]
    monkeypatch.setattr(turns, "_PLACES", [*found, (__name__, "Compiler", "not_in_this_version")])
    monkeypatch.setattr(turns, "_ASIDE", [])
    for name in ("__call__", "choose", "benchmark"):
        monkeypatch.setattr(Compiler, name, vars(Compiler)[name])  # put back at the end
    mine, theirs = socket.socketpair()
    with mine, theirs:
        for _baseline in range(4):
            take_turns(theirs)
        answers = [{"turn": True}, {"turn": True}]
        for answer in answers:
            protocol.send_message(mine, answer)
        assert Compiler()() == "fastest"
        assert Compiler.choose() == "fastest"
        told = [protocol.receive_message(mine, timeout_s=20)[0]["turn"] for _message in range(4)]
        assert told == [True, False, True, False]
        mine.setblocking(False)
        with pytest.raises(BlockingIOError):
            mine.recv(1)


def test_threads_that_ask_while_one_has_a_turn_are_part_of_it() -> None:
    mine, theirs = socket.socketpair()
    turns, told = Turns(theirs), []

    def judge() -> None:
        while True:
            message, _fds = protocol.receive_message(mine, timeout_s=20)
            told.append(message["turn"])
            if not message["turn"]:
                return
            time.sleep(0.2)  # until the device is free
            protocol.send_message(mine, {"turn": True})

    def tune(took_s: float) -> None:
        with turns.turn():
            time.sleep(took_s)

    threads = [threading.Thread(target=judge)]
    threads += [threading.Thread(target=tune, args=(took_s,)) for took_s in (0.1, 0.3)]
    with mine, theirs:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert told == [True, False]


def test_what_is_compiled_in_the_middle_of_a_turn_leaves_the_device_to_others() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        for _turn in range(2):
            protocol.send_message(mine, {"turn": True})
        turn = Turns(theirs)
        with turn.aside():
            pass  # nothing to give back
        with turn.turn(), turn.turn():
            told = [protocol.receive_message(mine, timeout_s=20)[0]["turn"]]
            with turn.aside():
                told.append(protocol.receive_message(mine, timeout_s=20)[0]["turn"])
            told.append(protocol.receive_message(mine, timeout_s=20)[0]["turn"])
        told.append(protocol.receive_message(mine, timeout_s=20)[0]["turn"])
        assert told == [True, False, True, False]


def test_a_thread_that_compiles_leaves_the_device_to_another_of_its_process() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        protocol.send_message(mine, {"turn": True})
        turn, benching, compiled = Turns(theirs), threading.Event(), threading.Event()

        def bench() -> None:
            with turn.turn():
                benching.set()
                compiled.wait(20)

        thread = threading.Thread(target=bench)
        with turn.turn():
            thread.start()
            assert benching.wait(20)
            with turn.aside():
                pass
            compiled.set()
            thread.join(20)
        told = [protocol.receive_message(mine, timeout_s=20)[0]["turn"] for _message in range(2)]
        assert told == [True, False], "the other had it meanwhile"


def test_a_thread_without_a_turn_compiles_while_another_waits_for_the_device() -> None:
    mine, theirs = socket.socketpair()
    turn, compiled = Turns(theirs), threading.Event()

    def bench() -> None:
        with turn.turn():
            pass

    def compile_one() -> None:
        with turn.aside():
            compiled.set()

    threads = [threading.Thread(target=each) for each in (bench, compile_one)]
    with mine, theirs:
        threads[0].start()
        assert protocol.receive_message(mine, timeout_s=20)[0] == {"turn": True}
        threads[1].start()
        try:
            assert compiled.wait(5)
        finally:
            protocol.send_message(mine, {"turn": True})
            for thread in threads:
                thread.join(20)


def test_a_turn_ends_also_when_a_kernel_of_it_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def synchronize() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    mine, theirs = socket.socketpair()
    with mine, theirs:
        protocol.send_message(mine, {"turn": True})
        with pytest.raises(RuntimeError, match="illegal memory access"), Turns(theirs).turn():
            pass
        told = [protocol.receive_message(mine, timeout_s=5)[0]["turn"] for _message in range(2)]
        assert told == [True, False]
