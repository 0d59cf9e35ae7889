"""The API server on a socket that the supervisor already listens on: `python -m cli.serve FD`.

The socket outlives a crash of the server: while it restarts, clients wait in the socket's queue and are not refused.
"""

from __future__ import annotations

import socket
import sys

import uvicorn

from api.connections import BoundedProtocol

APP = "api.app:create_app"


def main(descriptor: int) -> None:
    """Serve until SIGTERM."""
    config = uvicorn.Config(
        APP, factory=True, http=BoundedProtocol, log_config=None, server_header=False, timeout_graceful_shutdown=5
    )
    with socket.socket(fileno=descriptor) as listener:
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(int(sys.argv[1]))
