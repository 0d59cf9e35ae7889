"""Triton norms: two passes, merged blocks, recomputed sums, half storage."""

from __future__ import annotations

from tests.redteam.honest.triton_building import SAME, triton_candidate

_NORM = """
@triton.jit
def kernel(x, w, b, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
STATISTICS
    for start in range(0, n, BLOCK):
        i = start + at
        v = tl.load(x + row + i, mask=i < n, other=0.0).to(tl.float32)
        g = tl.load(w + i, mask=i < n, other=0.0).to(tl.float32)
        s = tl.load(b + i, mask=i < n, other=0.0).to(tl.float32)
        tl.store(out + row + i, (v - mean) * rstd * g + s, mask=i < n)
"""
_TWO_PASS = """
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x + row + start + at, mask=start + at < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / n
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        v = tl.load(x + row + start + at, mask=start + at < n, other=0.0).to(tl.float32)
        d = tl.where(start + at < n, v - mean, 0.0)
        square += d * d
    rstd = 1.0 / tl.sqrt(tl.sum(square, 0) / n + 1e-5)
"""
_CHUNK_MERGE = """
    mean = tl.zeros((), tl.float32)
    m2 = tl.zeros((), tl.float32)
    for start in range(0, n, BLOCK):
        inside = start + at < n
        v = tl.load(x + row + start + at, mask=inside, other=0.0).to(tl.float32)
        k = tl.minimum(BLOCK, n - start)
        part = tl.sum(v, 0) / k
        d = tl.where(inside, v - part, 0.0)
        gap = part - mean
        m2 += tl.sum(d * d, 0) + gap * gap * (start * (k / (start + k)))
        mean += gap * (k / (start + k))
    rstd = 1.0 / tl.sqrt(m2 / n + 1e-5)
"""
_NORM_INIT = """
def __init__(self, hidden, dtype="float32"):
    super().__init__()
    self.norm = nn.LayerNorm(hidden, dtype=getattr(torch, dtype))
"""
_NORM_FORWARD = SAME.replace(
    "    n = x.shape[-1]\n",
    """    n = self.norm.weight.numel()
    if x.shape[-1] != n:
        raise ValueError(f"rows of {n} are needed")
""",
)
_RESIDUAL = """
@triton.jit
def kernel(x, res, w, out, n, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        i = start + at
        h = tl.load(x + row + i, mask=i < n, other=0.0).to(tl.float32)
        h += tl.load(res + row + i, mask=i < n, other=0.0).to(tl.float32)
        KEEP
        square += h * h
    scale = 1.0 / tl.sqrt(tl.sum(square, 0) / n + eps)
    for start in range(0, n, BLOCK):
        i = start + at
        h = AGAIN
        g = tl.load(w + i, mask=i < n, other=0.0).to(tl.float32)
        tl.store(out + row + i, h * scale * g, mask=i < n)
"""
_RECOMPUTED = _RESIDUAL.replace("        KEEP\n", "").replace(
    "AGAIN",
    "tl.load(x + row + i, mask=i < n, other=0.0).to(tl.float32)\n"
    "        h += tl.load(res + row + i, mask=i < n, other=0.0).to(tl.float32)",
)
_RESIDUAL_INIT = """
def __init__(self, hidden, eps=1e-6, dtype="float32"):
    super().__init__()
    self.weight = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
    self.eps = eps
"""
_RESIDUAL_FORWARD = """
def forward(self, x, residual):
    x, residual, n = x.contiguous(), residual.contiguous(), self.weight.numel()
    if x.shape != residual.shape or x.shape[-1] != n:
        raise ValueError(f"two tensors with rows of {n} are needed")
    out = torch.empty_like(x)
    if x.numel():
        kernel[(x.numel() // n,)](x, residual, self.weight, out, n, self.eps, BLOCK=256)
    return out
"""

ENTRIES = (
    *(
        triton_candidate(
            f"layernorm-{name}",
            title,
            problem,
            _NORM.replace("STATISTICS\n", statistics.strip("\n") + "\n"),
            _NORM_FORWARD.replace("LAUNCH", "kernel[(rows,)](x, self.norm.weight, self.norm.bias, out, n, BLOCK=128)"),
            init=_NORM_INIT,
        )
        for name, title, problem, statistics in (
            ("two-pass", "Two passes over blocks", "small_layernorm", _TWO_PASS),
            ("merged", "Blocks merged by Chan's formula", "small_layernorm", _CHUNK_MERGE),
            ("half", "bfloat16 and float16 storage, float32 arithmetic", "half_layernorm", _TWO_PASS),
        )
    ),
    triton_candidate(
        "residual-recomputed",
        "The sum formed twice; half storage",
        "half_rmsnorm_residual",
        _RECOMPUTED,
        _RESIDUAL_FORWARD,
        init=_RESIDUAL_INIT,
    ),
    triton_candidate(
        "residual-kept",
        "The sum waits in the float32 output",
        "small_rmsnorm_residual",
        _RESIDUAL.replace("KEEP", "tl.store(out + row + i, h, mask=i < n)").replace(
            "AGAIN", "tl.load(out + row + i, mask=i < n, other=0.0)"
        ),
        _RESIDUAL_FORWARD,
        init=_RESIDUAL_INIT,
    ),
)
"""Honest Triton norms."""
