"""Bombs: memory, memory that belongs to no process, disks, files, descriptors, output."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hostile.attempt import Attempt
from tests.hostile.traps import Told, token
from tests.hostile.victims import Bystander, Log, SharedMemory

if TYPE_CHECKING:
    from tests.hostile.ground import Ground

_DISK = "its scratch is a folder on the machine's disk: only the size of one file is bounded"
_ON_DISK = {"landlock": _DISK, "process": _DISK}
_SHM = "the machine's /dev/shm: only the size of one file is bounded"

_ANONYMOUS = """
held = []
while len(held) < 48:
    held.append(bytearray(b"x") * (64 << 20))
told()
"""
_MEMFD = """
chunk = bytes(64 << 20)
written, files = 0, []
while written < T["bytes"]:
    file = libc.memfd_create(b"hidden", 0)
    if file < 0:
        raise OSError(ctypes.get_errno(), "memfd_create")
    files.append(file)
    for _each in range(3):
        written += os.write(file, chunk)
"""
_SYSTEM_V = """
libc.shmat.restype = ctypes.c_void_p
held = 0
while held < T["bytes"]:
    segment = libc.shmget(0, 128 << 20, 0o1600)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    address = libc.shmat(segment, None, 0)
    ctypes.memset(address, 1, 128 << 20)
    libc.shmctl(segment, 0, None)
    held += 128 << 20
"""
_TMPFS = """
chunk = bytes(64 << 20)
written = 0
for number in range(1000):
    with open(f"/dev/shm/{T['token']}-{number}", "wb", buffering=0) as file:
        for _each in range(3):
            written += file.write(chunk)
    if written >= T["bytes"]:
        break
"""
_MANY = """
os.mkdir("many")
for number in range(T["most"]):
    os.close(os.open(f"many/{number}", os.O_CREAT | os.O_WRONLY))
told()
"""


class Scratch(Told):
    """The ground's scratch is 256 MiB."""

    def __init__(self, ground: Ground, most: int) -> None:
        super().__init__(ground, most=most)


class Leftovers:
    """Files of a scratch that are there when the runner is gone."""

    def __init__(self, _ground: Ground) -> None:
        self._name = token()
        self._before = self._scratches()
        self.targets: dict[str, str | int] = {"name": self._name}

    def _scratches(self) -> set[Path]:
        return set(Path(tempfile.gettempdir()).glob("kernelwright-*"))

    def seen(self, _log: str) -> str:
        left = [path for path in self._scratches() - self._before if (path / self._name).exists()]
        return "its scratch is still there" if left else ""

    def close(self) -> None:
        for path in self._scratches() - self._before:
            if (path / self._name).exists():
                os.system(f"rm -rf {path}")  # noqa: S605 - thousands of folders deep: Python's own cannot


ATTEMPTS = (
    Attempt("memory", "resources", "takes 3 GiB of memory where 2 are allowed", _ANONYMOUS, Told),
    Attempt("memory-in-children", "resources", "takes 3 GiB of memory in eight processes", """
import time
children = []
for _each in range(8):
    pid = os.fork()
    if pid == 0:
        held = [bytearray(b"x") * (64 << 20) for _piece in range(6)]
        time.sleep(20)
        os._exit(0)
    children.append(pid)
end = time.monotonic() + 8
while time.monotonic() < end:
    sizes = [read(f"/proc/{pid}/statm").split() for pid in children]
    if sum(int(size[1]) for size in sizes if size) * 4096 > 3 << 30:
        told()
        break
    time.sleep(0.05)
""", Told, control=False),
    Attempt("memory-in-memfds", "resources", "keeps memory in memfds that no process maps", _MEMFD, SharedMemory,
            {"process": "no filter of system calls"}),
    Attempt("memory-in-segments", "resources", "keeps memory in System V segments", _SYSTEM_V, SharedMemory,
            {"process": "no filter of system calls"}),
    Attempt("memory-in-shm", "resources", "keeps memory in files below /dev/shm", _TMPFS, SharedMemory,
            {"landlock": _SHM, "process": _SHM}),
    Attempt("disk", "resources", "fills its scratch with 400 MiB in many files", """
chunk = bytes(100 << 20)
for number in range(4):
    with open(f"{number}", "wb") as file:
        file.write(chunk)
told()
""", Told, _ON_DISK),
    Attempt("large-file", "resources", "writes a file of 300 MiB", """
with open("large", "wb") as file:
    file.write(bytes(300 << 20))
told()
""", Told),
    Attempt("sparse-file", "resources", "makes a sparse file of 1 TiB",
            'os.truncate(os.open("sparse", os.O_CREAT | os.O_RDWR), 1 << 40)\ntold()', Told),
    Attempt("many-files", "resources", "makes 110,000 empty files, each of which takes kernel memory", _MANY,
            lambda ground: Scratch(ground, most=110_000), _ON_DISK),
    Attempt("many-descriptors", "resources", "opens 5,000 files", """
held = [open(os.devnull) for _each in range(5000)]
told()
""", Told, control=False),
    Attempt("own-limits", "resources", "lifts its own limits", """
import resource
for which in (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE):
    soft, hard = resource.getrlimit(which)
    try:
        resource.setrlimit(which, (hard + 1, hard + 1))
        told()
    except (ValueError, OSError):
        pass
""", Told, control=False),
    Attempt("files-of-the-machine", "resources", "opens as many descriptors as all its processes may have", """
import time
for _each in range(100):
    try:
        if os.fork() == 0:
            held = []
            try:
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                time.sleep(20)
                os._exit(0)
    except OSError:
        break
time.sleep(0.5)
""", Bystander, control=False),
    Attempt("pipe-buffers", "resources", "holds 256 MiB in the buffers of pipes", """
import fcntl
held = 0
try:
    while held < 256 << 20:
        out, into = os.pipe()
        fcntl.fcntl(into, 1031, 1 << 20)
        os.set_blocking(into, False)
        held += os.write(into, bytes(1 << 20))
    told()
except OSError:
    pass
""", Told, control=False),
    Attempt("output", "resources", "prints 200 MB", """
for _each in range(200):
    os.write(1, b"x" * (1 << 20))
""", Log),
    Attempt("output-of-errors", "resources", "prints 50 MB of lines to standard error, with control codes", """
line = b"\\x1b[2J\\x1b]0;owned\\x07\\x00" * 4096
for _each in range(600):
    os.write(2, line)
""", Log),
    Attempt("deep-folders", "resources", "leaves 3,000 folders in each other, to whoever cleans up", """
open(T["name"], "w").close()
for _each in range(3000):
    os.mkdir("d")
    os.chdir("d")
""", Leftovers, control=False),
    Attempt("leftovers-of-a-hang", "resources", "leaves files and hangs, so that it has to be killed", """
open(T["name"], "w").close()
import time
time.sleep(120)
""", Leftovers, control=False),
    Attempt("folders-without-rights", "resources", "leaves folders that nobody may enter", """
open(T["name"], "w").close()
os.makedirs("a/b")
os.chmod("a/b", 0)
os.chmod("a", 0)
""", Leftovers, control=False),
)  # fmt: skip
