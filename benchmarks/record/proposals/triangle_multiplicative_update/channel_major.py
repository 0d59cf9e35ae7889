"""Three fused kernels: LayerNorm with all five projections, gates and mask, which leaves left and right channel-major
in bf16; one tensor-core product per channel; LayerNorm, gate and projection of the result. A small one packs weights.

Bound by memory: 12 + 8 bytes per pair and input channel of traffic at hidden 128, and by tensor cores where N = 1024.
Factors are bf16: products of small activations and closed gates lie below what fp16 resolves (half of a column was lost
at activations of 1e-4), and tensor cores take both at the same speed. Sums over the third node are float32.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {
    "ROWS": [64, 128],
    "STAGES": [1, 2, 3],
    "WIDE_ROWS": [64, 128],
    "WIDE_HALF": [32, 64],
    "PAIR_COLS": [128, 256],
    "PAIR_STAGES": [3, 4],
    "OUT_ROWS": [32, 64],
    "OUT_COLS": [64, 128],
    "OUT_STAGES": [1, 2],
}
ROWS = 128
STAGES = 3
WIDE_ROWS = 64
WIDE_HALF = 64
PAIR_COLS = 128
PAIR_STAGES = 3
OUT_ROWS = 64
OUT_COLS = 128
OUT_STAGES = 1


@triton.jit
def pack(
    left, left_gate, right, right_gate, out_gate, scale, shift, out, packed, bias, packed_out,
    C, CT, D, DP, NT, COLS: tl.constexpr, CP: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """Weights in fp16 with LayerNorm's scale, its shift as a bias; projection and gate in neighbouring columns."""
    n = tl.program_id(0) * COLS + tl.arange(0, COLS)
    c = tl.arange(0, CP)
    side, rest = n // (2 * DP), n % (2 * DP)
    paired = side < 2
    d = tl.where(paired, rest // 2, rest)
    gate = rest % 2 == 1
    real = (d < D)[:, None] & (c < C)[None, :]
    at = d[:, None] * C + c[None, :]
    is_left, is_right = paired & (side == 0), paired & (side == 1)
    w = tl.load(left + at, mask=real & (is_left & ~gate)[:, None], other=0.0)
    w += tl.load(left_gate + at, mask=real & (is_left & gate)[:, None], other=0.0)
    w += tl.load(right + at, mask=real & (is_right & ~gate)[:, None], other=0.0)
    w += tl.load(right_gate + at, mask=real & (is_right & gate)[:, None], other=0.0)
    w += tl.load(out_gate + at, mask=real & (side == 2)[:, None], other=0.0)
    gamma = tl.load(scale + c, mask=c < C, other=0.0)
    beta = tl.load(shift + c, mask=c < C, other=0.0)
    tl.store(bias + n, tl.sum(w * beta[None, :], 1), mask=n < NT)
    tl.store(
        packed + c[None, :] * NT + n[:, None],
        (w * gamma[None, :]).to(tl.bfloat16),
        mask=(n < NT)[:, None] & (c < CT)[None, :],
    )
    for start in range(tl.program_id(0) * OUT, C * D, tl.num_programs(0) * OUT):
        i = start + tl.arange(0, OUT)
        tl.store(packed_out + i, tl.load(out + i, mask=i < C * D).to(tl.bfloat16), mask=i < C * D)


@triton.jit
def centred(x, row, inside, mean, scale, C, J: tl.constexpr, CHUNK: tl.constexpr):
    c = J * CHUNK + tl.arange(0, CHUNK)
    real = inside[:, None] & (c < C)[None, :]
    v = tl.load(x + row[:, None] * C + c[None, :], mask=real, other=0.0, eviction_policy="evict_first")
    return tl.where(real, (v - mean[:, None]) * scale[:, None], 0.0).to(tl.bfloat16)


@triton.jit
def product(a0, a1, a2, a3, w, NT, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    acc = tl.dot(a0, tl.load(w))
    if CHUNKS > 1:
        acc = tl.dot(a1, tl.load(w + CHUNK * NT), acc)
    if CHUNKS > 2:
        acc = tl.dot(a2, tl.load(w + 2 * CHUNK * NT), acc)
    if CHUNKS > 3:
        acc = tl.dot(a3, tl.load(w + 3 * CHUNK * NT), acc)
    return acc


@triton.jit
def project(
    x, mask, packed, bias, both, gates, NN, C, D, DP, NT, eps,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, BD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """LayerNorm of ROWS pairs and everything that is a product with them."""
    b = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = m < NN
    row = b * NN + m
    c = tl.arange(0, CHUNK)
    # Chan's formula over the chunks: each has a mean and a sum of squares around it, and no sum cancels.
    mean = tl.zeros((ROWS,), tl.float32)
    square = tl.zeros((ROWS,), tl.float32)
    for j in tl.static_range(CHUNKS):
        real = inside[:, None] & (j * CHUNK + c < C)[None, :]
        v = tl.load(x + row[:, None] * C + (j * CHUNK + c)[None, :], mask=real, other=0.0)
        count = tl.minimum(C - j * CHUNK, CHUNK)
        part = tl.sum(v, 1) / count
        v = tl.where(real, v - part[:, None], 0.0)
        gap = part - mean
        share = count / (j * CHUNK + count)
        square += tl.sum(v * v, 1) + gap * gap * (j * CHUNK * share)
        mean += gap * share
        if CHUNKS == 1:
            kept = v
    scale = 1.0 / tl.sqrt(square / C + eps)
    if CHUNKS == 1:
        a0 = (kept * scale[:, None]).to(tl.bfloat16)
        a1, a2, a3 = a0, a0, a0
    else:
        a0 = centred(x, row, inside, mean, scale, C, 0, CHUNK)
        a1 = centred(x, row, inside, mean, scale, C, 1, CHUNK)
        a2, a3 = a1, a1
        if CHUNKS > 2:
            a2 = centred(x, row, inside, mean, scale, C, 2, CHUNK)
        if CHUNKS > 3:
            a3 = centred(x, row, inside, mean, scale, C, 3, CHUNK)
    BN: tl.constexpr = 2 * BD
    n = tl.arange(0, BN)
    w = packed + c[:, None] * NT + n[None, :]
    keep = tl.load(mask + row, mask=inside, other=0.0)
    sides = DP // BD
    channels = tl.num_programs(1).to(tl.int64) * D
    for t in tl.range(0, 2 * sides, num_stages=STAGES):
        acc = product(a0, a1, a2, a3, w + t * BN, NT, CHUNKS, CHUNK)
        acc += tl.load(bias + t * BN + n)[None, :]
        value, gate = tl.split(tl.reshape(acc, (ROWS, BD, 2)))
        value = value * keep[:, None] * tl.sigmoid(gate)
        d = (t % sides) * BD + tl.arange(0, BD)
        at = ((t // sides) * channels + b * D + d)[None, :] * NN + m[:, None]
        tl.store(both + at, value.to(tl.bfloat16), mask=inside[:, None] & (d < D)[None, :])
    for t in tl.range(0, DP // BN, num_stages=STAGES):
        acc = product(a0, a1, a2, a3, w + 4 * DP + t * BN, NT, CHUNKS, CHUNK)
        acc += tl.load(bias + 4 * DP + t * BN + n)[None, :]
        d = t * BN + n
        tl.store(
            gates + row[:, None] * D + d[None, :], tl.sigmoid(acc).to(tl.bfloat16),
            mask=inside[:, None] & (d < D)[None, :],
        )  # fmt: skip


@triton.jit
def pair_products(
    left, right, out, N, TILE: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """out[i, j] = sum over k of left[i, k] * right[j, k], for one channel."""
    channel = tl.program_id(1).to(tl.int64) * N * N
    tiles = tl.cdiv(N, COLS)
    i = (tl.program_id(0) // tiles) * TILE + tl.arange(0, TILE)
    j = (tl.program_id(0) % tiles) * COLS + tl.arange(0, COLS)
    k = tl.arange(0, DEPTH)
    a = left + channel + i[:, None] * N + k[None, :]
    b = right + channel + j[None, :] * N + k[:, None]
    acc = tl.zeros((TILE, COLS), tl.float32)
    for start in range(0, N, DEPTH):
        if EVEN:
            acc = tl.dot(tl.load(a + start), tl.load(b + start), acc)
        else:
            real = k < N - start
            x = tl.load(a + start, mask=(i < N)[:, None] & real[None, :], other=0.0)
            acc = tl.dot(x, tl.load(b + start, mask=(j < N)[None, :] & real[:, None], other=0.0), acc)
    at = out + channel + i[:, None] * N + j[None, :]
    if EVEN:
        tl.store(at, acc.to(tl.bfloat16))
    else:
        tl.store(at, acc.to(tl.bfloat16), mask=(i < N)[:, None] & (j < N)[None, :])


@triton.jit
def finish(
    pairs, gates, scale, shift, packed_out, out, NN, C, D, eps,
    ROWS: tl.constexpr, BD: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """LayerNorm over channels, the gate, and the output's projection, for ROWS pairs."""
    b = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BD)
    inside = m < NN
    real = inside[:, None] & (d < D)[None, :]
    v = tl.load(pairs + (b * D + d)[None, :] * NN + m[:, None], mask=real, other=0.0).to(tl.float32)
    row = b * NN + m
    gate = tl.load(gates + row[:, None] * D + d[None, :], mask=real, other=0.0).to(tl.float32)
    v = tl.where(real, v - (tl.sum(v, 1) / D)[:, None], 0.0)
    v *= (1.0 / tl.sqrt(tl.sum(v * v, 1) / D + eps))[:, None]
    gamma = tl.load(scale + d, mask=d < D, other=0.0)
    beta = tl.load(shift + d, mask=d < D, other=0.0)
    a = ((v * gamma[None, :] + beta[None, :]) * gate).to(tl.bfloat16)
    c = tl.arange(0, BC)
    for start in range(0, C, BC):
        at = start + c
        w = tl.load(packed_out + at[None, :] * D + d[:, None], mask=(at < C)[None, :] & (d < D)[:, None], other=0.0)
        tl.store(
            out + row[:, None] * C + at[None, :], tl.dot(a, w), mask=inside[:, None] & (at < C)[None, :]
        )  # fmt: skip


def update(model, x, mask):
    x, mask = x.contiguous(), mask.contiguous()
    batch, nodes, other, width = x.shape
    hidden = model.left.weight.shape[0]
    if nodes != other or mask.shape != x.shape[:3] or x.dtype != torch.float32 or mask.dtype != torch.float32:
        raise ValueError("a float32 tensor [batch, nodes, nodes, channels] and its mask are needed")
    if hidden > 512 or width > 4096:
        raise ValueError("at most 512 hidden channels and 4096 input channels")
    out = torch.empty_like(x)
    if not x.numel():
        return out
    chunk = min(128, max(16, triton.next_power_of_2(width)))
    if triton.cdiv(width, chunk) > 4:
        chunk = max(16, triton.next_power_of_2(triton.cdiv(width, 4)))
    chunks = triton.cdiv(width, chunk)
    # Three chunks of inputs share 227 KB with weights: 128 columns of them in one stage, or 64 in two.
    half = min(32 if chunks == 1 else WIDE_HALF, max(16, triton.next_power_of_2(hidden)))
    padded = triton.cdiv(hidden, 2 * half) * 2 * half
    columns, square = 5 * padded, nodes * nodes
    rows = ROWS if chunks == 1 else WIDE_ROWS
    new = {"device": x.device}
    packed = torch.empty((chunks * chunk, columns), dtype=torch.bfloat16, **new)
    bias = torch.empty((columns,), dtype=torch.float32, **new)
    packed_out = torch.empty((width, hidden), dtype=torch.bfloat16, **new)
    both = torch.empty((2, batch * hidden, square), dtype=torch.bfloat16, **new)
    gates = torch.empty((batch * square, hidden), dtype=torch.bfloat16, **new)
    pairs = torch.empty((batch * hidden, square), dtype=torch.bfloat16, **new)
    weights = (model.left, model.left_gate, model.right, model.right_gate, model.out_gate)
    weights = [each.weight.contiguous() for each in weights]
    pack[(triton.cdiv(columns, 8),)](
        *weights, model.norm.weight, model.norm.bias, model.out.weight.contiguous(), packed, bias, packed_out,
        width, chunks * chunk, hidden, padded, columns, COLS=8, CP=triton.next_power_of_2(chunks * chunk), OUT=1024,
    )  # fmt: skip
    project[(triton.cdiv(square, rows), batch)](
        x, mask, packed, bias, both, gates, square, width, hidden, padded, columns, model.norm.eps,
        CHUNKS=chunks, CHUNK=chunk, ROWS=rows, BD=half,
        STAGES=STAGES if chunks == 1 else 1, num_warps=4 if rows == 64 else 8,
    )  # fmt: skip
    tile = min(128, max(16, triton.next_power_of_2(nodes)))
    cols = PAIR_COLS if nodes % PAIR_COLS == 0 else tile
    even = nodes % tile == 0 and nodes % 64 == 0
    pair_products[(triton.cdiv(nodes, tile) * triton.cdiv(nodes, cols), batch * hidden)](
        both[0], both[1], pairs, nodes, TILE=tile, COLS=cols, DEPTH=64, EVEN=even,
        num_warps=8 if cols == 256 else 4, num_stages=PAIR_STAGES,
    )  # fmt: skip
    finish[(triton.cdiv(square, OUT_ROWS), batch)](
        pairs, gates, model.out_norm.weight, model.out_norm.bias, packed_out, out, square, width, hidden,
        model.out_norm.eps, ROWS=OUT_ROWS, BD=max(16, triton.next_power_of_2(hidden)), BC=OUT_COLS,
        num_warps=4, num_stages=OUT_STAGES,
    )  # fmt: skip
    return out


class ModelNew(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.left = nn.Linear(dim, hidden, bias=False)
        self.right = nn.Linear(dim, hidden, bias=False)
        self.left_gate = nn.Linear(dim, hidden, bias=False)
        self.right_gate = nn.Linear(dim, hidden, bias=False)
        self.out_gate = nn.Linear(dim, hidden, bias=False)
        self.out_norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x, mask):
        return update(self, x, mask)
