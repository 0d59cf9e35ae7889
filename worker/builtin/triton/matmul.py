"""Matrix products with an elementwise epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.builtin.expressions import Unmatched
from worker.builtin.families import Match, Matmul
from worker.builtin.triton.recipe import Parts, Recipe, indented
from worker.builtin.triton.rows import PROCESSORS
from worker.builtin.triton.tiles import Tiles

# Programs walk down groups of GROUP row tiles before they move on to the next column: what they read stays cached.
_SCHEDULE = """\
@triton.jit
def _place(tile, m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    down, across = tl.cdiv(m, BM), tl.cdiv(n, BN)
    batch = tile // (down * across)
    tile = tile % (down * across)
    group = tile // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    return batch, group * GROUP + tile % (GROUP * across) % height, tile % (GROUP * across) // height
"""

_FINISH = """\
@triton.jit
def _finish(acc, {parameters}o0, batch, at_m, at_n, m, n):
    row = batch.to(tl.int64) * m + at_m[:, None]
    col = at_n[None, :]
    row_ok, col_ok = at_m[:, None] < m, col < n
    ok = row_ok & col_ok
{epilogue}


@triton.jit
def _finish_tile(
    acc, {parameters}o0, batch, down, across, m, n,
    BM: tl.constexpr, BN: tl.constexpr, HALVES: tl.constexpr,
):
    # In halves, the epilogue needs half the registers: an accumulator of 128 x 256 leaves few for it.
    at_m = down * BM + tl.arange(0, BM)
    if HALVES:
        left, right = tl.split(tl.permute(tl.reshape(acc, [BM, 2, BN // 2]), [0, 2, 1]))
        at_n = across * BN + tl.arange(0, BN // 2)
        _finish(left, {parameters}o0, batch, at_m, at_n, m, n)
        _finish(right, {parameters}o0, batch, at_m, at_n + BN // 2, m, n)
    else:
        _finish(acc, {parameters}o0, batch, at_m, across * BN + tl.arange(0, BN), m, n)
"""

_POINTERS = """\
@triton.jit
def _matmul(
    a, b, {parameters}o0, m, n, k, sab, sam, sak, sbb, sbk, sbn,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, HALVES: tl.constexpr,
):
    batch, down, across = _place(tl.program_id(0), m, n, BM, BN, GROUP)
    at_m = down * BM + tl.arange(0, BM)
    at_n = across * BN + tl.arange(0, BN)
    at_k = tl.arange(0, BK)
    # Rows and columns past the end read the first ones again: their products are never stored, and need no mask here.
    in_m = tl.where(at_m < m, at_m, 0).to(tl.int64)
    in_n = tl.where(at_n < n, at_n, 0).to(tl.int64)
    a += batch.to(tl.int64) * sab + in_m[:, None] * sam + at_k[None, :] * sak
    b += batch.to(tl.int64) * sbb + at_k[:, None] * sbk + in_n[None, :] * sbn
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, k, BK):
        if EVEN_K:
            left, right = tl.load(a), tl.load(b)
        else:
            left = tl.load(a, mask=at_k[None, :] < k - start, other=0.0)
            right = tl.load(b, mask=at_k[:, None] < k - start, other=0.0)
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
        a += BK * sak
        b += BK * sbk
    _finish_tile(acc, {parameters}o0, batch, down, across, m, n, BM, BN, HALVES)
"""

_DESCRIPTORS = """\
@triton.jit
def _matmul(
    a, b, {parameters}o0, m, n, k, PRECISION: tl.constexpr, TRANSPOSED: tl.constexpr, FLATTEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, HALVES: tl.constexpr,
):
    tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        batch, down, across = _place(tile, m, n, BM, BN, GROUP)
        acc = tl.zeros([BM, BN], tl.float32)
        for start in range(0, tl.cdiv(k, BK)):
            left = a.load([down * BM, start * BK])
            if TRANSPOSED:
                acc = tl.dot(left, b.load([across * BN, start * BK]).T, acc, input_precision=PRECISION)
            else:
                acc = tl.dot(left, b.load([start * BK, across * BN]), acc, input_precision=PRECISION)
        _finish_tile(acc, {parameters}o0, batch, down, across, m, n, BM, BN, HALVES)
"""

_PADDED = '''\
def _padded(t, multiple):
    """`t` with its last dimension padded with zeros to a multiple, so that rows start at aligned addresses."""
    extra = -t.shape[-1] % multiple
    return torch.nn.functional.pad(t, (0, extra)) if extra else t
'''


_ALIGNED = '''\
def _aligned(t):
    """`t` as the copy engine wants it: rows of a multiple of 16 bytes, starting at a multiple of 16 bytes."""
    t = _padded(t, 8).contiguous()
    return t.clone() if t.data_ptr() % 16 else t
'''


@dataclass(frozen=True, slots=True)
class _Epilogue:
    """What follows the product, as text."""

    inputs: Sequence[tuple[str, str]]
    prepare: Sequence[str]
    arguments: Sequence[str]
    parameters: Sequence[str]
    statements: Sequence[str]
    dtype: str
    helpers: Sequence[str]

    @property
    def text(self) -> str:
        """The parameters as text, to stand before others."""
        return "".join(f"{name}, " for name in self.parameters)


def _finish(after: _Epilogue) -> str:
    """The functions that apply the epilogue to an accumulator and store it."""
    return _FINISH.format(parameters=after.text, epilogue=indented(after.statements, 4))


def _epilogue(bindings: Matmul) -> _Epilogue:
    program = bindings.epilogue
    if program is None:
        store = "tl.store(o0 + row * n + col, acc, mask=ok)"
        return _Epilogue((), (), (), (), [store], "torch.promote_types(a.dtype, b.dtype)", ())
    tiles = Tiles(program, 1)
    lines = tiles.statements([program.outputs[0].step])
    if program.outputs[0].kind != "float":
        raise Unmatched("a product turned into truth values")
    lines.append(f"tl.store(o0 + row * n + col, v{program.outputs[0].step}, mask=ok)")
    dtype = "torch.promote_types(a.dtype, b.dtype)"
    for index, operand, _ in tiles.operands():
        if operand.kind == "float" and operand.rank:
            dtype = f"torch.promote_types({dtype}, x{index}.dtype)"
    return _Epilogue(
        tiles.inputs(), tiles.prepare(), tiles.arguments(), tiles.parameters(), lines, dtype, tiles.python_helpers()
    )


def _bindings(match: Match) -> Matmul:
    if not isinstance(match.bindings, Matmul) or match.bindings.a.kind != "float" or match.bindings.b.kind != "float":
        raise Unmatched("not a product of floating matrices")
    return match.bindings


def _shapes(bindings: Matmul, after: _Epilogue) -> list[str]:
    """Statements that bring a to [batch, m, k] and b to [batch, k, n], and allocate o0."""
    n = "b.shape[-2]" if bindings.b_transposed else "b.shape[-1]"
    lines = [f"shape = (*a.shape[:-1], {n})", "rows, cols = math.prod(shape[:-1]), shape[-1]"]
    lines.append(f"o0 = torch.empty(shape, dtype={after.dtype}, device=a.device)")
    if bindings.batched:
        lines += ["batch = math.prod(a.shape[:-2])"]
        lines += ["a, b = a.reshape(batch, *a.shape[-2:]), b.reshape(batch, *b.shape[-2:])"]
    else:
        lines += ["a, b = a.reshape(1, rows, a.shape[-1]), b[None]"]
    if not bindings.batched and bindings.a.rank == 1:
        raise Unmatched("a vector times a matrix")
    return lines


def small_types(match: Match) -> bool:
    """Whether every workload multiplies two-byte types: they run on tensor cores, float32 does not."""
    return all(dtype in ("float16", "bfloat16") for example in match.examples for _, _, dtype in example.inputs)


def write_pointers(match: Match) -> Parts:
    bindings = _bindings(match)
    after = _epilogue(bindings)
    body = [
        *_shapes(bindings, after),
        *after.prepare,
        "if PAD and a.element_size() == 2 and a.shape[-1] % 8:",
        f"    a, b = _padded(a, 8), {'_padded(b, 8)' if bindings.b_transposed else '_padded(b.mT, 8).mT'}",
        "b = b.mT" if bindings.b_transposed else "",
        "batch, m, k = a.shape",
        "_matmul[(batch * triton.cdiv(m, BM) * triton.cdiv(cols, BN),)](",
        f"    a, b, {', '.join([*after.arguments, 'o0'])}, m, cols, k, *a.stride(), *b.stride(),",
        "    k % BK == 0, PRECISION, BM, BN, BK, GROUP, bool(HALVES), num_warps=WARPS, num_stages=STAGES,",
        ")",
        "return o0",
    ]
    half = small_types(match)
    return Parts(
        kernels="\n\n".join([_SCHEDULE, _finish(after), _POINTERS.format(parameters=after.text)]),
        inputs=[("a", bindings.a.text), ("b", bindings.b.text), *after.inputs],
        body=[line for line in body if line],
        tunables={
            "BM": [32, 64, 128, 256] if half else [32, 64, 128],
            "BN": [32, 64, 128, 256] if half else [32, 64, 128],
            "BK": [32, 64, 128] if half else [16, 32, 64],
            "GROUP": [4, 8, 16],
            "WARPS": [4, 8],
            "STAGES": [2, 3, 4],
            "PAD": [0, 1],
            "HALVES": [0, 1],
        },
        defaults={"BM": 128, "BN": 256, "BK": 64, "GROUP": 8, "WARPS": 8, "STAGES": 3, "PAD": 1, "HALVES": 1}
        if half
        else {"BM": 64, "BN": 64, "BK": 16, "GROUP": 8, "WARPS": 4, "STAGES": 3, "PAD": 0, "HALVES": 0},
        # Shared memory holds STAGES slices of both operands: 227 KB on Hopper; accumulators live in registers.
        constraints=[f"(BM + BN) * BK * STAGES * {2 if half else 4} <= 220000", "BM * BN <= WARPS * 32 * 128"],
        helpers=[_PADDED, *after.helpers],
    )


def write_descriptors(match: Match) -> Parts:
    bindings = _bindings(match)
    if bindings.batched or not small_types(match):
        raise Unmatched("the copy engine is used for single products of two-byte types")
    after = _epilogue(bindings)
    body = [
        *_shapes(bindings, after),
        *after.prepare,
        "if not o0.numel():",
        "    return o0",
        "a, b = _aligned(a[0]), _aligned(b[0])",
        "k = a.shape[1]",
        # Where b is not transposed it may have fewer rows than a has padded columns: the engine reads zeros beyond.
        "left = TensorDescriptor.from_tensor(a, [BM, BK])",
        f"right = TensorDescriptor.from_tensor(b, {'[BN, BK]' if bindings.b_transposed else '[BK, BN]'})",
        "tiles = triton.cdiv(rows, BM) * triton.cdiv(cols, BN)",
        "_matmul[(min(tiles, _processors(a.device)),)](",
        f"    left, right, {', '.join([*after.arguments, 'o0'])}, rows, cols, k, PRECISION, {bindings.b_transposed},",
        "    bool(FLATTEN), BM, BN, BK, GROUP, bool(HALVES), num_warps=WARPS, num_stages=STAGES,",
        ")",
        "return o0",
    ]
    return Parts(
        kernels="\n\n".join([_SCHEDULE, _finish(after), _DESCRIPTORS.format(parameters=after.text)]),
        inputs=[("a", bindings.a.text), ("b", bindings.b.text), *after.inputs],
        body=body,
        tunables={
            "BM": [64, 128, 256],
            "BN": [64, 128, 256],
            "BK": [32, 64, 128],
            "GROUP": [4, 8, 16],
            "WARPS": [4, 8],
            "STAGES": [2, 3, 4],
            "FLATTEN": [0, 1],
            "HALVES": [0, 1],
        },
        defaults={"BM": 128, "BN": 256, "BK": 64, "GROUP": 8, "WARPS": 8, "STAGES": 3, "FLATTEN": 1, "HALVES": 1},
        constraints=["(BM + BN) * BK * STAGES * 2 <= 220000", "BM * BN <= WARPS * 32 * 128"],
        helpers=[_PADDED, _ALIGNED, PROCESSORS, *after.helpers],
    )


RECIPES = (
    Recipe(
        "matmul_descriptors",
        "matmul",
        "A persistent product fed by the bulk tensor copy engine: one program per multiprocessor walks over tiles in "
        "grouped order, accumulates in float32 and applies the epilogue before the only store.",
        write_descriptors,
    ),
    Recipe(
        "matmul_tiles",
        "matmul",
        "A tiled product in grouped order with a software pipeline over k, float32 accumulation and the epilogue "
        "applied to the accumulator before the only store.",
        write_pointers,
    ),
)
