"""Files of an export: whole or not there, and lines that are there already are not written again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cli.service import UnusableInput


def write_text(path: Path, text: str) -> None:
    """The whole file or nothing. Raises UnusableInput."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise UnusableInput(problem=f"cannot write {path}: {error.strerror or error}") from error


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Add lines to a file; one that it has stays where it is. Raises UnusableInput."""
    try:
        there = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except OSError as error:
        raise UnusableInput(problem=f"cannot read {path}: {error.strerror or error}") from error
    write_text(path, "\n".join(dict.fromkeys([*there, *lines])))
