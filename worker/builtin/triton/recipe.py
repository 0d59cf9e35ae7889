"""What a Triton recipe is, and the pieces that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from problems.catalog import ProblemError, outline
from worker.builtin.candidate import candidate
from worker.builtin.expressions import Program
from worker.builtin.families import Match
from worker.builtin.triton import steps
from worker.builtin.triton.tiles import Tiles


@dataclass(frozen=True, slots=True)
class Parts:
    """What a recipe writes; `candidate` makes the whole file of it.

    `inputs` are the parameters of the candidate's function `_run` and the expressions that forward passes for them: a
    function of its own, so that its names cannot meet those of the reference's arguments. `body` are its statements.
    `tunables` holds the choices by name, `defaults` the values that the file starts with. `any_type` is set for recipes
    that only move data; the others compute in float32 and refuse float64.
    """

    kernels: str
    inputs: Sequence[tuple[str, str]]
    body: Sequence[str]
    tunables: Mapping[str, Sequence[int]]
    defaults: Mapping[str, int]
    constraints: Sequence[str] = ()
    helpers: Sequence[str] = ()
    any_type: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """A parametric kernel for one family. `write` raises Unmatched when the bindings are not what it can do."""

    name: str
    family: str
    plan: str
    write: Callable[[Match], Parts]


_REFUSE_FLOAT64 = """\
    if {name}.dtype is torch.float64:
        raise TypeError("this kernel computes in float32, it cannot take float64")
"""


def write_candidate(recipe: Recipe, match: Match, problem_source: str) -> str:
    """The candidate file of a recipe for a match. Raises Unmatched."""
    parts = recipe.write(match)
    expressions = ", ".join(text for _, text in parts.inputs)
    imports = ["import triton", "import triton.language as tl"]
    module = _module(parts, problem_source)
    imports += ["import functools"] if "functools." in module else []
    if "TensorDescriptor" in module:
        imports.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    return candidate(
        problem_source,
        plan=recipe.plan,
        imports=imports,
        tunables=parts.tunables,
        defaults=parts.defaults,
        constraints=parts.constraints,
        kernel=module,
        returns=f"_run({expressions})",
    )


def _module(parts: Parts, problem_source: str) -> str:
    """The module-level code: kernels, what they call, and `_run`."""
    names = ", ".join(name for name, _ in parts.inputs)
    refusal = "" if parts.any_type else _REFUSE_FLOAT64.format(name=parts.inputs[0][0])
    blocks = [
        steps.helpers(parts.kernels),
        parts.kernels,
        *parts.helpers,
        f"def _run({names}):\n{refusal}{indented(parts.body, 4)}",
    ]
    if "PRECISION," in "".join(parts.body):
        blocks.insert(0, f'PRECISION = "{"tf32" if allows_tf32(problem_source) else "ieee"}"')
    return "\n\n\n".join(block.strip() for block in blocks if block.strip())


def allows_tf32(problem_source: str) -> bool:
    """Whether the problem lets float32 products run as TF32."""
    try:
        return outline(problem_source, "problem").spec.precision.tf32
    except ProblemError:
        return False


def outputs(tiles: Tiles) -> tuple[list[str], list[str], str]:
    """(statements that allocate the results o0, o1, ..., their names, the return statement) for a Program's outputs."""
    program = tiles.program
    first = tiles.inputs()[0][0]
    lines = [f"dtype = {tiles.dtype()}"]
    for k, output in enumerate(program.outputs):
        shape = "shape" if program.steps[output.step].level == "element" else row_shape(tiles, output.keepdim)
        dtype = "torch.bool" if output.kind == "bool" else "dtype"
        lines.append(f"o{k} = torch.empty({shape}, dtype={dtype}, device={first}.device)")
    names = [f"o{k}" for k in range(len(program.outputs))]
    returned = f"({', '.join(names)},)" if program.returns_tuple else names[0]
    return lines, names, f"return {returned}"


def row_shape(tiles: Tiles, keepdim: bool) -> str:
    """The shape of one value per row."""
    kept = tiles.program.rank - tiles.split
    head = f"shape[:{tiles.split}]" if tiles.split else "()"
    return f"(*{head}, {', '.join(['1'] * kept)})" if keepdim else head


def stores(tiles: Tiles, level: str) -> list[str]:
    """The statements that write the outputs of one level ("element" or "row")."""
    lines = []
    for k, output in enumerate(tiles.program.outputs):
        if tiles.program.steps[output.step].level != level:
            continue
        address, mask = ("row * cols + col", "ok") if level == "element" else ("row", "row_ok")
        lines.append(f"tl.store(o{k} + {address}, v{output.step}, mask={mask})")
    return lines


def indented(lines: Sequence[str], by: int) -> str:
    """The lines as text, indented by `by` spaces."""
    return "\n".join(" " * by + line for line in lines)


def levels(program: Program) -> set[str]:
    """The levels of a Program's outputs."""
    return {program.steps[output.step].level for output in program.outputs}
