"""A folder of KernelBench problems: `levelN/N_Name.py`, each read and checked, and never run."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from cli.exchange.columns import LEVEL_LABEL, TASK_LABEL
from cli.service import UnusableInput
from problems.catalog import MAX_SOURCE_BYTES, ProblemError, outline

DIGEST_LABEL: Final = "kernelbench.digest"
"""Of all that was submitted: what was submitted before is found again by it."""
_FILE: Final = re.compile(r"(\d+)_(.+)\.py")
_LEVEL: Final = re.compile(r"level_?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the folder: a problem, or what is wrong with it."""

    path: Path
    level: int
    task: int
    name: str
    source: str
    fault: str | None

    @property
    def place(self) -> str:
        """As `--select` matches it."""
        return f"{self.path.parent.name}/{self.path.name}"


def entries(folder: Path, select: str | None = None) -> list[Entry]:
    """The problems of a folder, of its levels or of one level, by level and number. Raises UnusableInput: no folder, or
    none in it."""
    if not folder.is_dir():
        raise UnusableInput(problem=f"{folder} is no folder")
    files = [path for path in folder.resolve().rglob("*.py") if _is_problem(path)]
    chosen = [path for path in files if select is None or _matches(path, select)]
    if not chosen:
        what = f"{len(files)} files, none of which --select {select} means" if files else "no levelN/N_Name.py"
        raise UnusableInput(problem=f"{folder} has {what}")
    return sorted(map(_entry, chosen), key=lambda entry: (entry.level, entry.task, entry.name))


def _is_problem(path: Path) -> bool:
    return bool(_LEVEL.fullmatch(path.parent.name) and _FILE.fullmatch(path.name))


def _matches(path: Path, select: str) -> bool:
    return any(fnmatch(text, select) for text in (path.name, path.stem, f"{path.parent.name}/{path.name}"))


def _entry(path: Path) -> Entry:
    level, file = _LEVEL.fullmatch(path.parent.name), _FILE.fullmatch(path.name)
    assert level is not None and file is not None  # it was asked before
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem).strip("_.-")
    name = f"level{level[1]}_{plain}"[:100]
    source, fault = "", None
    try:
        source = _text(path)
        _check(source, name)
    except (OSError, ProblemError) as error:
        fault = str(error)
    return Entry(path, int(level[1]), int(file[1]), name, source, fault)


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_SOURCE_BYTES:
        raise ProblemError(f"line 1: the file has more than {MAX_SOURCE_BYTES} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(f"line 1: no UTF-8 text at byte {error.start}") from error


def _check(source: str, name: str) -> None:
    """Raises ProblemError. Beyond what every problem must have: that Model is a class with a forward of its own."""
    outline(source, name)
    models = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    if not models:
        raise ProblemError("line 1: Model is no class: write `class Model(nn.Module)`")
    methods = {node.name for node in models[-1].body if isinstance(node, ast.FunctionDef)}
    if "forward" not in methods:
        raise ProblemError(f"line {models[-1].lineno}: Model has no forward: add `def forward(self, ...)`")


def job_body(entry: Entry, common: Mapping[str, Any]) -> dict[str, Any]:
    """What is submitted for a problem; `common` is the target, the budget and what else all of them share."""
    labels = {
        "suite": "kernelbench",
        LEVEL_LABEL: str(entry.level),
        TASK_LABEL: str(entry.task),
        **common.get("labels", {}),
    }
    body = {**common, "problem": {"name": entry.name, "source": entry.source}, "labels": labels}
    meaning = json.dumps(body, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(meaning.encode()).hexdigest()[:32]
    return body | {"labels": labels | {DIGEST_LABEL: digest}}
