"""CUDA recipes: parametric kernels written in CUDA C++ and loaded with `kernelwright.load_cuda`.

`RECIPES` lists them, the first for a family being the one to try first; `write_candidate(recipe, match, source)` writes
a whole candidate file. The kernels are compiled for the types and sizes of the first call, in tens of milliseconds.
"""

from __future__ import annotations

from worker.builtin.cuda import losses, pointwise, rows, scan
from worker.builtin.cuda.recipe import Parts, Recipe, write_candidate

RECIPES: tuple[Recipe, ...] = (
    *losses.RECIPES,
    *scan.RECIPES,
    *pointwise.RECIPES,
    *rows.RECIPES,
)

__all__ = ["RECIPES", "Parts", "Recipe", "write_candidate"]
