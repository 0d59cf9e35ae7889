"""Threads that go before others: for as long as they asked for it, and no thread that they start."""

from __future__ import annotations

import os
import resource
import signal
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


def test_processes_are_preferred_until_the_end_where_the_system_allows_it() -> None:
    other = os.fork()
    if other == 0:
        while True:
            signal.pause()
    ended = os.fork()
    if ended == 0:
        os._exit(0)
    os.waitpid(ended, 0)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        with urgent.preferred([other, ended, None]) as granted:
            assert [os.getpriority(os.PRIO_PROCESS, each) for each in (0, other)] == [-20 if granted else before] * 2
        assert [os.getpriority(os.PRIO_PROCESS, each) for each in (0, other)] == [before] * 2
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
