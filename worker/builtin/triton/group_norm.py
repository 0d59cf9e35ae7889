"""Normalisation over groups of channels, with an elementwise epilogue."""

from __future__ import annotations

from collections.abc import Sequence

from worker.builtin.expressions import Unmatched
from worker.builtin.families import GroupNorm, Match
from worker.builtin.triton.recipe import Parts, Recipe, indented
from worker.builtin.triton.tiles import Tiles

_HEAD = """\
@triton.jit
def {name}(x, weight, bias, {parameters}o0, groups, each, space, cols, eps, BLOCK: tl.constexpr):
    group = tl.program_id(0).to(tl.int64)
    channel = (group % groups).to(tl.int32) * each
    begin = group * cols
"""

_ONCE = """\
{head}    at = tl.arange(0, BLOCK)[None, :]
    ok = at < cols
    v = tl.load(x + begin + at, mask=ok, other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=1, keep_dims=True) / cols
    centred = tl.where(ok, v - mean, 0.0)
    spread = tl.rsqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / cols + eps)
{apply}
"""

# Welford in every lane; the lanes' means are merged around one of them: pair by pair would round at every level.
_STREAM = """\
{head}    count = tl.full([1, BLOCK], 0.0, tl.float32)
    means = tl.full([1, BLOCK], 0.0, tl.float32)
    squares = tl.full([1, BLOCK], 0.0, tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)[None, :]
        ok = at < cols
        v = tl.load(x + begin + at, mask=ok, other=0.0).to(tl.float32)
        v = tl.where(ok, v, means)
        count = count + tl.where(ok, 1.0, 0.0)
        delta = v - means
        means = means + delta / tl.maximum(count, 1.0)
        squares = squares + delta * (v - means)
    first = tl.sum(tl.where(tl.arange(0, BLOCK)[None, :] == 0, means, 0.0), axis=1, keep_dims=True)
    mean = first + tl.sum(count * (means - first), axis=1, keep_dims=True) / cols
    squares = squares + count * (means - mean) * (means - mean)
    spread = tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / cols + eps)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)[None, :]
        ok = at < cols
        v = tl.load(x + begin + at, mask=ok, other=0.0).to(tl.float32)
        centred = v - mean
{apply}
"""


def _apply(bindings: GroupNorm, tiles: Tiles | None) -> list[str]:
    """From `centred` and `spread` to the store."""
    lines = ["acc = centred * spread"]
    if bindings.weight is not None or bindings.bias is not None:
        lines.append("own = channel + at // space")
    if bindings.weight is not None:
        lines.append("acc = acc * tl.load(weight + own, mask=ok, other=0.0).to(tl.float32)")
    if bindings.bias is not None:
        lines.append("acc = acc + tl.load(bias + own, mask=ok, other=0.0).to(tl.float32)")
    if tiles is None:
        return [*lines, "tl.store(o0 + begin + at, acc, mask=ok)"]
    program = tiles.program
    lines += ["row = 0", "col = begin + at", "col_ok = ok"]
    lines += tiles.statements([program.outputs[0].step])
    return [*lines, f"tl.store(o0 + begin + at, v{program.outputs[0].step}, mask=ok)"]


def _kernels(apply: Sequence[str], parameters: str) -> str:
    once = _ONCE.format(head=_HEAD.format(name="_once", parameters=parameters), apply=indented(apply, 4))
    stream = _STREAM.format(head=_HEAD.format(name="_stream", parameters=parameters), apply=indented(apply, 8))
    return f"{once}\n\n{stream}"


def _write(match: Match) -> Parts:
    bindings = match.bindings
    if not isinstance(bindings, GroupNorm):
        raise Unmatched("not a group norm")
    program = bindings.epilogue
    if program is not None and program.outputs[0].kind != "float":
        raise Unmatched("a norm turned into truth values")
    tiles = None if program is None else Tiles(program, program.rank)
    inputs = [("x", bindings.x.text), ("groups", f"int({bindings.groups.text})"), ("eps", bindings.eps.text)]
    for name, operand in (("weight", bindings.weight), ("bias", bindings.bias)):
        if operand is not None:
            inputs.append((name, operand.text))
    given = {name for name, _ in inputs}
    arguments = "".join(f"{name}, " for name in tiles.arguments()) if tiles else ""
    parameters = "".join(f"{name}, " for name in tiles.parameters()) if tiles else ""
    launch = f"x, weight, bias, {arguments}o0, groups, each, space, width, eps"
    body = [
        "shape = x.shape",
        "x = x.contiguous()",
        "o0 = torch.empty(shape, dtype=x.dtype, device=x.device)",
        "each, space = shape[1] // groups, math.prod(shape[2:])",
        "width, programs = each * space, shape[0] * groups",
        *(f"{name} = {f'{name}.contiguous()' if name in given else 'x'}" for name in ("weight", "bias")),
        *(["rows, cols = 1, x.numel()", *tiles.prepare()] if tiles else []),
        "block = triton.next_power_of_2(max(width, 1))",
        "if block <= ONE_PASS:",
        "    warps = min(max(block // (32 * PER_THREAD), 1), 32)",
        f"    _once[(programs,)]({launch}, block, num_warps=warps)",
        "else:",
        f"    _stream[(programs,)]({launch}, BLOCK, num_warps=WARPS)",
        "return o0",
    ]
    return Parts(
        kernels=_kernels(_apply(bindings, tiles), parameters),
        inputs=[*inputs, *(tiles.inputs() if tiles else [])],
        body=body,
        tunables={
            "ONE_PASS": [4096, 8192, 16384, 32768],
            "PER_THREAD": [8, 16, 32],
            "BLOCK": [1024, 2048, 4096, 8192],
            "WARPS": [4, 8, 16],
        },
        defaults={"ONE_PASS": 16384, "PER_THREAD": 16, "BLOCK": 4096, "WARPS": 8},
        constraints=["BLOCK <= WARPS * 2048"],
        helpers=tiles.python_helpers() if tiles else [],
    )


RECIPES = (
    Recipe(
        "group_norm_rows",
        "group_norm",
        "One program a group: its statistics from registers where the group fits, else by Welford in one pass over it; "
        "affine and epilogue are applied before the only store.",
        _write,
    ),
)
