"""Which layer a check belongs to, and which of its figures decided it.

Checks carry names; layers are how a reader thinks of them, in the order in which the judge works.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from worker.judge.certificate.document import Layer, Outcome, Row
from worker.judge.verdict import Check

SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class _Kind:
    id: str
    title: str
    catches: str
    names: re.Pattern[str]


def _kind(layer: str, title: str, catches: str, names: str) -> _Kind:
    return _Kind(layer, title, catches, re.compile(names, re.IGNORECASE))


_KINDS = (
    _kind("system", "System", "What breaks only in production: graphs, streams, leaks, another process", r"^system:"),
    _kind("dynamics", "Training dynamics", "Bias that every tolerance accepts and a training run does not",
          r"dynamics|training|optimi[sz]er"),
    _kind("timing", "Timing", "Cached results, deferred work, forged clocks",
          r"timed|timing|late results|clock|chain|a/a|control"),
    _kind("physics", "Physics floor", "Results faster than the device can produce", r"floor|physics|speed of light"),
    _kind("provenance", "Provenance", "Library calls in disguise", r"own kernel|share|provenance|kernels? built"),
    _kind("semantics", "Semantics", "Dropped terms, ignored parameters, shapes and strides that were not expected",
          r"sensitiv|redraw|parameter|shape|stride|special|bias|nan|metamorph|general"),
    _kind("determinism", "Determinism", "Races and carried state", r"determin|repeat|race|again"),
    _kind("hygiene", "Memory hygiene", "Stale memory, overruns, changed inputs",
          r"guard|poison|input|alias|overrun|two results|uninitiali"),
    _kind("numerics", "Numerics", "Wrong values and lost precision, slice by slice against fp64", r"^numerics"),
)  # fmt: skip
_ORDER = ("numerics", "hygiene", "semantics", "determinism", "provenance", "timing", "physics", "dynamics", "system")
_OTHER = _kind("other", "Other checks", "", "")

_DECIDING = (("error", "threshold", "relative error"), ("statistic", "threshold", ""), ("share", "required", "share"))
_UNITS = {"_us": "us", "_s": "s", "_bytes": "bytes", "_bytes_per_call": "bytes a call", "_share": "share"}


def grouped(checks: Iterable[Check], system: Iterable[Check]) -> tuple[Layer, ...]:
    """All checks as layers in the judge's order; empty layers are left out."""
    found: dict[str, list[Row]] = {}
    for check in checks:
        found.setdefault(_kind_of(check).id, []).append(row(check))
    found.setdefault(SYSTEM, []).extend(row(check) for check in system)
    kinds = {kind.id: kind for kind in (*_KINDS, _OTHER)}
    return tuple(
        Layer(kind.id, kind.title, kind.catches, tuple(found[kind.id]))
        for kind in (kinds[name] for name in (*_ORDER, _OTHER.id))
        if found.get(kind.id)
    )


def row(check: Check) -> Row:
    """A check as a row of the certificate, its deciding figure picked out."""
    statistic, threshold, unit = _deciding(check.figures)
    return Row(check.name, outcome(check), statistic, threshold, unit, check.detail, check.figures)


def outcome(check: Check) -> Outcome:
    """How a check ended; a check says itself when its failure is only a reservation, or when it did not apply."""
    said = check.figures.get("outcome")
    if said in (Outcome.RESERVATION, Outcome.NOT_APPLICABLE):
        return Outcome(str(said))
    return Outcome.PASSED if check.passed else Outcome.FAILED


def _kind_of(check: Check) -> _Kind:
    name = check.name
    compared = "worst_slice" in check.figures
    if compared and not re.search(r"^system:|generality/|sensitivity/|redraw", name):
        return next(kind for kind in _KINDS if kind.id == "numerics")
    return next((kind for kind in _KINDS if kind.names.search(name)), _OTHER)


def _deciding(figures: Mapping[str, float | str]) -> tuple[float | None, float | None, str]:
    for statistic, threshold, unit in _DECIDING:
        if isinstance(figures.get(statistic), int | float):
            own_unit = str(figures.get("unit", unit))
            return _number(figures.get(statistic)), _number(figures.get(threshold)), own_unit
    for name, value in figures.items():  # one figure and its limit: leak_bytes_per_call, limit_bytes_per_call
        tail = name.removeprefix(name.split("_")[0])
        if isinstance(value, int | float) and f"limit{tail}" in figures:
            return _number(value), _number(figures[f"limit{tail}"]), _UNITS.get(tail, tail.strip("_").replace("_", " "))
    return None, None, ""


def _number(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, int | float) else None
