"""Wall clocks that can be stepped: a small library, compiled here, that a worker is started with (LD_PRELOAD)."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.cpp")


def build(folder: Path) -> Path:
    """Compile the library. Raises CalledProcessError."""
    library = folder / "libchaosclock.so"
    command = ["g++", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


class Clock:
    """The wall clock of one process and its children."""

    def __init__(self, library: Path, file: Path) -> None:
        self._library = library
        self._file = file
        file.write_bytes(struct.pack("<q", 0))

    @property
    def environment(self) -> dict[str, str]:
        """What the process is started with."""
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._file)}

    def step(self, seconds: int) -> None:
        """Set it off by so many seconds."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("<q", seconds))
