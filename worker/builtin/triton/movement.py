"""Recipes that mostly move data: rotary embedding, transposition, embedding look-up."""

from __future__ import annotations

from worker.builtin.expressions import Unmatched
from worker.builtin.families import Embedding, Match, Rope, Transpose
from worker.builtin.triton.recipe import Parts, Recipe, indented
from worker.builtin.triton.tiles import Tiles

_ROPE = """\
@triton.jit
def _rope(x, cos, sin, out, rows, half, {sizes}, {strides}, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    low = tl.arange(0, BLOCK)[None, :]
    high = low + half
    ok = (row < rows) & (low < half)
    rest = row
{offsets}
    a = tl.load(x + at_x + low * xd, mask=ok, other=0.0).to(tl.float32)
    b = tl.load(x + at_x + high * xd, mask=ok, other=0.0).to(tl.float32)
    cos_a = tl.load(cos + at_cos + low * cosd, mask=ok, other=0.0).to(tl.float32)
    cos_b = tl.load(cos + at_cos + high * cosd, mask=ok, other=0.0).to(tl.float32)
    sin_a = tl.load(sin + at_sin + low * sind, mask=ok, other=0.0).to(tl.float32)
    sin_b = tl.load(sin + at_sin + high * sind, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * half * 2 + low, a * cos_a - b * sin_a, mask=ok)
    tl.store(out + row * half * 2 + high, b * cos_b + a * sin_b, mask=ok)
"""

_ROTATE = '''\
def _rotated(x, cos, sin):
    """One rotated tensor, contiguous."""
    cos, sin = cos.expand(x.shape), sin.expand(x.shape)
    dtype = torch.promote_types(torch.promote_types(x.dtype, cos.dtype), sin.dtype)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    rows, half = math.prod(x.shape[:-1]), x.shape[-1] // 2
    block = triton.next_power_of_2(max(half, 1))
    size = max(1, TILE // block)
    _rope[(triton.cdiv(rows, size),)](
        x, cos, sin, out, rows, half, {sizes}, *x.stride(), *cos.stride(), *sin.stride(),
        size, block, num_warps=WARPS,
    )
    return out
'''


def _write_rope(match: Match) -> Parts:
    bindings = match.bindings
    if not isinstance(bindings, Rope):
        raise Unmatched("not a rotary embedding")
    ranks = {operand.rank for operand in bindings.xs}
    if len(ranks) != 1 or min(ranks) < 2:
        raise Unmatched("rotated tensors of several ranks")
    lead = ranks.pop() - 1
    names = ("x", "cos", "sin")
    offsets = [f"at_{name} = tl.zeros([ROWS, 1], tl.int64)" for name in names]
    for dim in reversed(range(lead)):
        index = "rest" if dim == 0 else f"(rest % n{dim})"
        offsets += [f"at_{name} += {index} * {name}{dim}" for name in names]
        offsets += [f"rest = rest // n{dim}"] if dim else []
    strides = ", ".join(f"{name}{dim}" for name in names for dim in (*range(lead), "d"))
    xs = [(f"x{index}", operand.text) for index, operand in enumerate(bindings.xs)]
    rotated = [f"_rotated({name}, cos, sin)" for name, _ in xs]
    returned = f"({', '.join(rotated)},)" if bindings.returns_tuple else rotated[0]
    kernel = _ROPE.format(
        sizes=", ".join(f"n{dim}" for dim in range(lead)), strides=strides, offsets=indented(offsets, 4)
    )
    return Parts(
        kernels=kernel,
        inputs=[*xs, ("cos", bindings.cos.text), ("sin", bindings.sin.text)],
        body=[f"return {returned}"],
        tunables={"TILE": [256, 512, 1024, 2048], "WARPS": [1, 2, 4, 8]},
        defaults={"TILE": 512, "WARPS": 4},
        helpers=[_ROTATE.format(sizes="*x.shape[:-1]")],
    )


_TRANSPOSE = """\
@triton.jit
def _transpose(x, out, fast, last, sx_last, so_fast, {sizes}BF: tl.constexpr, BL: tl.constexpr):
    across, down = tl.cdiv(fast, BF), tl.cdiv(last, BL)
    pid = tl.program_id(0)
    at_fast = (pid % across) * BF + tl.arange(0, BF)
    at_last = (pid // across % down) * BL + tl.arange(0, BL)
    rest = (pid // across // down).to(tl.int64)
{offsets}
    tile = tl.load(
        x + at_last[:, None].to(tl.int64) * sx_last + at_fast[None, :],
        mask=(at_last[:, None] < last) & (at_fast[None, :] < fast),
    )
    tl.store(
        out + at_fast[:, None].to(tl.int64) * so_fast + at_last[None, :],
        tl.trans(tile),
        mask=(at_fast[:, None] < fast) & (at_last[None, :] < last),
    )
"""

_ROWS = """\
@triton.jit
def _rows(x, out, rows, cols, {sizes}ROWS: tl.constexpr, BLOCK: tl.constexpr):
    across = tl.cdiv(cols, BLOCK)
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = (tl.program_id(0) % across) * BLOCK + tl.arange(0, BLOCK)[None, :]
    ok = (row < rows) & (col < cols)
    rest = row
{offsets}
    tl.store(out + row * cols + col, tl.load(x + col, mask=ok), mask=ok)
"""


def _offsets(batch: list[int], written: bool) -> list[str]:
    """Statements that move x (and out) to where `rest` counts over the batch dimensions, the last one fastest."""
    lines = []
    for dim in reversed(batch):
        index = "rest" if dim == batch[0] else f"(rest % n{dim})"
        lines.append(f"x += {index} * sx{dim}")
        lines += [f"out += {index} * so{dim}"] if written else []
        lines += [] if dim == batch[0] else [f"rest = rest // n{dim}"]
    return lines


def _write_transpose(match: Match) -> Parts:
    bindings = match.bindings
    if not isinstance(bindings, Transpose):
        raise Unmatched("not a transposition")
    order, rank = bindings.permutation, len(bindings.permutation)
    moved = order[-1] != rank - 1
    fast = order.index(rank - 1)
    batch = [dim for dim in range(rank - 1) if dim != fast or not moved]
    names = [f"n{dim}, sx{dim}, " + (f"so{dim}, " if moved else "") for dim in batch]
    values = [f"y.shape[{dim}], y.stride({dim}), " + (f"out.stride({dim}), " if moved else "") for dim in batch]
    body = [
        f"y = x.contiguous().permute({order})",
        "out = torch.empty(y.shape, dtype=y.dtype, device=y.device)",
        "cols = y.shape[-1]",
    ]
    if moved:
        body += [
            f"fast = y.shape[{fast}]",
            "batch = y.numel() // max(fast * cols, 1)",
            "_transpose[(triton.cdiv(fast, BF) * triton.cdiv(cols, BL) * batch,)](",
            f"    y, out, fast, cols, y.stride({rank - 1}), out.stride({fast}), {''.join(values)}BF, BL,",
            "    num_warps=WARPS,",
            ")",
        ]
        tunables = {"BF": [16, 32, 64, 128], "BL": [16, 32, 64, 128], "WARPS": [2, 4, 8]}
        defaults = {"BF": 64, "BL": 64, "WARPS": 8}
    else:
        body += [
            "rows = y.numel() // max(cols, 1)",
            "block = min(BLOCK, triton.next_power_of_2(max(cols, 1)))",
            "size = max(1, TILE // block)",
            "_rows[(triton.cdiv(rows, size) * triton.cdiv(cols, block),)](",
            f"    y, out, rows, cols, {''.join(values)}size, block, num_warps=WARPS,",
            ")",
        ]
        tunables = {"TILE": [1024, 2048, 4096], "BLOCK": [128, 256, 512, 1024], "WARPS": [2, 4, 8]}
        defaults = {"TILE": 2048, "BLOCK": 512, "WARPS": 4}
    template = _TRANSPOSE if moved else _ROWS
    kernel = template.format(sizes="".join(names), offsets=indented(_offsets(batch, moved), 4))
    return Parts(
        kernels=kernel,
        inputs=[("x", bindings.x.text)],
        body=[*body, "return out"],
        tunables=tunables,
        defaults=defaults,
        constraints=["BF * BL <= WARPS * 2048"] if moved else ["TILE <= WARPS * 2048"],
        any_type=True,
    )


# An index out of range would have torch stop the device; here its row comes out as NaN, which passes for no answer.
_EMBEDDING = """\
@triton.jit
def _embedding(weight, indices, {parameters}o0, sw, count, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    across = tl.cdiv(cols, BLOCK)
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = (tl.program_id(0) % across) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row_ok, col_ok = row < rows, col < cols
    ok = row_ok & col_ok
    index = tl.load(indices + row, mask=row_ok, other=0).to(tl.int64)
    known = (index >= 0) & (index < count)
    acc = tl.load(weight + index * sw + col, mask=ok & known, other=float("nan"))
{statements}
"""


def _write_embedding(match: Match) -> Parts:
    bindings = match.bindings
    if not isinstance(bindings, Embedding):
        raise Unmatched("not an embedding")
    program = bindings.epilogue
    tiles = None if program is None else Tiles(program, 1)
    statements, dtype = ["tl.store(o0 + row * cols + col, acc, mask=ok)"], "weight.dtype"
    if tiles is not None and program is not None:
        statements = ["acc = acc.to(tl.float32)"]
        statements += tiles.statements([program.outputs[0].step])
        statements.append(f"tl.store(o0 + row * cols + col, v{program.outputs[0].step}, mask=ok)")
        for index, item, _ in tiles.operands():
            if item.kind == "float" and item.rank:
                dtype = f"torch.promote_types({dtype}, x{index}.dtype)"
        if program.outputs[0].kind != "float":
            raise Unmatched("an embedding turned into truth values")
    body = [
        "shape = (*indices.shape, weight.shape[1])",
        "rows, cols = indices.numel(), weight.shape[1]",
        f"o0 = torch.empty(shape, dtype={dtype}, device=weight.device)",
        "weight = weight if weight.stride(1) == 1 else weight.contiguous()",
        "indices = indices.contiguous()",
        *(tiles.prepare() if tiles else []),
        "block = min(BLOCK, triton.next_power_of_2(max(cols, 1)))",
        "size = max(1, TILE // block)",
        "_embedding[(triton.cdiv(rows, size) * triton.cdiv(cols, block),)](",
        f"    weight, indices, {''.join(f'{name}, ' for name in (tiles.arguments() if tiles else []))}o0,",
        "    weight.stride(0), weight.shape[0], rows, cols, size, block, num_warps=WARPS,",
        ")",
        "return o0",
    ]
    parameters = "".join(f"{name}, " for name in (tiles.parameters() if tiles else []))
    return Parts(
        kernels=_EMBEDDING.format(parameters=parameters, statements=indented(statements, 4)),
        inputs=[
            ("weight", bindings.weight.text),
            ("indices", bindings.indices.text),
            *(tiles.inputs() if tiles else []),
        ],
        body=body,
        tunables={"TILE": [1024, 2048, 4096, 8192], "BLOCK": [256, 512, 1024, 2048, 4096], "WARPS": [2, 4, 8]},
        defaults={"TILE": 2048, "BLOCK": 1024, "WARPS": 4},
        constraints=["TILE <= WARPS * 2048"],
        helpers=tiles.python_helpers() if tiles else [],
        any_type=tiles is None,
    )


RECIPES = (
    Recipe(
        "rope_halves",
        "rope",
        "Both halves of each head are loaded once and rotated in registers; strides are followed, so that transposed "
        "views need no copy.",
        _write_rope,
    ),
    Recipe(
        "transpose_tiles",
        "transpose",
        "Tiles that are read along the input's fast dimension and written along the output's, turned round in shared "
        "memory in between.",
        _write_transpose,
    ),
    Recipe(
        "embedding_rows",
        "embedding",
        "Tiles of several rows of the table at a time, so that many loads are in flight; the epilogue runs in "
        "registers.",
        _write_embedding,
    ),
)
