"""What clients were told, line by line on disk: the one side of the comparison that the service cannot change later."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Journal:
    """A file of JSON lines that is only appended to; each line says `what` happened and when (`at`, seconds)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def write(self, what: str, **fields: Any) -> None:
        """Append a line, in the file before this returns."""
        line = json.dumps({"what": what, "at": round(time.time(), 3), **fields})
        with self._lock, self.path.open("a") as file:
            file.write(line + "\n")

    def read(self, *whats: str) -> list[Line]:
        """The lines of these kinds, or all, in order."""
        return [line for line in self._lines() if not whats or line["what"] in whats]

    def _lines(self) -> Iterator[Line]:
        if self.path.exists():
            yield from (json.loads(line) for line in self.path.read_text().splitlines())
