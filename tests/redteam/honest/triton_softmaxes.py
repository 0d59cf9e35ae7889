"""Triton softmaxes and losses: one block, many blocks, lanes, several rows, persistent programs."""

from __future__ import annotations

from tests.redteam.honest.triton_building import LOOP, SAME, WHOLE, triton_candidate

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

ENTRIES = (
    triton_candidate(
        "softmax-whole", "A row in one block", "half_softmax", _SOFTMAX_WHOLE, SAME.replace("LAUNCH", WHOLE)
    ),
    triton_candidate(
        "softmax-online",
        "Online over blocks of 128, careful with -inf",
        "small_softmax",
        _SOFTMAX_ONLINE,
        SAME.replace("LAUNCH", LOOP),
    ),
    triton_candidate(
        "softmax-lanes", "A maximum and a sum for each lane", "softmax", _SOFTMAX_LANES, SAME.replace("LAUNCH", LOOP)
    ),
    triton_candidate(
        "softmax-four-rows",
        "Four rows in one program",
        "softmax",
        _SOFTMAX_ROWS,
        SAME.replace(
            "LAUNCH", "kernel[(triton.cdiv(rows, 4),)](x, out, rows, n, ROWS=4, BLOCK=triton.next_power_of_2(n))"
        ),
    ),
    triton_candidate(
        "softmax-persistent",
        "Sixteen programs walk over all rows; powers of two",
        "softmax",
        _PERSISTENT,
        SAME.replace("LAUNCH", "kernel[(min(rows, 16),)](x, out, rows, n, BLOCK=triton.next_power_of_2(n))"),
    ),
    triton_candidate(
        "loss",
        "Row losses, then their mean",
        "half_cross_entropy",
        _LOSS + _LOSS_MEAN,
        _LOSS_FORWARD.replace("WORK", _FRESH),
    ),
    triton_candidate(
        "loss-workspace",
        "Row losses in a workspace that the module keeps",
        "small_cross_entropy",
        _LOSS + _LOSS_MEAN,
        _LOSS_FORWARD.replace("WORK", "self.workspace(rows, logits.device)"),
        init=_KEPT_INIT,
    ),
)
"""Honest Triton softmaxes and losses."""
