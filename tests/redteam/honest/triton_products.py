"""Triton products: exact float32, bfloat16 tiles, split K by atomics or in two stages, a fused epilogue."""

from __future__ import annotations

from tests.redteam.honest.triton_building import triton_candidate

_MATMUL = """
@triton.jit
def kernel(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    p = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        u = tl.load(a + i[:, None] * k + (start + p)[None, :], mask=(i[:, None] < m) & ((start + p)[None,
            :] < k), other=0.0)
        v = tl.load(b + (start + p)[:, None] * n + j[None, :], mask=((start + p)[:, None] < k) & (j[None,
            :] < n), other=0.0)
        acc = tl.dot(u, v, acc, input_precision="ieee")
    tl.store(c + i[:, None] * n + j[None, :], acc.to(c.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))
"""
_MATMUL_FORWARD = """
def forward(self, a, b):
    a, b = a.contiguous(), b.contiguous()
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    kernel[(triton.cdiv(m, 32), triton.cdiv(n, 32))](a, b, out, m, n, k, BM=32, BN=32, BK=BLOCK)
    return out
"""
_SPLIT = """
@triton.jit
def partial(a, b, part, m, n, k, step, ATOMIC: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    first = tl.program_id(2) * step
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, step, BK):
        p = first + start + tl.arange(0, BK)
        u = tl.load(a + i[:, None] * k + p[None, :], mask=(i[:, None] < m) & (p[None, :] < k), other=0.0)
        v = tl.load(b + p[:, None] * n + j[None, :], mask=(p[:, None] < k) & (j[None, :] < n), other=0.0)
        acc = tl.dot(u, v, acc, input_precision="ieee")
    inside = (i[:, None] < m) & (j[None, :] < n)
    if ATOMIC:
        tl.atomic_add(part + i[:, None] * n + j[None, :], acc, mask=inside)
    else:
        tl.store(part + (tl.program_id(2) * m + i[:, None]) * n + j[None, :], acc, mask=inside)


@triton.jit
def finish(part, out, size, splits, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for s in range(0, splits):
        total += tl.load(part + s * size + at, mask=at < size, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < size)
"""
_SPLIT_FORWARD = """
def forward(self, a, b):
    a, b = a.contiguous(), b.contiguous()
    (m, k), n = a.shape, b.shape[1]
    step = triton.cdiv(triton.cdiv(k, 4), 32) * 32
    splits, grid = triton.cdiv(k, step), (triton.cdiv(m, 32), triton.cdiv(n, 32))
    part = torch.MAKE(SHAPE, dtype=torch.float32, device=a.device)
    partial[(*grid, splits)](a, b, part, m, n, k, step, ATOMIC=FLAG, BM=32, BN=32, BK=32)
    RESULT
"""
_ATOMIC = {"MAKE(SHAPE": "zeros((m, n)", "FLAG": "True", "RESULT": "return part"}
_STAGED = {
    "MAKE(SHAPE": "empty((splits, m, n)",
    "FLAG": "False",
    "RESULT": "out = torch.empty(m, n, dtype=a.dtype, device=a.device)\n"
    "    finish[(triton.cdiv(m * n, 1024),)](part, out, m * n, splits, BLOCK=1024)\n    return out",
}


def _filled(text: str, holes: dict[str, str]) -> str:
    for hole, filling in holes.items():
        text = text.replace(hole, filling)
    return text


_FUSED = """
@triton.jit
def kernel(x, w, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        p = start + tl.arange(0, BK)
        u = tl.load(x + i[:, None] * k + p[None, :], mask=(i[:, None] < m) & (p[None, :] < k), other=0.0)
        v = tl.load(w + j[None, :] * k + p[:, None], mask=(p[:, None] < k) & (j[None, :] < n), other=0.0)
        acc = tl.dot(u, v, acc, input_precision="ieee")
    h = acc + tl.load(b + j, mask=j < n, other=0.0).to(tl.float32)[None, :]
    h = 0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))
    tl.store(c + i[:, None] * n + j[None, :], h.to(c.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))
"""
_FUSED_INIT = """
def __init__(self, inner, outer, dtype="float32"):
    super().__init__()
    self.linear = nn.Linear(inner, outer, dtype=getattr(torch, dtype))
"""
_FUSED_FORWARD = """
def forward(self, x):
    x, layer = x.contiguous(), self.linear
    n, k = layer.weight.shape
    m = x.numel() // k
    if x.shape[-1] != k:
        raise ValueError(f"rows of {k} are needed")
    out = torch.empty(*x.shape[:-1], n, dtype=x.dtype, device=x.device)
    if m:
        kernel[(triton.cdiv(m, 32), triton.cdiv(n, 32))](x, layer.weight, layer.bias, out, m, n, k, BM=32, BN=32, BK=32)
    return out
"""

ENTRIES = (
    triton_candidate(
        "matmul-ieee", "float32 products without TF32", "matmul", _MATMUL, _MATMUL_FORWARD, head="BLOCK = 32"
    ),
    triton_candidate(
        "matmul-bf16",
        "bfloat16 tiles, float32 accumulators",
        "matmul_bf16",
        _MATMUL,
        _MATMUL_FORWARD,
        head="BLOCK = 64",
    ),
    triton_candidate(
        "split-k-atomic", "Split K with float32 atomics", "matmul", _SPLIT, _filled(_SPLIT_FORWARD, _ATOMIC)
    ),
    triton_candidate(
        "split-k-staged",
        "Split K with float32 partials and a second kernel",
        "matmul_bf16",
        _SPLIT,
        _filled(_SPLIT_FORWARD, _STAGED),
    ),
    triton_candidate(
        "linear-gelu",
        "Linear and GELU in one kernel, half storage",
        "half_matmul_bias_gelu",
        _FUSED,
        _FUSED_FORWARD,
        init=_FUSED_INIT,
    ),
)
"""Honest Triton products."""
