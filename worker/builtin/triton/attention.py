"""Attention without the score matrix: online softmax over blocks of keys, causal blocks skipped, heads shared."""

from __future__ import annotations

from worker.builtin.expressions import Unmatched
from worker.builtin.families import Attention, Match
from worker.builtin.triton.matmul import small_types
from worker.builtin.triton.recipe import Parts, Recipe

# Exponentials are taken in base 2, with the factor log2(e) folded into the scale. `base` replaces a running maximum of
# -inf (nothing visible yet) by 0, since -inf - -inf would be NaN; plain causal attention always sees a key first.
_KERNEL = """\
@triton.jit
def _inner(
    acc, total, top, q, k, v, mask, at_m, at_d, at_e, low, high, tokens, keys, width, depth,
    skn, skd, svn, svd, smm, smn, scale,
    EDGE: tl.constexpr, EVEN_D: tl.constexpr, PRECISION: tl.constexpr, BN: tl.constexpr,
):
    for start in range(low, high, BN):
        start = tl.multiple_of(start, BN)
        at_n = start + tl.arange(0, BN)
        at_k = k + at_n[None, :].to(tl.int64) * skn + at_d[:, None] * skd
        at_v = v + at_n[:, None].to(tl.int64) * svn + at_e[None, :] * svd
        if EDGE:
            keep_k = (at_n[None, :] < keys) & (at_d[:, None] < width)
            right = tl.load(at_k, mask=keep_k, other=0.0)
        elif EVEN_D:
            right = tl.load(at_k)
        else:
            right = tl.load(at_k, mask=at_d[:, None] < width, other=0.0)
        scores = tl.dot(q, right, input_precision=PRECISION)
{masked}
        higher = tl.maximum(top, tl.max(scores, 1) * scale)
{base}
        powers = tl.exp2(scores * scale - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(powers, 1)
        acc = acc * shrink[:, None]
        if EDGE:
            values = tl.load(at_v, mask=(at_n[:, None] < keys) & (at_e[None, :] < depth), other=0.0)
        elif EVEN_D:
            values = tl.load(at_v)
        else:
            values = tl.load(at_v, mask=at_e[None, :] < depth, other=0.0)
        acc = tl.dot(powers.to(values.dtype), values, acc, input_precision=PRECISION)
        top = higher
    return acc, total, top


@triton.jit
def _attention(
    q, k, v, mask, out, heads, shared, tokens, keys, width, depth, scale,
    sqb, sqh, sqm, sqd, skb, skh, skn, skd, svb, svh, svn, svd, smb, smh, smm, smn,
    EVEN_D: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):
    # The last blocks of queries see most keys: they start first, so that the short ones fill the gaps at the end.
    blocks = tl.cdiv(tokens, BM)
    block = blocks - 1 - tl.program_id(0) % blocks
    both = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = both // heads, both % heads
    q += batch * sqb + head * sqh
    k += batch * skb + (head // shared) * skh
    v += batch * svb + (head // shared) * svh
    mask += batch * smb + head * smh
    at_m = block * BM + tl.arange(0, BM)
    at_d, at_e = tl.arange(0, BD), tl.arange(0, BE)
    query = tl.load(
        q + at_m[:, None].to(tl.int64) * sqm + at_d[None, :] * sqd,
        mask=(at_m[:, None] < tokens) & (at_d[None, :] < width), other=0.0,
    )
    acc = tl.zeros([BM, BE], tl.float32)
    total = tl.zeros([BM], tl.float32)
    top = tl.full([BM], float("-inf"), tl.float32)
{loops}
{close}
    at_out = out + (both * tokens + at_m[:, None]) * depth + at_e[None, :]
    tl.store(at_out, acc, mask=(at_m[:, None] < tokens) & (at_e[None, :] < depth))
"""

_INNER = """\
    acc, total, top = _inner(
        acc, total, top, query, k, v, mask, at_m, at_d, at_e, {low}, {high}, tokens, keys, width, depth,
        skn, skd, svn, svd, smm, smn, scale, {edge}, EVEN_D, PRECISION, BN,
    )"""


def _loops(causal: bool) -> str:
    """Blocks of keys that every query sees, without masks; then those on the diagonal or at the end, with them."""
    if causal:
        # BM is a multiple of BN, so that the diagonal starts at a whole block; queries before it lie within the keys
        # only as far as there are keys.
        whole = "    whole = tl.minimum(block * BM, keys // BN * BN)\n    last = tl.minimum((block + 1) * BM, keys)\n"
    else:
        whole = "    whole = keys // BN * BN\n    last = keys\n"
    first = _INNER.format(low="0", high="whole", edge="False")
    second = _INNER.format(low="whole", high="last", edge="True")
    return f"{whole}{first}\n{second}"


def _masked(bindings: Attention) -> str:
    """What is done to the scores before the softmax, in both loops."""
    lines = ["        if EDGE:"]
    visible = "(at_n[None, :] < keys)"
    if bindings.causal:
        visible += " & (at_m[:, None] >= at_n[None, :])"
    lines.append(f'            scores = tl.where({visible}, scores, float("-inf"))')
    if bindings.mask is not None:
        load = (
            "tl.load(mask + at_m[:, None].to(tl.int64) * smm + at_n[None, :] * smn, "
            "mask=(at_m[:, None] < tokens) & (at_n[None, :] < keys), other=0)"
        )
        if bindings.mask.kind == "bool":
            lines.append(f'        scores = tl.where({load} != 0, scores, float("-inf"))')
        else:
            # The bias is added after the scale, which is applied later: it is divided by it here.
            lines.append(f"        scores = scores + {load}.to(tl.float32) * (1.4426950408889634 / scale)")
    return "\n".join(lines)


def _write(match: Match) -> Parts:
    bindings = match.bindings
    if not isinstance(bindings, Attention) or bindings.q.kind != "float":
        raise Unmatched("not attention")
    mask = bindings.mask
    if mask is not None and mask.kind == "int":
        raise Unmatched("a mask of integers")
    if bindings.scale.value <= 0:
        raise Unmatched("a scale that turns the largest score into the smallest")
    half = small_types(match)
    base = "        base = higher" if mask is None else '        base = tl.where(higher == float("-inf"), 0.0, higher)'
    hidden = "    acc = acc / total[:, None]"
    if mask is not None and bindings.hidden_is_zero:
        hidden = "    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]"
    kernel = _KERNEL.format(masked=_masked(bindings), base=base, loops=_loops(bindings.causal), close=hidden)
    inputs = [("q", bindings.q.text), ("k", bindings.k.text), ("v", bindings.v.text)]
    inputs += [("mask", mask.text)] if mask is not None else []
    inputs.append(("scale", bindings.scale.text))
    return Parts(
        kernels=kernel,
        inputs=inputs,
        body=_body(bindings),
        tunables={
            "BM": [32, 64, 128],
            "BN": [32, 64, 128],
            "WARPS": [4, 8],
            "STAGES": [1, 2, 3, 4],
        },
        defaults={"BM": 128, "BN": 64, "WARPS": 8, "STAGES": 3}
        if half
        else {"BM": 32, "BN": 32, "WARPS": 4, "STAGES": 1},
        constraints=["BN <= BM", "BM * BN <= WARPS * 32 * 64"],
    )


def _body(bindings: Attention) -> list[str]:
    four = bindings.q.rank == 4
    body = [
        "shape = (*q.shape[:-1], v.shape[-1])",
        "out = torch.empty(shape, dtype=q.dtype, device=q.device)",
    ]
    if bindings.mask is None:
        body.append("mask, strides = q, (0, 0, 0, 0)")
    else:
        body.append("mask = mask.expand(*q.shape[:-1], k.shape[-2])")
    if not four:
        names = ("q", "k", "v") if bindings.mask is None else ("q", "k", "v", "mask")
        body.append(f"{', '.join(names)} = ({', '.join(f'{name}[:, None]' for name in names)})")
    if bindings.mask is not None:
        body.append("strides = mask.stride()")
    return [
        *body,
        "batch, heads, tokens, width = q.shape",
        "keys, depth = v.shape[2:]",
        "wide, deep = triton.next_power_of_2(max(width, 16)), triton.next_power_of_2(max(depth, 16))",
        "_attention[(triton.cdiv(tokens, BM) * batch * heads,)](",
        "    q, k, v, mask, out, heads, heads // k.shape[1], tokens, keys, width, depth, scale * 1.4426950408889634,",
        "    *q.stride(), *k.stride(), *v.stride(), *strides,",
        "    wide == width and deep == depth, PRECISION, BM, BN, wide, deep, num_warps=WARPS, num_stages=STAGES,",
        ")",
        "return out",
    ]


RECIPES = (
    Recipe(
        "attention_flash",
        "attention",
        "Flash attention: blocks of queries keep their output in registers and walk over blocks of keys with an online "
        "softmax in base 2; blocks above the diagonal are skipped, masks are applied on the diagonal only, and query "
        "heads share key heads without copies.",
        _write,
    ),
)
