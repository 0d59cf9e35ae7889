"""Threads that go before others: for as long as they asked for it, and no thread that they start."""

from __future__ import annotations

import os
import resource
import threading

from worker.judge.runners import urgent


def test_a_thread_goes_before_others_until_the_end_where_the_system_allows_it() -> None:
    before = os.sched_getscheduler(0)
    with urgent.at_once() as granted:
        policy = os.sched_getscheduler(0)
        assert policy == (os.SCHED_FIFO | os.SCHED_RESET_ON_FORK if granted else before)
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
        thread.start()
        thread.join()
    assert os.sched_getscheduler(0) == before
    assert seen == [before]


def test_who_may_not_is_told_so() -> None:
    """In a process of an ordinary user, whose limit is 0."""
    process = os.fork()
    if process == 0:
        resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        with urgent.at_once() as granted:
            os._exit(int(granted))
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
