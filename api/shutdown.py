"""Lets go of long-polls and event streams at the first SIGTERM, whoever runs the server.

An ASGI server waits for open requests before it ends the application's lifespan; a stream that ends with its job, in an
hour perhaps, would keep the process until something kills it.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from api.feed import Feed

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def release_on_signal(feed: Feed) -> Iterator[None]:
    """While the block lasts, a SIGTERM or SIGINT stops the feed and then does what the server has it do.

    A signal that the server leaves at its default stays so: it ends the process without our help. Outside the main
    thread, where no signal arrives (a server inside a test), this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    before = {number: handler for number, handler in found.items() if callable(handler)}

    def release(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(feed.release)
        before[signal.Signals(number)](number, frame)

    for number in before:
        signal.signal(number, release)
    try:
        yield
    finally:
        for number, previous in before.items():
            if signal.getsignal(number) is release:
                signal.signal(number, previous)
