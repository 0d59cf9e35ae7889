"""Cumulative sums and products along the last dimension."""

from __future__ import annotations

from worker.builtin.expressions import Unmatched
from worker.builtin.families import Match, Scan
from worker.builtin.triton.recipe import Parts, Recipe
from worker.builtin.triton.rows import PROCESSORS
from worker.builtin.triton.tiles import PREPARE

_PRODUCT = """\
@triton.jit
def _times(a, b):
    return a * b


"""

_LOAD = """\
    v = tl.load(x + {row} * sx + col, mask={ok}, other={unit}).to(tl.float32)"""

_FACTOR = """\
    f = tl.load(factor + {row} * sf + col, mask={ok}, other={unit}).to(tl.float32)
    v = tl.where({ok}, v * f, {unit})"""

# The next block is on its way while this one is scanned: the carry makes the scans wait for each other, not the loads.
_ROWS = """\
@triton.jit
def _value(x, factor, sx, sf, row, col, ok):
{value}
    return v


@triton.jit
def _scan(x, factor, out, sx, sf, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    row_ok = row < rows
    carry = tl.full([ROWS, 1], {unit}, tl.float32)
    count = tl.cdiv(cols, BLOCK)
    col = {first} + tl.arange(0, BLOCK)[None, :]
    v = _value(x, factor, sx, sf, row, col, row_ok & (col < cols))
    for block in range(0, count):
        after = col {step} BLOCK
        ahead = _value(x, factor, sx, sf, row, after, row_ok & (after >= 0) & (after < cols))
        scanned = {scan}
        tl.store(out + row * cols + col, {join_scanned}, mask=row_ok & (col < cols))
        carry = {join_carry}
        col = after
        v = ahead
"""

_SPLIT = """\
@triton.jit
def _value(x, factor, sx, sf, row, col, ok):
{value}
    return v


@triton.jit
def _totals(x, factor, part, sx, sf, cols, share, pieces, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // pieces).to(tl.int64)
    piece = tl.program_id(0) % pieces
    total = tl.full([1, BLOCK], {unit}, tl.float32)
    for start in range(piece * share, tl.minimum(cols, (piece + 1) * share), BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        v = _value(x, factor, sx, sf, row, col, col < cols)
        total = {join_total}
    result = {close_total}
    tl.store(part + tl.program_id(0) + tl.zeros([1, 1], tl.int32), result)


@triton.jit
def _scan(x, factor, part, out, sx, sf, cols, share, pieces, BLOCK: tl.constexpr, PIECES: tl.constexpr):
    row = (tl.program_id(0) // pieces).to(tl.int64)
    piece = tl.program_id(0) % pieces
    other = tl.arange(0, PIECES)[None, :]
    before = (other {earlier} piece) & (other < pieces)
    totals = tl.load(part + row * pieces + other, mask=before, other={unit})
    carry = {close_before}
    first = piece * share
    count = tl.cdiv(tl.minimum(cols, first + share) - first, BLOCK)
    for block in range(0, count):
        col = first + {place} * BLOCK + tl.arange(0, BLOCK)[None, :]
        v = _value(x, factor, sx, sf, row, col, col < cols)
        scanned = {scan}
        tl.store(out + row * cols + col, {join_scanned}, mask=col < cols)
        carry = {join_carry}
"""


def _forms(bindings: Scan) -> dict[str, str]:
    """The pieces of kernel that differ between sums and products, forwards and backwards."""
    sums = bindings.op == "sum"
    unit, sign = ("0.0", "+") if sums else ("1.0", "*")
    scan = f"tl.cum{bindings.op}(v, axis=1, reverse={bindings.reverse})"
    reduced = "tl.sum({0}, axis=1, keep_dims=True)" if sums else "tl.reduce({0}, 1, _times, keep_dims=True)"
    value = _LOAD if bindings.factor is None else f"{_LOAD}\n{_FACTOR}"
    return {
        "unit": unit,
        "value": value.format(row="row", ok="ok", unit=unit),
        "scan": scan,
        "join_scanned": f"scanned {sign} carry",
        "join_carry": f"carry {sign} {reduced.format('v')}",
        "join_total": f"total {sign} v",
        "close_total": reduced.format("total"),
        "close_before": reduced.format("totals"),
        "first": "(count - 1) * BLOCK" if bindings.reverse else "0",
        "step": "-" if bindings.reverse else "+",
        "earlier": ">" if bindings.reverse else "<",
        "place": "(count - 1 - block)" if bindings.reverse else "block",
    }


def _bindings(match: Match) -> Scan:
    if not isinstance(match.bindings, Scan):
        raise Unmatched("not a scan")
    return match.bindings


def _prepare(bindings: Scan) -> tuple[list[tuple[str, str]], list[str]]:
    """The inputs of `run`, and the statements that bring them into rows and allocate `out`."""
    inputs = [("x", bindings.x.text)]
    body = [
        "shape, cols = x.shape, x.shape[-1]",
        "rows = math.prod(shape[:-1])",
        "out = torch.empty(shape, dtype={dtype}, device=x.device)",
        "x = _matrix(x, shape, rows, cols)",
    ]
    dtype = "x.dtype"
    if bindings.factor is None:
        body.append("factor = x")
    else:
        inputs.append(("factor", bindings.factor.text))
        body.append("factor = _matrix(factor, shape, rows, cols)")
        if bindings.factor.kind == "float":
            dtype = "torch.promote_types(x.dtype, factor.dtype)"
    return inputs, [line.format(dtype=dtype) for line in body]


def write_rows(match: Match) -> Parts:
    bindings = _bindings(match)
    forms = _forms(bindings)
    inputs, prepare = _prepare(bindings)
    body = [
        *prepare,
        "block = min(BLOCK, triton.next_power_of_2(max(cols, 1)))",
        "size = max(1, TILE // block)",
        "warps = min(max(size * block // (32 * PER_THREAD), 1), 16)",
        "_scan[(triton.cdiv(rows, size),)](",
        "    x, factor, out, x.stride(0), factor.stride(0), rows, cols, size, block, num_warps=warps",
        ")",
        "return out",
    ]
    return Parts(
        kernels=("" if bindings.op == "sum" else _PRODUCT) + _ROWS.format(**forms),
        inputs=inputs,
        body=body,
        tunables={"BLOCK": [512, 1024, 2048, 4096, 8192], "TILE": [1024, 2048, 4096, 8192], "PER_THREAD": [8, 16, 32]},
        defaults={"BLOCK": 2048, "TILE": 2048, "PER_THREAD": 16},
        helpers=[PREPARE],
    )


def write_split(match: Match) -> Parts:
    bindings = _bindings(match)
    inputs, prepare = _prepare(bindings)
    body = [
        *prepare,
        "block = min(BLOCK, triton.next_power_of_2(max(cols, 1)))",
        "blocks = triton.cdiv(cols, block)",
        "pieces = max(1, min(blocks, 4096, PROGRAMS * _processors(x.device) // max(rows, 1)))",
        "share = triton.cdiv(blocks, pieces) * block",
        "pieces = max(1, triton.cdiv(cols, max(share, 1)))",
        "part = torch.empty(rows * pieces, dtype=torch.float32, device=x.device)",
        "_totals[(rows * pieces,)](",
        "    x, factor, part, x.stride(0), factor.stride(0), cols, share, pieces, block, num_warps=WARPS",
        ")",
        "_scan[(rows * pieces,)](",
        "    x, factor, part, out, x.stride(0), factor.stride(0), cols, share, pieces, block,",
        "    triton.next_power_of_2(pieces), num_warps=WARPS,",
        ")",
        "return out",
    ]
    return Parts(
        kernels=("" if bindings.op == "sum" else _PRODUCT) + _SPLIT.format(**_forms(bindings)),
        inputs=inputs,
        body=body,
        tunables={"BLOCK": [1024, 2048, 4096], "WARPS": [4, 8], "PROGRAMS": [4, 8, 16]},
        defaults={"BLOCK": 2048, "WARPS": 4, "PROGRAMS": 8},
        helpers=[PREPARE, PROCESSORS],
    )


RECIPES = (
    Recipe(
        "scan_rows",
        "scan",
        "Each program scans its rows block by block in registers and carries the running total over; every number is "
        "read once and written once, and the next block is loaded while this one is scanned.",
        write_rows,
    ),
    Recipe(
        "scan_split",
        "scan",
        "Rows are cut into pieces so that a few long rows fill the device: totals of the pieces first, then each piece "
        "starts from the totals before it.",
        write_split,
    ),
)
