"""SEARCH/REPLACE edits: read them out of an answer and apply them to the parent's source.

    <<<<<<< SEARCH
    the lines to find
    =======
    the lines to put there
    >>>>>>> REPLACE

An edit applies where its lines are found exactly once; failing that, where they are found exactly once when white space
is ignored (models lose indentation more often than meaning), and then the new lines are indented as the old ones were.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

OPENING = re.compile(r"^\s*<{5,9}\s*SEARCH\s*$")
DIVIDER = re.compile(r"^\s*={5,9}\s*$")
CLOSING = re.compile(r"^\s*>{5,9}\s*REPLACE\s*$")


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines to find and lines to put in their place."""

    search: tuple[str, ...]
    replace: tuple[str, ...]


class UnfinishedEdit(ValueError):
    """The answer stops inside a SEARCH/REPLACE block."""


class EditFailed(ValueError):
    """An edit does not apply. Its SEARCH lines must be found in the parent exactly once."""


def find_edits(text: str) -> list[Edit]:
    """Every edit in the text, in order. Raises UnfinishedEdit where the last one is cut off."""
    edits: list[Edit] = []
    search: list[str] | None = None
    replace: list[str] | None = None
    for line in text.split("\n"):
        if search is None:
            search = [] if OPENING.match(line) else None
        elif replace is None:
            if DIVIDER.match(line):
                replace = []
            else:
                search.append(line)
        elif CLOSING.match(line):
            edits.append(Edit(tuple(search), tuple(replace)))
            search, replace = None, None
        else:
            replace.append(line)
    if search is not None:
        raise UnfinishedEdit("the last SEARCH/REPLACE block has no end")
    return edits


def apply_edits(source: str, edits: Sequence[Edit]) -> str:
    """The source with all edits applied, one after another. Raises EditFailed at the first that does not apply."""
    lines = source.split("\n")
    for number, edit in enumerate(edits, start=1):
        start, length, shift = _locate(lines, edit, number)
        lines[start : start + length] = [_shifted(line, shift) for line in edit.replace]
    return "\n".join(lines)


def _locate(lines: Sequence[str], edit: Edit, number: int) -> tuple[int, int, tuple[str, str]]:
    """Where the edit applies: first line, number of lines, and the indentation to take off and to put on."""
    if not any(line.strip() for line in edit.search):
        raise EditFailed(f"edit {number} has no SEARCH lines")
    exact = _matches(lines, edit.search)
    if len(exact) == 1:
        return exact[0], len(edit.search), ("", "")
    wanted = _trimmed(edit.search)
    loose = _matches([_squeezed(line) for line in lines], [_squeezed(line) for line in wanted])
    if len(exact) > 1 or len(loose) > 1:
        raise EditFailed(f"the SEARCH lines of edit {number} are found {max(len(exact), len(loose))} times")
    if not loose:
        raise EditFailed(f"the SEARCH lines of edit {number} are not in the parent: {wanted[0].strip()[:80]!r} ...")
    return loose[0], len(wanted), (_indent(wanted[0]), _indent(lines[loose[0]]))


def _matches(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    size = len(wanted)
    return [i for i in range(len(lines) - size + 1) if list(lines[i : i + size]) == list(wanted)]


def _trimmed(lines: Sequence[str]) -> list[str]:
    """Without the blank lines at both ends."""
    full = [index for index, line in enumerate(lines) if line.strip()]
    return list(lines[full[0] : full[-1] + 1])


def _squeezed(line: str) -> str:
    return " ".join(line.split())


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _shifted(line: str, shift: tuple[str, str]) -> str:
    """The line with the indentation that the model saw replaced by the one that the parent has."""
    off, on = shift
    if not line.strip() or off == on:
        return line
    return on + line[len(off) :] if line.startswith(off) else line
