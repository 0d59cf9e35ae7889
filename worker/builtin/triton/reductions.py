"""Reductions of everything (a loss) and of one dimension that is not the last, both without atomics: reproducible."""

from __future__ import annotations

from dataclasses import replace

from worker.builtin.expressions import FULL_REDUCTIONS, ROW_REDUCTIONS, Output, Program, Step, Unmatched
from worker.builtin.families import ColumnReduction, FullReduction, Match
from worker.builtin.triton.recipe import Parts, Recipe, indented
from worker.builtin.triton.rows import (
    COVER,
    ONCE_TUNABLES,
    PROCESSORS,
    STREAM_CONSTRAINTS,
    STREAM_DEFAULTS,
    STREAM_TUNABLES,
    once_defaults,
    once_kernel,
    once_launch,
    stream_launch,
)
from worker.builtin.triton.stream import stream_kernel
from worker.builtin.triton.tiles import Tiles, needed

_PARTIAL = """\
@triton.jit
def _partial({parameters}, part, cols, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = 0
    row_ok = row < 1
    total = tl.full([1, BLOCK], 0.0, tl.float32)
    first = tl.program_id(0).to(tl.int64) * BLOCK if WIDE else tl.program_id(0) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK if WIDE else tl.num_programs(0) * BLOCK
    for start in range(first, cols, step):
        col = start + tl.arange(0, BLOCK)[None, :]
        col_ok = col < cols
        ok = col_ok
{inside}
        total = total + tl.where(ok, {value}, 0.0)
    tl.store(part + tl.program_id(0), tl.sum(tl.sum(total, axis=1), axis=0))
"""

_FINISH = """\
@triton.jit
def _finish(part, o0, count, scale{numbers}, BLOCK: tl.constexpr):
    total = tl.full([BLOCK], 0.0, tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total = total + tl.load(part + at, mask=at < count, other=0.0)
    {value} = tl.sum(total, axis=0) * scale
{inside}
    tl.store(o0, {result})
"""


def _program(match: Match) -> tuple[Program, int]:
    """The Program and the place of its one full reduction."""
    if not isinstance(match.bindings, FullReduction):
        raise Unmatched("no reduction of everything")
    program = match.bindings.program
    found = [index for index, step in enumerate(program.steps) if step.op in FULL_REDUCTIONS]
    if len(found) != 1:
        raise Unmatched("several reductions of everything")
    return program, found[0]


def _finish(tiles: Tiles, place: int) -> tuple[str, list[str]]:
    """The kernel that adds up the partial sums and does what follows them, and the numbers it takes."""
    program = tiles.program
    after = needed(program, [program.outputs[0].step], frozenset({place}))
    if any(program.steps[index].op == "load" for index in after):
        raise Unmatched("an operand after the reduction")
    inside = [f"v{index} = {tiles.value(index)}" for index in after]
    numbers = list(tiles.numbers.values())
    kernel = _FINISH.format(
        numbers="".join(f", {name}" for name in numbers),
        value=f"v{place}",
        inside=indented(inside, 4),
        result=f"v{program.outputs[0].step}",
    )
    return kernel, numbers


def write_flat(match: Match) -> Parts:
    """Elementwise steps, then one sum or mean: each program adds up its share of flat memory."""
    program, place = _program(match)
    if program.has(ROW_REDUCTIONS) or program.rank == 0:
        raise Unmatched("reductions over rows come first")
    tiles = Tiles(program, program.rank)
    source = program.steps[place].args[0]
    assert isinstance(source, int)
    inside = tiles.statements([source])
    finish, numbers = _finish(tiles, place)
    scale = '(1.0 / cols if cols else float("nan"))' if program.steps[place].op == "all_mean" else "1.0"
    extra = "".join(f", {name}" for name in numbers)
    body = [
        *tiles.shape(),
        f"dtype = {tiles.dtype()}",
        *tiles.prepare(),
        "count = max(1, min(triton.cdiv(cols, BLOCK), PROGRAMS * _processors(x0.device)))",
        "part = torch.empty(count, dtype=torch.float32, device=x0.device)",
        "out = torch.empty((), dtype=dtype, device=x0.device)",
        f"_partial[(count,)]({', '.join(tiles.arguments())}, part, cols, cols >= 2**30, BLOCK, num_warps=WARPS)",
        f"_finish[(1,)](part, out, count, {scale}{extra}, 1024, num_warps=4)",
        "return out",
    ]
    return Parts(
        kernels="\n\n".join(
            [
                _PARTIAL.format(
                    parameters=", ".join(tiles.parameters()), inside=indented(inside, 8), value=f"v{source}"
                ),
                finish,
            ]
        ),
        inputs=tiles.inputs(),
        body=body,
        tunables={"BLOCK": [1024, 2048, 4096, 8192], "WARPS": [4, 8], "PROGRAMS": [2, 4, 8, 16]},
        defaults={"BLOCK": 4096, "WARPS": 8, "PROGRAMS": 4},
        constraints=["BLOCK <= WARPS * 2048"],
        helpers=[*tiles.python_helpers(), PROCESSORS],
    )


def rows_first(program: Program, place: int) -> Program:
    """The part of the Program that gives one float32 number a row, to be added up afterwards."""
    reduction = program.steps[place]
    source = reduction.args[0]
    assert isinstance(source, int)
    if program.steps[source].level == "row":
        return replace(program, steps=program.steps[: source + 1], outputs=(Output(source),), returns_tuple=False)
    steps = (*program.steps[:place], Step("row_sum", (source,), "row"))
    return replace(program, steps=steps, outputs=(Output(place),), returns_tuple=False)


def write_rows(match: Match) -> Parts:
    """Rows are reduced by the row kernels, whatever their Program; one more kernel adds up the rows."""
    program, place = _program(match)
    source = program.steps[place].args[0]
    assert isinstance(source, int)
    tiles = Tiles(rows_first(program, place), program.row_dims)
    whole = Tiles(program, program.row_dims)
    finish, numbers = _finish(whole, place)
    arguments = ", ".join([*tiles.arguments(), "o0"])
    count = "rows" if program.steps[source].level == "row" else "(rows * cols)"
    scale = f'(1.0 / {count} if {count} else float("nan"))' if program.steps[place].op == "all_mean" else "1.0"
    extra = "".join(f", {name}" for name in numbers)
    body = [
        *tiles.shape(),
        "o0 = torch.empty(rows, dtype=torch.float32, device=x0.device)",
        f"out = torch.empty((), dtype={tiles.dtype()}, device=x0.device)",
        *tiles.prepare(),
        COVER,
        "if block <= ONE_PASS:",
        *("    " + line for line in once_launch(arguments)),
        "else:",
        *("    " + line for line in stream_launch(arguments)),
        f"_finish[(1,)](o0, out, rows, {scale}{extra}, 4096, num_warps=8)",
        "return out",
    ]
    return Parts(
        kernels="\n\n".join([once_kernel(tiles, ["o0"]), stream_kernel(tiles, ["o0"]), finish]),
        inputs=whole.inputs(),
        body=body,
        tunables=ONCE_TUNABLES | STREAM_TUNABLES,
        defaults=once_defaults(tiles) | STREAM_DEFAULTS,
        constraints=[*STREAM_CONSTRAINTS, "STAGES == 1 or PROGRAMS > 0"],
        helpers=[*tiles.python_helpers(), PROCESSORS],
    )


_COLUMNS = """\
@triton.jit
def _columns(x, out, n, inner, splits, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    across = tl.cdiv(inner, BLOCK)
    pid = tl.program_id(0)
    col = (pid % across) * BLOCK + tl.arange(0, BLOCK)[None, :]
    col_ok = col < inner
    split = (pid // across) % splits
    outer = (pid // across // splits).to(tl.int64)
    share = tl.cdiv(tl.cdiv(n, splits), ROWS) * ROWS
    last = tl.minimum(n, (split + 1) * share)
    total = tl.full([ROWS, BLOCK], {start}, tl.float32)
    for start in range(split * share, last, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        ok = (row < last) & col_ok
        v = tl.load(x + outer * n * inner + row.to(tl.int64) * inner + col, mask=ok, other={start}).to(tl.float32)
        total = {join}
    result = {close}
    tl.store(out + (outer * splits + split) * inner + col, result * scale, mask=col_ok)
"""

_FORMS = {
    "sum": ("0.0", "total + v", "tl.sum(total, axis=0, keep_dims=True)"),
    "max": ('float("-inf")', "_nan_max(total, v)", "tl.reduce(total, 0, _nan_max, keep_dims=True)"),
    "min": ('float("inf")', "_nan_min(total, v)", "tl.reduce(total, 0, _nan_min, keep_dims=True)"),
}


def write_columns(match: Match) -> Parts:
    bindings = match.bindings
    if not isinstance(bindings, ColumnReduction) or bindings.x.kind != "float":
        raise Unmatched("no reduction of floating columns")
    start, join, close = _FORMS["sum" if bindings.op == "mean" else bindings.op]
    dim = bindings.dim
    scale = '(1.0 / n if n else float("nan"))' if bindings.op == "mean" else "1.0"
    keep = "1, " if bindings.keepdim else ""
    body = [
        "x = x.contiguous()",
        f"n, inner = x.shape[{dim}], math.prod(x.shape[{dim + 1}:])",
        f"outer = math.prod(x.shape[:{dim}])",
        f"out = torch.empty((*x.shape[:{dim}], {keep}*x.shape[{dim + 1}:]), dtype=x.dtype, device=x.device)",
        "block = min(BLOCK, triton.next_power_of_2(max(inner, 1)))",
        "size = max(1, TILE // block)",
        "blocks = max(1, outer * triton.cdiv(inner, block))",
        "splits = max(1, min(triton.cdiv(n, 4 * size), PROGRAMS * _processors(x.device) // blocks))",
        f"scale = {scale}",
        "if splits == 1:",
        "    _columns[(blocks,)](x, out, n, inner, 1, scale, size, block, num_warps=WARPS)",
        "else:",
        "    part = torch.empty((outer, splits, inner), dtype=torch.float32, device=x.device)",
        "    _columns[(blocks * splits,)](x, part, n, inner, splits, 1.0, size, block, num_warps=WARPS)",
        "    _columns[(blocks,)](part, out, splits, inner, 1, scale, size, block, num_warps=WARPS)",
        "return out",
    ]
    return Parts(
        kernels=_COLUMNS.format(start=start, join=join, close=close),
        inputs=[("x", bindings.x.text)],
        body=body,
        tunables={
            "BLOCK": [32, 64, 128, 256, 512],
            "TILE": [1024, 2048, 4096, 8192],
            "WARPS": [4, 8],
            "PROGRAMS": [2, 4, 8, 16],
        },
        defaults={"BLOCK": 128, "TILE": 4096, "WARPS": 8, "PROGRAMS": 4},
        constraints=["TILE <= WARPS * 2048"],
        helpers=[PROCESSORS],
    )


RECIPES = (
    Recipe(
        "full_flat",
        "full_reduction",
        "One pass over flat memory by as many programs as the device runs side by side, each adding up its share in "
        "float32; a second kernel adds up the shares in a fixed order.",
        write_flat,
    ),
    Recipe(
        "full_rows",
        "full_reduction",
        "One number a row from whole rows in registers, then one kernel that adds up the rows in a fixed order.",
        write_rows,
    ),
    Recipe(
        "columns_split",
        "column_reduction",
        "Tiles of rows and columns walk down the reduced dimension, split over enough programs to fill the device; the "
        "shares are reduced by the same kernel.",
        write_columns,
    ),
)
