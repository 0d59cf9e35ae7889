"""Reads a file of hand-written SQL into named statements: each starts with a line `-- name: claim`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from sqlalchemy import TextClause, text

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_statements(path: Path) -> Mapping[str, TextClause]:
    """The statements of a file by name. Raises ValueError when a name occurs twice."""
    _, *parts = _NAME.split(path.read_text(encoding="utf-8"))
    names = parts[::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{path.name} names a statement twice")
    return MappingProxyType({name: text(body.strip()) for name, body in zip(names, parts[1::2], strict=True)})
