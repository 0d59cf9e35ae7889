"""The whole corpus: every module of the cheats and of the honest candidates."""

from __future__ import annotations

import importlib
import pkgutil

from tests.redteam import cheats, honest
from tests.redteam.entry import Entry


def _entries(package: object) -> tuple[Entry, ...]:
    found: list[Entry] = []
    for module in pkgutil.iter_modules(package.__path__):  # type: ignore[attr-defined]
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")  # type: ignore[attr-defined]
        found += getattr(loaded, "ENTRIES", ())
    return tuple(found)


def cheating() -> tuple[Entry, ...]:
    """Every candidate that must be rejected."""
    return _entries(cheats)


def honest_ones() -> tuple[Entry, ...]:
    """Every candidate that must be accepted."""
    return _entries(honest)
