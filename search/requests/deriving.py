"""A bundled problem fitted to a request: its workloads in the number type and with the sizes that were asked for.

The shapes of the bundled workloads stay beside the one that was asked for: a kernel that only works for one shape is no
kernel (KernelEvolve reports 0.49x of the baseline on a shape that it had not seen).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from problems._derive import with_workloads
from problems._spec import Param, Workload
from problems.catalog import Outline, ProblemError
from search.requests.understanding import Wish

SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
ALIASES: Mapping[str, tuple[str, ...]] = {
    "rows": ("row", "tokens", "token", "batch"),
    "hidden": ("features", "feature", "cols", "columns"),
    "cols": ("columns", "column", "hidden", "features"),
    "classes": ("vocab", "cols", "columns"),
    "length": ("seq", "sequence", "tokens"),
    "inner": ("hidden",),
}
"""Other words for a parameter, where the problem has none of that very name."""

MAX_ELEMENTS = 2**33
"""Of the two largest sizes together: beyond it a workload is a typing error (8.6 billion elements)."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The problem to be proposed, and what could not be fitted, in words."""

    problem: Outline
    notes: tuple[str, ...] = ()


def fit(problem: Outline, wish: Wish, hardware: str) -> Fitted:
    """The problem as the request wants it; the very bundled one when that is it already.

    Raises:
        ProblemError: it has no workload for the hardware.
    """
    bundled = problem.spec.workloads_for(hardware)
    notes: list[str] = []
    typed = any("dtype" in workload.params for workload in problem.spec.workloads)
    if wish.dtype is not None and not typed:
        notes.append(f"the problem has no parameter for the number type: {wish.dtype} was not set")
    wanted = _typed(bundled, wish.dtype if typed else None)
    asked = _asked(wanted[0], wish, notes)
    if asked is not None:
        wanted = _distinct([asked, *wanted])
    if list(wanted) == list(bundled):
        return Fitted(problem, tuple(notes))
    suffix = f"_{SHORT[wish.dtype]}" if wish.dtype in SHORT else "_sized"
    try:
        return Fitted(with_workloads(problem, problem.name + suffix, wanted), tuple(notes))
    except (ProblemError, ValueError) as error:
        return Fitted(problem, (*notes, f"its workloads are the bundled ones: {error}"))


def _typed(workloads: Sequence[Workload], dtype: str | None) -> list[Workload]:
    """The workloads in the type that was asked for, each shape once."""
    if dtype is None or all(workload.params.get("dtype") == dtype for workload in workloads):
        return list(workloads)
    typed = [replace(each, params=dict(each.params) | {"dtype": dtype}) for each in workloads]
    return _distinct([replace(each, name=_named(each.params)) for each in typed])


def _asked(base: Workload, wish: Wish, notes: list[str]) -> Workload | None:
    """A workload with the sizes that were asked for; None when none were, or none fit."""
    sizes = {name: value for name, value in base.params.items() if type(value) is int}
    found = {name: value for name in sizes if (value := _size(name, sizes, wish)) is not None}
    if wish.shape and len(wish.shape) == len(sizes):
        found = dict(zip(sizes, wish.shape, strict=True)) | found
    elif wish.shape and not found:
        notes.append(
            f"{'x'.join(map(str, wish.shape))} was not set: the problem's sizes are {', '.join(sizes) or 'none'}"
        )
    largest = sorted((sizes | found).values())[-2:]
    if found and (min(found.values()) < 1 or math.prod(largest) > MAX_ELEMENTS):
        notes.append("the sizes were not set: they are too large, or zero")
        return None
    params: dict[str, Param] = dict(base.params) | found
    return replace(base, name=_named(params), params=params) if found else None


def _size(name: str, sizes: Mapping[str, int], wish: Wish) -> int | None:
    words = [name, *(word for word in ALIASES.get(name, ()) if word not in sizes)]
    return next((wish.sizes[word] for word in words if word in wish.sizes), None)


def _named(params: Mapping[str, Param]) -> str:
    """`bf16_8191x5003`: the type and the sizes, so that no name promises another type."""
    sizes = "x".join(str(value) for value in params.values() if type(value) is int)
    return "_".join(part for part in (SHORT.get(str(params.get("dtype")), ""), sizes) if part) or "asked"


def _distinct(workloads: Sequence[Workload]) -> list[Workload]:
    """Each set of parameters once, each name once."""
    kept: dict[str, Workload] = {}
    for workload in workloads:
        if all(dict(workload.params) != dict(other.params) for other in kept.values()):
            name = workload.name if workload.name not in kept else f"{workload.name}_{len(kept)}"
            kept[name] = replace(workload, name=name)
    return list(kept.values())
