"""A real API server in a thread, on a port that the system chooses."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from api.connections import BoundedProtocol

START_S = 20.0


@contextmanager
def serving(app: FastAPI, protocol: type[BoundedProtocol] = BoundedProtocol) -> Iterator[str]:
    """Serve the application; yields its base URL."""
    # With the protocol named, asyncio turns Nagle off; else a small answer waits 40 ms for an acknowledgement.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=protocol, log_config=None, access_log=False, timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="api")
        thread.start()
        try:
            _wait_until_started(server, thread)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + START_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the API server did not start")
        time.sleep(0.01)
