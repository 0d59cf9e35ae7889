"""What the candidate inherits, and what it hands to the judge: descriptors."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hostile.attempt import Attempt
from tests.hostile.traps import Told

if TYPE_CHECKING:
    from tests.hostile.ground import Ground

_FIND = """
sockets = []
for name in os.listdir("/proc/self/fd"):
    try:
        link = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        continue
    if link.startswith("socket:"):
        sockets.append(int(name))
"""
_HANDS_OVER = (
    _FIND
    + """
import array
files = array.array("i", [os.open(os.devnull, os.O_RDONLY)] * 8)
control = min(sockets)
pair = socket.socket(fileno=os.dup(control))
pair.sendmsg([MESSAGE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
"""
)


def _hands_over(message: bytes) -> str:
    return _HANDS_OVER.replace("MESSAGE", repr(message))


_HUGE = b"\xff\xff\xff\xff"
_JUNK = b"\x00\x00\x00\x04junk"


def _target(link: Path) -> str:
    """Nothing where it has been closed meanwhile, as by a thread that has read a runner's output to its end."""
    with contextlib.suppress(FileNotFoundError):
        return str(link.readlink())
    return ""


class JudgesDescriptors:
    """How many descriptors the judge (this process) has open: none more than before."""

    def __init__(self, _ground: Ground) -> None:
        self._before = self._open()
        self.targets: dict[str, str | int] = {}

    def _open(self) -> int:
        """Those of the device that the candidates hand over."""
        return sum(_target(link) == os.devnull for link in list(Path("/proc/self/fd").iterdir()))

    def seen(self, _log: str) -> str:
        more = self._open() - self._before
        return f"{more} descriptors stayed open" if more > 0 else ""

    def close(self) -> None:
        """They are the judge's."""


ATTEMPTS = (
    Attempt("inherited-descriptors", "descriptors", "finds open files beside its standard ones and its two sockets",
            _FIND + """
for name in os.listdir("/proc/self/fd"):
    try:
        link = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        continue
    if not link.startswith(("socket:", "pipe:", "/dev/null", f"/proc/{os.getpid()}/fd")) or len(sockets) > 2:
        print(name, link)
        told()
""", Told, control=False),
    Attempt("inherited-terminal", "descriptors", "reads what is typed into the judge's standard input",
            'if os.readlink("/proc/self/fd/0") != "/dev/null":\n    told()', Told),
    Attempt("descriptors-with-junk", "descriptors", "hands the judge descriptors with a message that is no JSON",
            _hands_over(_JUNK), JudgesDescriptors, control=False),
    Attempt("descriptors-with-huge-length", "descriptors", "hands the judge descriptors with an announced 4 GiB",
            _hands_over(_HUGE), JudgesDescriptors, control=False),
    Attempt("descriptors-and-death", "descriptors", "hands the judge descriptors with half a message and dies",
            _hands_over(b"\x00\x00") + "os._exit(0)", JudgesDescriptors, control=False),
    Attempt("descriptors-one-by-one", "descriptors", "hands the judge descriptors with each byte of a length",
            _hands_over(b"\x00") * 3 + "os._exit(0)", JudgesDescriptors, control=False),
)  # fmt: skip
