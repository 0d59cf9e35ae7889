"""Elementwise Programs: over flat memory, or over tiles of [rows, columns] that share what broadcasts."""

from __future__ import annotations

from worker.builtin.expressions import Program, Unmatched
from worker.builtin.families import Match, Pointwise
from worker.builtin.triton.recipe import Parts, Recipe, indented, outputs, stores
from worker.builtin.triton.tiles import Tiles

_TILE = """\
@triton.jit
def _kernel({parameters}, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    across = tl.cdiv(cols, BLOCK)
    tile = tl.program_id(0)
    row = (tile // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = (tile % across) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row_ok, col_ok = row < rows, col < cols
    ok = row_ok & col_ok
{statements}
"""

_FLAT = """\
@triton.jit
def _kernel({parameters}, cols, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    # Offsets are 32-bit where they fit: divisions of 64-bit ones are several times slower.
    first = tl.program_id(0).to(tl.int64) * BLOCK if WIDE else tl.program_id(0) * BLOCK
    row = 0
    col = first + tl.arange(0, BLOCK)[None, :]
    col_ok = col < cols
    ok = col_ok
{statements}
"""


def statements(tiles: Tiles) -> list[str]:
    """Load, compute and store one tile of an elementwise Program."""
    lines = tiles.statements([output.step for output in tiles.program.outputs])
    return [*lines, *stores(tiles, "element")]


def uniform_suffix(program: Program) -> int:
    """How many trailing dimensions can be columns with every operand either moving or still in all of them."""
    count = 1
    for size in range(2, program.rank):
        if all({True, False} - set(operand.broadcast[-size:]) for operand in program.operands):
            count = size
    return count


def _program(match: Match) -> Program:
    if not isinstance(match.bindings, Pointwise):
        raise Unmatched("not elementwise")
    return match.bindings.program


def write_tile(match: Match) -> Parts:
    program = _program(match)
    if program.rank < 2:
        raise Unmatched("a single dimension has no tiles")
    suffix = uniform_suffix(program)
    still = any(any(operand.broadcast) for operand in program.operands)
    tiles = Tiles(program, suffix if still else 1)
    allocate, results, returned = outputs(tiles)
    parameters = ", ".join([*tiles.parameters(), *results])
    body = [
        *tiles.shape(),
        *allocate,
        *tiles.prepare(),
        "block = min(COLUMNS, triton.next_power_of_2(max(cols, 1)))",
        "size = max(1, TILE // block)",
        "grid = (triton.cdiv(rows, size) * triton.cdiv(cols, block),)",
        f"_kernel[grid]({', '.join([*tiles.arguments(), *results])}, rows, cols, size, block, num_warps=WARPS)",
        returned,
    ]
    return Parts(
        kernels=_TILE.format(parameters=parameters, statements=indented(statements(tiles), 4)),
        inputs=tiles.inputs(),
        body=body,
        tunables={"TILE": [1024, 2048, 4096, 8192], "COLUMNS": [256, 512, 1024, 2048, 4096], "WARPS": [2, 4, 8]},
        defaults={"TILE": 4096, "COLUMNS": 1024, "WARPS": 8},
        constraints=["COLUMNS <= TILE", "TILE <= WARPS * 2048", "TILE >= WARPS * 128"],
        helpers=tiles.python_helpers(),
    )


def write_flat(match: Match) -> Parts:
    program = _program(match)
    tiles = Tiles(program, program.rank)
    allocate, results, returned = outputs(tiles)
    parameters = ", ".join([*tiles.parameters(), *results])
    arguments = ", ".join([*tiles.arguments(), *results])
    body = [
        *tiles.shape(),
        *allocate,
        *tiles.prepare(),
        "grid = (triton.cdiv(cols, BLOCK),)",
        f"_kernel[grid]({arguments}, cols, cols >= 2**31 - BLOCK, BLOCK, num_warps=WARPS)",
        returned,
    ]
    return Parts(
        kernels=_FLAT.format(parameters=parameters, statements=indented(statements(tiles), 4)),
        inputs=tiles.inputs(),
        body=body,
        tunables={"BLOCK": [512, 1024, 2048, 4096, 8192], "WARPS": [2, 4, 8]},
        defaults={"BLOCK": 2048, "WARPS": 4},
        constraints=["BLOCK <= WARPS * 2048", "BLOCK >= WARPS * 128"],
        helpers=tiles.python_helpers(),
    )


RECIPES = (
    Recipe(
        "pointwise_tile",
        "pointwise",
        "One pass over memory: every operand is read once, on tiles of rows and columns, so that what broadcasts along "
        "the rows is loaded once a tile; everything in between stays in float32 registers.",
        write_tile,
    ),
    Recipe(
        "pointwise_flat",
        "pointwise",
        "One pass over flat memory in wide vectors; what broadcasts is fetched through the cache by an index computed "
        "from the position.",
        write_flat,
    ),
)
