"""The whole corpus: every module of the cheats and of the honest candidates."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

from tests.redteam import cheats, honest
from tests.redteam.entry import Entry

CERTIFIED = (
    "honest-python-workspace", "honest-python-autotune", "honest-python-fallback-launch",
    "honest-sum-split-workspace", "honest-train-embedding-sorted", "honest-cuda-softmax-graph",
)  # fmt: skip
"""Honest ones that keep memory or graphs, choose among kernels, fall back, or have a backward."""


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
    """Every candidate that must be accepted, some of them also by the certificate."""
    return tuple(replace(entry, certify=entry.id in CERTIFIED) for entry in _entries(honest))
