"""Triton row kernels: softmax, norms, sums, losses and scans, in one block or many, with masks for every tail."""

from __future__ import annotations

from tests.redteam.entry import Entry
from tests.redteam.honest.building import entry, method

_MODULE = '''import torch
import triton
import triton.language as tl
from torch import nn

HEAD
KERNELS


class ModelNew(nn.Module):
INIT
FORWARD
'''
SAME = """
def forward(self, x):
    x = x.contiguous()
    out = torch.empty_like(x)
    n = x.shape[-1]
    rows = x.numel() // max(1, n)
    if rows:
        LAUNCH
    return out
"""
REDUCED = SAME.replace("torch.empty_like(x)", "torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)")
_WHOLE = "kernel[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n))"
_LOOP = "kernel[(rows,)](x, out, n, BLOCK=128)"


def triton_candidate(
    id: str, title: str, problem: str, kernels: str, forward: str, *, init: str = "", head: str = ""
) -> Entry:
    """A Triton candidate; it also runs in the interpreter, where there is no GPU."""
    holes = {
        "HEAD": head.strip(),
        "KERNELS": kernels.strip(),
        "INIT": method(init).rstrip() + "\n" if init else "",
        "FORWARD": method(forward),
    }
    source = _MODULE
    for hole, text in holes.items():
        source = source.replace(hole, text, 1)
    return entry(f"triton-{id}", title, problem, source, language="triton", needs="gpu")


_SOFTMAX_WHOLE = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    v = tl.load(x + row + at, mask=at < n, other=float("-inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row + at, e / tl.sum(e, 0), mask=at < n)
"""
_SOFTMAX_ONLINE = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, n, BLOCK):
        v = tl.load(x + row + start + at, mask=start + at < n, other=float("-inf")).to(tl.float32)
        now = tl.maximum(top, tl.max(v, 0))
        base = tl.where(now == float("-inf"), 0.0, now)
        total = total * tl.exp(tl.where(top == float("-inf"), base, top) - base) + tl.sum(tl.exp(v - base), 0)
        top = now
    for start in range(0, n, BLOCK):
        v = tl.load(x + row + start + at, mask=start + at < n, other=0.0).to(tl.float32)
        tl.store(out + row + start + at, tl.exp(v - top) / total, mask=start + at < n)
"""
_SOFTMAX_LANES = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, n, BLOCK):
        v = tl.load(x + row + start + at, mask=start + at < n, other=float("-inf")).to(tl.float32)
        top = tl.where(v > top, v, top)
    m = tl.max(top, 0)
    total = tl.zeros((BLOCK,), tl.float32)  # one sum for each lane until the end
    for start in range(0, n, BLOCK):
        v = tl.load(x + row + start + at, mask=start + at < n, other=float("-inf")).to(tl.float32)
        total += tl.exp(v - m)
    s = tl.sum(total, 0)
    for start in range(0, n, BLOCK):
        v = tl.load(x + row + start + at, mask=start + at < n, other=0.0).to(tl.float32)
        tl.store(out + row + start + at, tl.exp(v - m) / s, mask=start + at < n)
"""
_SOFTMAX_ROWS = """
@triton.jit
def kernel(x, out, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    inside = (r < rows) & (c < n)
    v = tl.load(x + r.to(tl.int64) * n + c, mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.max(v, 1)[:, None]
    e = tl.exp(v - top)
    tl.store(out + r.to(tl.int64) * n + c, e / tl.sum(e, 1)[:, None], mask=inside)
"""
_PERSISTENT = """
@triton.jit
def kernel(x, out, rows, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for r in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.full((), 1, tl.int64) * r * n
        v = tl.load(x + row + at, mask=at < n, other=float("-inf")).to(tl.float32)
        e = tl.exp2((v - tl.max(v, 0)) * 1.4426950408889634)
        tl.store(out + row + at, e / tl.sum(e, 0), mask=at < n)
"""
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
_NORM_FORWARD = SAME.replace("    n = x.shape[-1]\n", """    n = self.norm.weight.numel()
    if x.shape[-1] != n:
        raise ValueError(f"rows of {n} are needed")
""")
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
_SUM = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x + row + start + at, mask=start + at < n, other=0.0).to(tl.float32)
    tl.store(out + tl.program_id(0), tl.sum(total, 0))
"""
_SUM_ATOMIC = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0).to(tl.int64) * n + at, mask=at < n, other=0.0)
    tl.atomic_add(out + tl.program_id(0), tl.sum(v, 0))  # float32, in any order
"""
_SUM_STAGES = """
@triton.jit
def partials(x, part, n, parts, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0).to(tl.int64) * n + at, mask=at < n, other=0.0)
    tl.store(part + tl.program_id(0) * parts + tl.program_id(1), tl.sum(v, 0))


@triton.jit
def finish(part, out, parts, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(part + tl.program_id(0) * parts + at, mask=at < parts, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(v, 0))
"""
_LOSS = """
@triton.jit
def row_loss(logits, target, loss, n, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    row = r.to(tl.int64) * n
    v = tl.load(logits + row + at, mask=at < n, other=float("-inf")).to(tl.float32)
    top = tl.max(v, 0)
    picked = tl.load(logits + row + tl.load(target + r)).to(tl.float32)
    tl.store(loss + r, tl.log(tl.sum(tl.exp(v - top), 0)) - (picked - top))
"""
_LOSS_MEAN = """

@triton.jit
def mean(loss, out, rows, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows, BLOCK):
        total += tl.load(loss + start + at, mask=start + at < rows, other=0.0)
    tl.store(out, (tl.sum(total, 0) / rows).to(out.dtype.element_ty))
"""
_LOSS_FORWARD = """
def forward(self, logits, target):
    logits, target = logits.contiguous(), target.contiguous()
    rows, n = logits.shape
    out = torch.empty((), dtype=logits.dtype, device=logits.device)
    loss = WORK
    row_loss[(rows,)](logits, target, loss, n, BLOCK=triton.next_power_of_2(n))
    mean[(1,)](loss, out, rows, BLOCK=64)
    return out
"""
_FRESH = "torch.empty(rows, dtype=torch.float32, device=logits.device)"
_KEPT_INIT = """
def __init__(self):
    super().__init__()
    self.losses = {}  # a workspace for each number of rows, filled anew in every call

def workspace(self, rows, device):
    if (rows, device) not in self.losses:
        self.losses[rows, device] = torch.empty(rows, dtype=torch.float32, device=device)
    return self.losses[rows, device]
"""
_CUMSUM = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    carry = tl.zeros((), tl.float32)
    for start in range(0, n, BLOCK):
        v = tl.load(x + row + start + at, mask=start + at < n, other=0.0).to(tl.float32)
        tl.store(out + row + start + at, tl.cumsum(v, 0) + carry, mask=start + at < n)
        carry += tl.sum(v, 0)
"""
_CUMSUM_SCAN = """
@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    v = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(out + row + at, tl.associative_scan(v, 0, plus), mask=at < n)
"""
_SUM_FORWARD = REDUCED.replace("LAUNCH", "kernel[(rows,)](x, out, n, BLOCK=BLOCK)")
_TUNED = '''TUNABLES = {"BLOCK": [128, 256, 512]}
BLOCK = 256'''
_AUTOTUNED = _SUM.replace(
    "@triton.jit",
    '@triton.autotune(configs=[triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in ((256, 4), (1024, 8))],\n'
    '                 key=["n"])\n@triton.jit',
)

ENTRIES = (
    triton_candidate("softmax-whole", "A row in one block", "half_softmax", _SOFTMAX_WHOLE,
                     SAME.replace("LAUNCH", _WHOLE)),
    triton_candidate("softmax-online", "Online over blocks of 128, careful with -inf", "small_softmax", _SOFTMAX_ONLINE,
                     SAME.replace("LAUNCH", _LOOP)),
    triton_candidate("softmax-lanes", "A maximum and a sum for each lane", "softmax", _SOFTMAX_LANES,
                     SAME.replace("LAUNCH", _LOOP)),
    triton_candidate("softmax-four-rows", "Four rows in one program", "softmax", _SOFTMAX_ROWS, SAME.replace(
        "LAUNCH", "kernel[(triton.cdiv(rows, 4),)](x, out, rows, n, ROWS=4, BLOCK=triton.next_power_of_2(n))")),
    triton_candidate("softmax-persistent", "Sixteen programs walk over all rows; powers of two", "softmax", _PERSISTENT,
                     SAME.replace("LAUNCH", "kernel[(min(rows, 16),)](x, out, rows, n, BLOCK=triton.next_power_of_2(n))")),
    *(
        triton_candidate(f"layernorm-{name}", title, problem, _NORM.replace("STATISTICS\n", statistics.strip("\n") + "\n"),
                         _NORM_FORWARD.replace("LAUNCH",
                                               "kernel[(rows,)](x, self.norm.weight, self.norm.bias, out, n, BLOCK=128)"),
                         init=_NORM_INIT)
        for name, title, problem, statistics in (
            ("two-pass", "Two passes over blocks", "small_layernorm", _TWO_PASS),
            ("merged", "Blocks merged by Chan's formula", "small_layernorm", _CHUNK_MERGE),
            ("half", "bfloat16 and float16 storage, float32 arithmetic", "half_layernorm", _TWO_PASS),
        )
    ),
    triton_candidate("residual-recomputed", "The sum formed twice; half storage", "half_residual_rmsnorm", _RECOMPUTED,
                     _RESIDUAL_FORWARD, init=_RESIDUAL_INIT),
    triton_candidate("residual-kept", "The sum waits in the float32 output", "small_residual_rmsnorm",
                     _RESIDUAL.replace("KEEP", "tl.store(out + row + i, h, mask=i < n)")
                     .replace("AGAIN", "tl.load(out + row + i, mask=i < n, other=0.0)"), _RESIDUAL_FORWARD,
                     init=_RESIDUAL_INIT),
    triton_candidate("sum-blocks", "Lanes over blocks of a tunable size", "row_sum", _SUM, _SUM_FORWARD, head=_TUNED),
    triton_candidate("sum-autotuned", "triton.autotune among correct configurations", "row_sum", _AUTOTUNED,
                     REDUCED.replace("LAUNCH", "kernel[(rows,)](x, out, n)")),
    triton_candidate("sum-atomic", "Float32 atomics on a zeroed output", "row_sum", _SUM_ATOMIC,
                     REDUCED.replace("torch.empty(", "torch.zeros(").replace(
                         "LAUNCH", "kernel[(rows, triton.cdiv(n, 512))](x, out, n, BLOCK=512)")),
    triton_candidate("sum-two-stages", "Partials in a workspace, then their sum: deterministic", "row_sum", _SUM_STAGES,
                     REDUCED.replace("LAUNCH", """parts = triton.cdiv(n, 512)
        part = torch.empty(rows * parts, dtype=torch.float32, device=x.device)
        partials[(rows, parts)](x, part, n, parts, BLOCK=512)
        finish[(rows,)](part, out, parts, BLOCK=triton.next_power_of_2(parts))""")),
    triton_candidate("sum-fp16", "float16 storage, float32 sum", "row_sum_fp16", _SUM, _SUM_FORWARD, head=_TUNED),
    triton_candidate("loss", "Row losses, then their mean", "half_cross_entropy", _LOSS + _LOSS_MEAN,
                     _LOSS_FORWARD.replace("WORK", _FRESH)),
    triton_candidate("loss-workspace", "Row losses in a workspace that the module keeps", "small_cross_entropy",
                     _LOSS + _LOSS_MEAN, _LOSS_FORWARD.replace("WORK", "self.workspace(rows, logits.device)"),
                     init=_KEPT_INIT),
    triton_candidate("cumsum-carry", "Blocks with a carry", "cumsum", _CUMSUM, SAME.replace("LAUNCH", _LOOP)),
    triton_candidate("cumsum-scan", "associative_scan over a whole row", "cumsum", _CUMSUM_SCAN,
                     SAME.replace("LAUNCH", _WHOLE)),
)  # fmt: skip
"""Honest Triton row kernels."""
