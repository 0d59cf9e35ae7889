"""The wire between judge and runner: length-prefixed JSON with file descriptors, and one-byte doorbells.

Two sockets join a judge to a runner. The *control* socket carries JSON messages (4-byte length, then UTF-8), sometimes
with file descriptors. The *bell* carries fixed 14-byte commands and one-byte answers, so that a timed call costs two
small system calls and no parsing (about 10 us a round trip, against 60 us for JSON).

Everything that arrives from the runner is hostile: sizes are capped, shapes are checked, nothing is unpickled.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import time
from typing import Any

MAX_MESSAGE_BYTES = 4 << 20
MAX_FDS = 8
MAX_DEPTH = 32
"""Of lists and objects in each other. What is deeper makes `str`, `==` and their like raise RecursionError later."""
_LENGTH = struct.Struct("!I")
BELL = struct.Struct("!BBHHHHI")
"""Command, flags, steps of a chain, evictions before it, its first step with a call, calls, number (slot, result or
nonce)."""

# Bell commands. The runner answers each with one byte: OK, or FAILED followed by a message on the control socket.
CALL, KEEP, CHAIN, NULL_CHAIN, QUIT = b"CKBNQ"
MIX, RETAIN = 1, 2
"""Flags of a chain: write fresh values into each slot before its call; hold all results until the next command. A call
with RETAIN leaves the results of those before it."""
OK, FAILED = b"\x00", b"\x01"


class ProtocolError(Exception):
    """The peer broke the protocol: an oversized, malformed or truncated message."""


class PeerClosed(Exception):
    """The peer closed the connection, which a runner does only by dying."""


class PeerTimeout(Exception):
    """The peer did not answer within its time limit."""


def send_message(
    sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = (), timeout_s: float | None = None
) -> None:
    """Send one JSON object, with file descriptors attached to its first byte.

    Raises PeerClosed, and PeerTimeout when the peer reads nothing for `timeout_s` seconds while its buffer is full.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"message of {len(body)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    data = _LENGTH.pack(len(body)) + body
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.settimeout(timeout_s)
    try:
        sent = sock.sendmsg([data], ancillary)
        if sent < len(data):
            sock.sendall(data[sent:])
    except TimeoutError as full:
        raise PeerTimeout("the peer does not read") from full
    except (BrokenPipeError, ConnectionResetError) as gone:
        raise PeerClosed("connection closed while sending") from gone
    finally:
        sock.settimeout(None)


def receive_message(sock: socket.socket, timeout_s: float | None = None) -> tuple[dict[str, Any], list[int]]:
    """Receive one JSON object and the descriptors that came with it.

    Raises PeerClosed, PeerTimeout after `timeout_s` seconds for the whole message, or ProtocolError.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    fds: list[int] = []
    try:
        (length,) = _LENGTH.unpack(_receive_exactly(sock, _LENGTH.size, deadline, fds))
        if length > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"the peer announced {length} bytes; the limit is {MAX_MESSAGE_BYTES}")
        return parsed(_receive_exactly(sock, length, deadline, None)), fds
    except BaseException:
        close_all(fds)  # nobody else knows of them: each refused message would leave some open in the judge
        raise


def parsed(body: bytes) -> dict[str, Any]:
    """The JSON object that a message's body holds. Raises ProtocolError for all else."""
    try:
        message = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as broken:
        raise ProtocolError("the peer sent something that is not JSON") from broken
    if not isinstance(message, dict):
        raise ProtocolError("the peer sent JSON that is not an object")
    if _deeper_than(message, MAX_DEPTH):
        raise ProtocolError(f"the peer sent JSON that is nested deeper than {MAX_DEPTH} levels")
    return message


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _deeper_than(value: Any, limit: int) -> bool:
    """Level by level and not by recursion: how deep it is, is the peer's choice."""
    level = [value]
    for _depth in range(limit + 1):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def _receive_exactly(sock: socket.socket, size: int, deadline: float | None, fds: list[int] | None) -> bytes:
    """So many bytes; descriptors that come with them are put into `fds`, where there is one."""
    chunks: list[bytes] = []
    missing = size
    while missing:
        _wait_readable(sock, deadline)
        try:
            if fds is not None:
                chunk, ancillary, _flags, _addr = sock.recvmsg(missing, socket.CMSG_SPACE(MAX_FDS * 4))
                fds += _descriptors(ancillary)
            else:
                chunk = sock.recv(min(missing, 1 << 20))
        except ConnectionResetError as gone:
            raise PeerClosed("connection reset") from gone
        if not chunk:
            raise PeerClosed("connection closed")
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            found += list(numbers)
    return found


def _wait_readable(sock: socket.socket, deadline: float | None) -> None:
    if deadline is None:
        return
    left = deadline - time.monotonic()
    if left <= 0 or not _readable(sock, left):
        raise PeerTimeout("no answer within the time limit")


def _readable(sock: socket.socket, timeout_s: float) -> bool:
    """By poll(2): select(2) knows no descriptor above 1023, and a judge may have more."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1e3))


def ring_bell(
    sock: socket.socket,
    command: int,
    *,
    flags: int = 0,
    count: int = 0,
    lead: int = 0,
    first: int = 0,
    calls: int = 0,
    number: int = 0,
) -> None:
    """Send one bell command (no waiting)."""
    try:
        sock.send(BELL.pack(command, flags, count, lead, first, calls, number))
    except (BrokenPipeError, ConnectionResetError) as gone:
        raise PeerClosed("connection closed while ringing") from gone


def spin(sock: socket.socket, size: int, limit_s: float) -> bytes | None:
    """Receive without ever sleeping; None when nothing came within `limit_s` seconds.

    A process that sleeps in `recv` wakes 100 to 800 us after the bell on a virtual machine; one that spins, within 30.
    """
    stop_s = time.perf_counter() + limit_s
    while time.perf_counter() < stop_s:
        try:
            return sock.recv(size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
    return None


def refuse_surplus(sock: socket.socket) -> None:
    """Raise ProtocolError when an answer waits that nobody asked for."""
    if _readable(sock, 0):
        raise ProtocolError("an answer to the bell came that nobody asked for")


def await_bell(sock: socket.socket, timeout_s: float, *, spin_s: float = 0.0) -> bytes:
    """Wait for the one-byte answer to a bell command, at first without sleeping. Raises PeerClosed or PeerTimeout."""
    try:
        answer = spin(sock, 1, spin_s)
        if answer is None:
            if not _readable(sock, timeout_s):
                raise PeerTimeout("no answer within the time limit")
            answer = sock.recv(1)
    except ConnectionResetError as gone:
        raise PeerClosed("connection reset") from gone
    if not answer:
        raise PeerClosed("connection closed")
    return answer


def close_all(fds: list[int]) -> None:
    """Close descriptors that nobody asked for."""
    for fd in fds:
        os.close(fd)
