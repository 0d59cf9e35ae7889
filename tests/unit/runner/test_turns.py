"""Turns on the device, as the judge sees them."""

from __future__ import annotations

import socket
import threading
import time

from worker.runner import protocol
from worker.runner.turns import Turns


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
