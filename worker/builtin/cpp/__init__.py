"""C++ recipes: parametric kernels for the processor, one module per family of operations.

`RECIPES` lists them, the first for a family being the one to try first; `write_candidate(recipe, match, source)` writes
a whole candidate file.
"""

from __future__ import annotations

from worker.builtin.cpp import (
    attention,
    cross_entropy,
    fused_rows,
    group_norm,
    movement,
    norms,
    pointwise,
    products,
    reductions,
    scan,
    softmax,
)
from worker.builtin.cpp.recipe import Parts, Recipe, write_candidate

RECIPES: tuple[Recipe, ...] = (
    *attention.RECIPES,
    *products.RECIPES,
    *cross_entropy.RECIPES,
    *norms.RECIPES,
    *softmax.RECIPES,
    *group_norm.RECIPES,
    *movement.RECIPES,
    *reductions.RECIPES,
    *scan.RECIPES,
    *pointwise.RECIPES,
    *fused_rows.RECIPES,
)

__all__ = ["RECIPES", "Parts", "Recipe", "write_candidate"]
