"""Triton recipes: parametric kernels for GPUs, one module per family of operations.

`RECIPES` lists them, the first for a family being the one to try first; `write_candidate(recipe, match, source)` writes
a whole candidate file. Everything computes in float32 whatever the inputs' type, works for any shape of the matched
rank, and follows strides or copies where an input is not contiguous.
"""

from __future__ import annotations

from worker.builtin.triton import (
    attention,
    cross_entropy,
    group_norm,
    matmul,
    movement,
    pointwise,
    reductions,
    rows,
    scan,
)
from worker.builtin.triton.recipe import Parts, Recipe, write_candidate

RECIPES: tuple[Recipe, ...] = (
    *attention.RECIPES,
    *matmul.RECIPES,
    *cross_entropy.RECIPES,
    *group_norm.RECIPES,
    *movement.RECIPES,
    *scan.RECIPES,
    *reductions.RECIPES,
    *pointwise.RECIPES,
    *rows.RECIPES,
)

__all__ = ["RECIPES", "Parts", "Recipe", "write_candidate"]
