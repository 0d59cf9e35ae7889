"""What can be known to be wrong before anything is started; each finding is one sentence."""

from __future__ import annotations

import errno
import importlib.util
import shutil
import socket
from collections.abc import Collection
from pathlib import Path

from cli.errors import CliError
from db import tracing
from db.settings import NoAuth, Settings, check_bind

LEAST_FREE_BYTES = 512 * 1024**2
"""A cluster is 40 MB, its write-ahead log grows to 1 GB at most under load, and builds and logs need some."""


class PortTaken(CliError):
    """Port {port} on {host} is taken by another program: choose one with --port, or --port 0 for any that is free."""


class AddressUnusable(CliError):
    """Cannot listen on {host}:{port} ({why}): choose another address with --host and --port."""


class OpenToAll(CliError):
    """{problem}"""

    exit_code = 2


class TracesUnmakeable(CliError):
    """{problem}"""

    exit_code = 2


class DiskNearlyFull(CliError):
    """Only {free_mb} MB are free on the disk that holds {home} and Kernelwright wants {least_mb} MB: free some, or
    choose a folder on another disk with --home."""


class NoCompiler(CliError):
    """No C++ compiler was found, and the cpu worker needs g++: install it (Debian, Ubuntu: apt install g++), or start
    without that worker: --queues control,llm."""


class NoPackage(CliError):
    """The Python package {package} is not installed here: pip install 'kernelwright[all]'."""


def listeners(host: str, port: int, count: int) -> list[socket.socket]:
    """Listening sockets on one address, for as many processes: the kernel spreads connections over them.

    With one socket for all, the process that is awake takes a burst of connections whole. Raises as `listen`.
    """
    if count == 1:
        return [listen(host, port)]
    with listen(host, port) as free:  # a port that is shared by everybody is never taken
        port = int(free.getsockname()[1])
    return [listen(host, port, shared=True) for _ in range(count)]


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket for the API, made here so that its port stays ours while the API restarts.

    `shared`: other sockets of ours may listen there too. Raises PortTaken or AddressUnusable.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind(address)
            listener.listen(2048)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(host=host, port=port) from error
        raise AddressUnusable(host=host, port=port, why=error.strerror or error) from error
    listener.set_inheritable(True)
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL under which a browser on this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_auth(host: str) -> None:
    """Raises OpenToAll when others could reach the API without a key."""
    try:
        check_bind(Settings(), host)
    except NoAuth as error:
        raise OpenToAll(problem=error) from error


def check_traces() -> None:
    """Raises TracesUnmakeable when an endpoint for traces is set and what sends them is not installed."""
    try:
        tracing.check(Settings())
    except tracing.TelemetryMissing as error:
        raise TracesUnmakeable(problem=error) from error


def check_disk(home: Path) -> None:
    """Raises DiskNearlyFull."""
    free = shutil.disk_usage(home).free
    if free < LEAST_FREE_BYTES:
        raise DiskNearlyFull(home=home, free_mb=free // 1024**2, least_mb=LEAST_FREE_BYTES // 1024**2)


def check_compiler(queues: Collection[str]) -> None:
    """Raises NoCompiler when the cpu queue is to be served without one."""
    if "cpu" in queues and shutil.which("g++") is None:
        raise NoCompiler


def check_packages(packages: Collection[str]) -> None:
    """Raises NoPackage for the first that is missing; imports none."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise NoPackage(package=package)
