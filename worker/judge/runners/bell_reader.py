"""Who reads the bell? The runner's own loop must, and nobody in between who says that a call is over before it is.

The judge knows the socket at the other end of its bell from the kernel (sock_diag, unix(7)), and what a thread waits on
from /proc/PID/syscall, whose first argument is a descriptor for read, recv and the like. A proxy on the bell leaves the
runner's main thread waiting on a socket of the proxy's.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from pathlib import Path

_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NETLINK_SOCK_DIAG = 20, 1, 4
_UDIAG_SHOW_PEER, _UNIX_DIAG_PEER = 4, 2
_ANY = 0xFFFFFFFF
_HEADER, _REQUEST, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBHIIIII"), struct.Struct("=HH")
_ANSWER_BYTES = 16
"""struct unix_diag_msg: family, type, state, pad, inode, cookie."""
_PATIENCE_S, _PAUSE_S = 1.0, 2e-3
_AT_LAST_S = 20.0
"""For one that still runs, or would if it got a core: it may be on its way to the bell."""


def peer_inode(ours: socket.socket) -> int | None:
    """The inode of the socket at the other end of a pair; None where the kernel does not tell."""
    inode = os.fstat(ours.fileno()).st_ino
    body = _REQUEST.pack(socket.AF_UNIX, 0, 0, _ANY, inode, _UDIAG_SHOW_PEER, _ANY, _ANY)
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_PATIENCE_S)
        netlink.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body)
        return _peer(netlink.recv(4096))
    return None


def waits_on(pid: int, inode: int) -> bool:
    """Whether the main thread of an idle process waits on this socket, or soon does. Raises OSError."""
    began = time.monotonic()
    while True:
        # Before the look: who waited elsewhere by then had its time to come to the bell.
        limit_s = _AT_LAST_S if _runs(pid) else _PATIENCE_S
        late = time.monotonic() - began > limit_s
        if socket_waited_on(pid) == inode:
            return True
        if late:
            return False
        time.sleep(_PAUSE_S)


def _runs(pid: int) -> bool:
    """Whether its main thread has a core or waits for one."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"


def socket_waited_on(pid: int) -> int | None:
    """The inode of the socket that the process's main thread waits on just now; None for none. Raises OSError."""
    fields = Path(f"/proc/{pid}/syscall").read_text().split()
    if len(fields) < 3 or fields[0] == "-1":
        return None
    with contextlib.suppress(OSError):
        link = str(Path(f"/proc/{pid}/fd/{int(fields[1], 16)}").readlink())
        if link.startswith("socket:["):
            return int(link[len("socket:[") : -1])
    return None


def _peer(answer: bytes) -> int | None:
    length, kind, *_rest = _HEADER.unpack_from(answer)
    if kind != _SOCK_DIAG_BY_FAMILY:
        return None
    at = _HEADER.size + _ANSWER_BYTES
    while at + _ATTRIBUTE.size <= length:
        size, attribute = _ATTRIBUTE.unpack_from(answer, at)
        if attribute == _UNIX_DIAG_PEER:
            return int.from_bytes(answer[at + 4 : at + 8], "little")
        at += max(_ATTRIBUTE.size, -(-size // 4) * 4)
    return None
