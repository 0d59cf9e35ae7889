"""How the parts of a CUDA recipe become a candidate file."""

from __future__ import annotations

from worker.builtin.candidate import candidate
from worker.builtin.cuda.printing import ALIGNED, PRELUDE, TYPES
from worker.builtin.families import Match
from worker.builtin.triton.recipe import Parts, Recipe, indented

__all__ = ["Parts", "Recipe", "write_candidate"]

_REFUSAL = """\
    if {name}.dtype is torch.float64:
        raise TypeError("this kernel computes in float32, it cannot take float64")
"""


def write_candidate(recipe: Recipe, match: Match, problem_source: str) -> str:
    """The candidate file of a recipe for a match. Raises Unmatched.

    `kernels` of the Parts is CUDA C++; its types and sizes are macros, defined when the first call shows them.
    """
    parts = recipe.write(match)
    names = ", ".join(name for name, _ in parts.inputs)
    expressions = ", ".join(text for _, text in parts.inputs)
    run = f"def _run({names}):\n{_REFUSAL.format(name=parts.inputs[0][0])}{indented(parts.body, 4)}"
    aligned = [ALIGNED] if "_vectors(" in run else []
    source = f'SOURCE = r"""\n{PRELUDE}\n{parts.kernels.strip()}\n"""'
    blocks = [source, TYPES, *aligned, *parts.helpers, run]
    return candidate(
        problem_source,
        plan=recipe.plan,
        imports=["import functools", "from kernelwright import load_cuda"],
        tunables=parts.tunables,
        defaults=parts.defaults,
        constraints=parts.constraints,
        kernel="\n\n\n".join(block.strip() for block in blocks),
        returns=f"_run({expressions})",
    )
