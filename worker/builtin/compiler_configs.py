"""The launch configurations that Inductor's autotuner would try for a kernel."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from typing import Any

from worker.builtin.compiler_problem import NoCompilerSeed
from worker.builtin.compiler_wrapper import dotted

_MAX_CONFIGS = 12
_WIDER: Mapping[str, Any] = {"max_autotune": True, "max_autotune_pointwise": True}
_NO_CACHE: Mapping[str, Any] = {"autotune_local_cache": False, "autotune_remote_cache": False}


def grid_and_configs(kernel: ast.FunctionDef, chosen: frozenset[str]) -> tuple[str, tuple[dict[str, int], ...]]:
    """The kind of grid, and configurations: what Inductor tries by default, then what it tries under max-autotune.

    `chosen` are the parameters that a configuration sets; `num_warps` and `num_stages` come with them. Raises
    NoCompilerSeed.
    """
    decorator = next((d for d in kernel.decorator_list if _heuristic(d)), None)
    if not isinstance(decorator, ast.Call):
        raise NoCompilerSeed(f"{kernel.name} has no heuristics")
    keywords = _evaluated(decorator)
    meta = keywords.get("inductor_meta", {})
    configs: list[dict[str, int]] = []
    for changes in ({}, _WIDER):
        for config in _offered(_heuristic(decorator), keywords, {**meta, **_NO_CACHE, **changes}):
            plain = _plain(config, chosen)
            if plain not in configs:
                configs.append(plain)
    if not configs:
        raise NoCompilerSeed(f"{kernel.name} has no configurations")
    return str(meta.get("grid_type")), tuple(configs[:_MAX_CONFIGS])


def _heuristic(decorator: ast.expr) -> str:
    """`reduction` for `@triton_heuristics.reduction(...)`; empty for another decorator."""
    name = dotted(decorator.func) if isinstance(decorator, ast.Call) else ""
    return name.removeprefix("triton_heuristics.") if name.startswith("triton_heuristics.") else ""


def _evaluated(decorator: ast.Call) -> dict[str, Any]:
    """The decorator's keyword arguments. Inductor wrote them: literals, and names of its own enumerations."""
    from torch._inductor.runtime import hints, triton_heuristics

    scope: dict[str, Any] = {**vars(hints), "triton_heuristics": triton_heuristics, "__file__": "kernel.py"}
    values = {}
    for keyword in decorator.keywords:
        code = compile(ast.Expression(keyword.value), "<heuristics>", "eval")
        values[str(keyword.arg)] = eval(code, scope)
    return values


def _offered(heuristic: str, keywords: Mapping[str, Any], meta: dict[str, Any]) -> list[Any]:
    """The configurations that a heuristic gives its autotuner, which is never made."""
    from torch._inductor.runtime import triton_heuristics

    make = getattr(triton_heuristics, heuristic, None)
    if make is None:
        raise NoCompilerSeed(f"Inductor has no heuristic {heuristic}")
    given = {**keywords, "inductor_meta": meta, "triton_meta": dict(keywords.get("triton_meta", {}))}
    decorate = make(**given)
    found = inspect.getclosurevars(decorate).nonlocals.get("configs")
    if not isinstance(found, list):
        raise NoCompilerSeed(f"the heuristic {heuristic} hides its configurations")
    return found


def _plain(config: Any, chosen: frozenset[str]) -> dict[str, int]:
    blocks = {name: value for name, value in config.kwargs.items() if name in chosen}
    return {**blocks, "num_warps": config.num_warps, "num_stages": config.num_stages}
