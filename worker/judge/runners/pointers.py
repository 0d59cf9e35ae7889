"""Where a stopped process is: the instruction pointer of each of its threads, and whose code lies there.

Nothing in the process takes part. The judge reads /proc/PID/task/TID/syscall, which for a stopped thread outside any
system call holds its instruction pointer, and the code there from /proc/PID/mem. Code is the candidate's own when its
bytes are those of an artefact that the build broker made for it, at the same place of the file, whatever the file is
called by now. Python, the C library, OpenMP's runtime and the like are neutral, and so are two things that torch has
inside: vector mathematics (Sleef), as a kernel may call expf, alone or sixteen at a time, and the loop in which threads
of a pool wait, because idle threads spin. All else (torch, BLAS, numpy, code made or changed at run time) is foreign.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from worker.judge.symbols import NotAnElf, places
from worker.runner import sandbox

_SETTLE_S = 0.25
"""A thread that waits for a core stops only when it gets one: up to 14 ms on two busy cores, longer with ten neighbours
(both seen). One that does not come to rest is counted (`UNSETTLED`): it is just the busy ones that would be missed."""
_WINDOW = 16
"""Bytes compared at an instruction pointer: two to five instructions."""
_SYSTEM = ("/usr/", "/lib/", "/lib64/", "/opt/")
_NEUTRAL = re.compile(
    r"(ld-linux.*|ld-[\d.]+|libc|libm|libmvec|libpthread|libdl|librt|libgcc_s.*|libstdc\+\+|libgomp.*|libiomp5|libomp"
    r"|libffi.*|libpython[\d.]+|libc10|libtorch_python|lib[au]san)(-[\d.]+)?\.so[\d.]*|python[\d.]*"
)
_NEUTRAL_FUNCTIONS = {"libtorch_cpu.so": r"Sleef_\w*|thread_main"}
"""By library, the names of its functions that are neutral. Sleef computes sin, exp and the like: kernels that Inductor
made call it, and an honest one of silu * x was in it in two of five samples. `thread_main` is where the threads of
pthreadpool wait for work, turning for some 10 ms: torch.set_num_threads makes one for each core, which on 16 cores
filled three stops with 31 foreign samples and had honest kernels refused. Their work lies in other functions."""


class Unreadable(Exception):
    """This machine does not let the judge read another process's instruction pointers. The message says what failed."""


class Whose(StrEnum):
    """Whose code a thread is in."""

    OWN = "own"
    FOREIGN = "foreign"
    NEUTRAL = "neutral"
    UNSETTLED = "unsettled"
    """Still waiting for a core when the judge gave up."""


@dataclass(frozen=True, slots=True)
class Region:
    """One executable mapping of a process."""

    start: int
    end: int
    offset: int
    """Of `start` in the mapped file."""
    path: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where one thread was found."""

    whose: Whose
    name: str
    """Of the file."""
    artefact: int | None = None
    """Which of the candidate's own files that is, and `offset` within it."""
    offset: int = 0


class Artefacts:
    """The code that was built for a candidate."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._contents = [path.read_bytes() for path in files]

    def holding(self, code: bytes, offset: int) -> int | None:
        """The first of the files that has exactly this code at this offset."""
        found = (number for number, held in enumerate(self._contents) if held[offset : offset + len(code)] == code)
        return next(found, None) if code else None


class Process:
    """One process of a stopped runner. Raises Unreadable where /proc does not tell."""

    def __init__(self, pid: int, artefacts: Artefacts) -> None:
        self._folder, self._artefacts = Path(f"/proc/{pid}"), artefacts
        self._regions: list[Region] = []

    def threads(self) -> list[tuple[Whose, str]]:
        """For each thread that is not in a system call: whose code it is in, and the file's name."""
        return [(place.whose, place.name) for place in self.places()]

    def places(self) -> list[Place]:
        """The same with the place in the candidate's own code."""
        found = []
        deadline = time.monotonic() + _SETTLE_S
        for task in sorted((self._folder / "task").iterdir()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state = _at_rest(task / "syscall", deadline)
                if state is None:
                    found.append(Place(Whose.UNSETTLED, ""))
                elif state[:1] == ["-1"] and len(state) == 3:
                    found.append(self._place(int(state[2], 16)))
        return found

    def _place(self, address: int) -> Place:
        region = self._region(address)
        if region is None:
            return Place(Whose.FOREIGN, "(unmapped)")
        name, offset = Path(region.path).name, address - region.start + region.offset
        code = self._code(address, min(_WINDOW, region.end - address))
        if is_neutral(region.path, offset):
            return Place(Whose.NEUTRAL if _unchanged(region.path, offset, code) else Whose.FOREIGN, name)
        own = self._artefacts.holding(code, offset)
        return Place(Whose.FOREIGN if own is None else Whose.OWN, name or "(no file)", own, offset)

    def _region(self, address: int) -> Region | None:
        for _fresh in range(2):
            place = bisect_right(self._regions, address, key=lambda region: region.start) - 1
            if place >= 0 and address < self._regions[place].end:
                return self._regions[place]
            self._regions = executable(self._read("maps"))
        return None

    def _code(self, address: int, size: int) -> bytes:
        try:
            with (self._folder / "mem").open("rb", buffering=0) as memory:
                memory.seek(address)
                return memory.read(size)
        except (OSError, ValueError):  # ValueError: [vsyscall] lies beyond what a file can seek to
            return b""

    def _read(self, name: str) -> str:
        try:
            return (self._folder / name).read_text()
        except OSError as closed:
            raise Unreadable(f"/proc/PID/{name}: {closed.strerror}") from closed


def executable(maps: str) -> list[Region]:
    """The executable regions in the text of /proc/PID/maps, in order."""
    found = []
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if "x" in fields[1]:
            start, end = (int(text, 16) for text in fields[0].split("-"))
            found.append(Region(start, end, int(fields[2], 16), fields[5] if len(fields) > 5 else ""))
    return found


def is_neutral(path: str, offset: int = 0) -> bool:
    """Whether code of a mapped file is part of the language's runtime, in a folder that no candidate can write to."""
    if path in ("[vdso]", "[vsyscall]"):
        return True
    trusted = (*_SYSTEM, *(f"{folder}/" for folder in sandbox.python_folders()))
    if not path.startswith(trusted):
        return False
    name = Path(path).name
    return bool(_NEUTRAL.fullmatch(name)) or "/lib-dynload/" in path or _is_neutral_function(Path(path), offset)


def _is_neutral_function(library: Path, offset: int) -> bool:
    names = _NEUTRAL_FUNCTIONS.get(library.name)
    if names is None:
        return False
    try:
        functions = places(library, names)
    except (OSError, NotAnElf):
        return False
    last = bisect_right(functions, offset, key=lambda place: place.start) - 1
    return last >= 0 and offset in functions[last]


def _unchanged(path: str, offset: int, code: bytes) -> bool:
    """Whether a process has at this offset of a file what the file has there. Where one cannot be read: yes."""
    try:
        with Path(path).open("rb", buffering=0) as file:
            return not code or os.pread(file.fileno(), len(code), offset) == code
    except OSError:
        return True


def _at_rest(place: Path, deadline: float) -> list[str] | None:
    """What /proc says of a stopped thread: the number of its system call or -1, and at last its instruction pointer.

    None for one that does not come to rest. Raises Unreadable, FileNotFoundError, ProcessLookupError.
    """
    while True:
        try:
            fields = place.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            raise
        except OSError as closed:
            raise Unreadable(f"/proc/PID/task/TID/syscall: {closed.strerror}") from closed
        if fields[:1] != ["running"]:
            return fields
        if time.monotonic() > deadline:
            return None
        time.sleep(2e-4)
