"""Triton tiles: products, split K, attention, pointwise kernels, scatters, gradients, and a CUDA graph."""

from __future__ import annotations

from tests.redteam.honest.contracts import _THRESHOLD_INIT
from tests.redteam.honest.norms import RMS_INIT
from tests.redteam.honest.triton_rows import SAME, triton_candidate

_MATMUL = """
@triton.jit
def kernel(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    p = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        u = tl.load(a + i[:, None] * k + (start + p)[None, :], mask=(i[:, None] < m) & ((start + p)[None, :] < k), other=0.0)
        v = tl.load(b + (start + p)[:, None] * n + j[None, :], mask=((start + p)[:, None] < k) & (j[None, :] < n), other=0.0)
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
_FLASH = """
@triton.jit
def kernel(q, k, v, out, heads, kv_heads, length, keys, scale, CAUSAL: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr):
    z, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    source = (z * kv_heads + h // (heads // kv_heads)).to(tl.int64) * keys * D
    base = tl.program_id(1).to(tl.int64) * length * D
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    query = tl.load(q + base + i[:, None] * D + d[None, :], mask=i[:, None] < length, other=0.0)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = tl.minimum(keys, (tl.program_id(0) + 1) * BM) if CAUSAL else keys
    for start in range(0, end, BN):
        j = start + tl.arange(0, BN)
        key = tl.load(k + source + j[None, :] * D + d[:, None], mask=j[None, :] < keys, other=0.0)
        s = tl.dot(query, key, input_precision="ieee") * scale
        s = tl.where((j[None, :] < keys) & ((j[None, :] <= i[:, None]) | (not CAUSAL)), s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        base_of = tl.where(now == float("-inf"), 0.0, now)
        keep = tl.where(top == float("-inf"), 1.0, tl.exp(top - base_of))
        p = tl.exp(s - base_of[:, None])
        total = total * keep + tl.sum(p, 1)
        value = tl.load(v + source + j[:, None] * D + d[None, :], mask=j[:, None] < keys, other=0.0)
        acc = tl.dot(p.to(value.dtype), value, acc * keep[:, None], input_precision="ieee")
        top = now
    tl.store(out + base + i[:, None] * D + d[None, :], (acc / total[:, None]).to(out.dtype.element_ty),
             mask=i[:, None] < length)
"""
_FLASH_FORWARD = """
def forward(self, q, k, v):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    heads, kv_heads, length, dim = q.shape[-3], k.shape[-3], q.shape[-2], q.shape[-1]
    if dim not in (16, 32, 64, 128) or heads % kv_heads or k.shape != v.shape:
        raise ValueError(f"heads of 16, 32, 64 or 128 are needed, not of {dim}")
    out = torch.empty_like(q)
    grid = (triton.cdiv(length, 32), q.numel() // max(1, length * dim))
    kernel[grid](q, k, v, out, heads, kv_heads, length, k.shape[-2], dim**-0.5, CAUSAL=FLAG, D=dim, BM=32, BN=16)
    return out
"""
_SWIGLU = """
@triton.jit
def kernel(a, b, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(a + at, mask=at < n).to(tl.float32)
    v = tl.load(b + at, mask=at < n).to(tl.float32)
    tl.store(out + at, ONE, mask=at < n)
"""
_SWIGLU_FORWARD = """
def forward(self, a, b):
    a, b = a.contiguous(), b.contiguous()
    if a.shape != b.shape:
        raise ValueError("two tensors of one shape are needed")
    out = torch.empty_like(a)
    if a.numel():
        kernel[(triton.cdiv(a.numel(), BLOCK),)](a, b, out, a.numel(), BLOCK=BLOCK)
    return out
"""
_BIAS_GELU = """
@triton.jit
def kernel(x, res, bias, scale, out, n, total, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    h = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + tl.load(bias + at % n, mask=inside, other=0.0).to(tl.float32)
    h = 0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))
    h = h * tl.load(scale + at % n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, h + tl.load(res + at, mask=inside, other=0.0).to(tl.float32), mask=inside)
"""
_BIAS_GELU_INIT = """
def __init__(self, hidden, dtype="float32"):
    super().__init__()
    self.bias = nn.Parameter(torch.zeros(hidden, dtype=getattr(torch, dtype)))
    self.scale = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
"""
_BIAS_GELU_FORWARD = """
def forward(self, x, residual):
    x, residual, n = x.contiguous(), residual.contiguous(), self.bias.numel()
    if x.shape != residual.shape or x.shape[-1] != n:
        raise ValueError(f"two tensors with rows of {n} are needed")
    out = torch.empty_like(x)
    if x.numel():
        kernel[(triton.cdiv(x.numel(), 1024),)](x, residual, self.bias, self.scale, out, n, x.numel(), BLOCK=1024)
    return out
"""
_SCATTER = """
@triton.jit
def kernel(ids, grad, out, tokens, dim, BLOCK: tl.constexpr):
    t = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    g = tl.load(grad + t * dim + d, mask=d < dim, other=0.0)
    tl.atomic_add(out + tl.load(ids + t) * dim + d, g, mask=d < dim)  # float32
"""
_SCATTER_OWNED = """
@triton.jit
def kernel(order, start, grad, out, dim, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for at in range(tl.load(start + row), tl.load(start + row + 1)):
        total += tl.load(grad + tl.load(order + at) * dim + d, mask=d < dim, other=0.0)
    tl.store(out + row * dim + d, total, mask=d < dim)
"""
_SCATTER_INIT = """
def __init__(self, vocab):
    super().__init__()
    self.vocab = vocab
"""
_SCATTER_FORWARD = """
def forward(self, ids, grad):
    ids, grad = ids.contiguous(), grad.contiguous()
    out = torch.zeros(self.vocab, grad.shape[1], device=grad.device)
    kernel[(ids.numel(),)](ids, grad, out, ids.numel(), grad.shape[1], BLOCK=triton.next_power_of_2(grad.shape[1]))
    return out
"""
_OWNED_FORWARD = """
def forward(self, ids, grad):
    ids, grad = ids.contiguous(), grad.contiguous()
    ordered, order = ids.sort(stable=True)
    start = torch.searchsorted(ordered, torch.arange(self.vocab + 1, device=ids.device))
    out = torch.empty(self.vocab, grad.shape[1], device=grad.device)
    kernel[(self.vocab,)](order, start, grad, out, grad.shape[1], BLOCK=triton.next_power_of_2(grad.shape[1]))
    return out
"""
_THRESHOLD = """
@triton.jit
def kernel(x, limit, over, out, count, n, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + r * n + at, mask=at < n, other=float("-inf"))
    t = tl.load(limit)
    above = v > t
    tl.store(over + r * n + at, above, mask=at < n)
    tl.store(out + r * n + at, tl.where(above, t, tl.where(t == t, v, t)), mask=at < n)
    tl.store(count + r, tl.sum((above & (at < n)).to(tl.int64), 0))
"""
_THRESHOLD_FORWARD = """
def forward(self, x):
    x, n = x.contiguous(), x.shape[-1]
    over, out = torch.empty(x.shape, dtype=torch.bool, device=x.device), torch.empty_like(x)
    count = torch.empty(x.shape[:-1], dtype=torch.int64, device=x.device)
    kernel[(count.numel(),)](x, self.limit, over, out, count, n, BLOCK=triton.next_power_of_2(n))
    return over, out, count
"""
_RMS_TRAIN = """
@triton.jit
def forward_kernel(x, w, out, rstd, n, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + r * n + at, mask=at < n, other=0.0)
    s = 1.0 / tl.sqrt(tl.sum(v * v, 0) / n + 1e-6)
    tl.store(rstd + r, s)
    tl.store(out + r * n + at, v * s * tl.load(w + at, mask=at < n, other=0.0), mask=at < n)


@triton.jit
def backward_kernel(g, x, w, rstd, dx, part, rows, n, BAND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    weight = tl.load(w + at, mask=at < n, other=0.0)
    dw = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, BAND):
        r = tl.program_id(0) * BAND + k
        inside = (at < n) & (r < rows)
        grad = tl.load(g + r * n + at, mask=inside, other=0.0)
        v = tl.load(x + r * n + at, mask=inside, other=0.0)
        s = tl.load(rstd + r, mask=r < rows, other=0.0)
        dot = tl.sum(grad * weight * v, 0) / n
        tl.store(dx + r * n + at, s * (grad * weight - v * (dot * s * s)), mask=inside)
        dw += grad * v * s
    tl.store(part + tl.program_id(0) * n + at, dw, mask=at < n)


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        n = weight.numel()
        out, rstd = torch.empty_like(x), torch.empty(x.numel() // n, device=x.device)
        forward_kernel[(rstd.numel(),)](x, weight, out, rstd, n, BLOCK=triton.next_power_of_2(n))
        ctx.save_for_backward(x, weight, rstd)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, rstd = ctx.saved_tensors
        n, bands = weight.numel(), triton.cdiv(rstd.numel(), 16)
        dx, part = torch.empty_like(x), torch.empty(bands, n, device=x.device)
        backward_kernel[(bands,)](grad.contiguous(), x, weight, rstd, dx, part, rstd.numel(), n, BAND=16,
                                  BLOCK=triton.next_power_of_2(n))
        return dx, part.sum(0)
"""
_RMS_FORWARD = """
def forward(self, x):
    if x.shape[-1] != self.weight.numel():
        raise ValueError(f"rows of {self.weight.numel()} are needed")
    return RmsNorm.apply(x.contiguous(), self.weight)
"""
_TANH = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0)
    a = tl.abs(v)
    e = tl.exp(-2.0 * a)
    small = a * (1.0 - a * a * (0.3333333333 - a * a * (0.1333333333 - a * a * 0.0539682540)))
    t = tl.where(a < 0.1, small, (1.0 - e) / (1.0 + e))
    tl.store(out + at, tl.where(v < 0, -t, tl.where(v == 0, v, t)), mask=at < n)
"""
_FLAT_FORWARD = SAME.replace("LAUNCH", "kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)")
_GRAPH_INIT = """
def __init__(self):
    super().__init__()
    self.graphs = {}  # by shape: a recording of launches, the buffers that it reads and writes
"""
_GRAPH_FORWARD = """
def forward(self, x):
    x = x.contiguous()
    if not x.is_cuda:
        out = torch.empty_like(x)
        self.launch(x, out)
        return out
    if (x.shape, x.device) not in self.graphs:
        self.graphs[x.shape, x.device] = self.recorded(x)
    graph, source, out = self.graphs[x.shape, x.device]
    source.copy_(x)  # the values of this call
    graph.replay()
    return out.clone()

def launch(self, x, out):
    kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)

def recorded(self, x):
    source, out = x.clone(), torch.empty_like(x)
    self.launch(source, out)  # compiles before the recording
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        self.launch(source, out)
    return graph, source, out
"""

ENTRIES = (
    triton_candidate("matmul-ieee", "float32 products without TF32", "matmul", _MATMUL, _MATMUL_FORWARD, head="BLOCK = 32"),
    triton_candidate("matmul-bf16", "bfloat16 tiles, float32 accumulators", "matmul_bf16", _MATMUL, _MATMUL_FORWARD,
                     head="BLOCK = 64"),
    triton_candidate("split-k-atomic", "Split K with float32 atomics", "matmul", _SPLIT, _filled(_SPLIT_FORWARD, _ATOMIC)),
    triton_candidate("split-k-staged", "Split K with float32 partials and a second kernel", "matmul_bf16", _SPLIT,
                     _filled(_SPLIT_FORWARD, _STAGED)),
    triton_candidate("linear-gelu", "Linear and GELU in one kernel, half storage", "half_matmul_bias_gelu", _FUSED,
                     _FUSED_FORWARD, init=_FUSED_INIT),
    triton_candidate("flash", "Online softmax over tiles of 16 keys", "attention", _FLASH,
                     _FLASH_FORWARD.replace("FLAG", "False")),
    triton_candidate("flash-causal", "Causal, tiles above the diagonal skipped", "small_attention_causal", _FLASH,
                     _FLASH_FORWARD.replace("FLAG", "True")),
    triton_candidate("flash-causal-half", "Causal, probabilities rounded to half before the product",
                     "half_attention_causal", _FLASH, _FLASH_FORWARD.replace("FLAG", "True")),
    triton_candidate("swiglu", "a / (1 + exp(-a)) * b", "swiglu", _SWIGLU.replace("ONE", "u / (1.0 + tl.exp(-u)) * v"),
                     _SWIGLU_FORWARD, head="BLOCK = 1024"),
    triton_candidate("swiglu-sigmoid", "tl.sigmoid", "swiglu", _SWIGLU.replace("ONE", "u * tl.sigmoid(u) * v"),
                     _SWIGLU_FORWARD, head='TUNABLES = {"BLOCK": [256, 512]}\nBLOCK = 512'),
    triton_candidate("bias-gelu", "Half storage", "half_bias_gelu", _BIAS_GELU, _BIAS_GELU_FORWARD, init=_BIAS_GELU_INIT),
    triton_candidate("scatter-atomic", "float32 atomics by id", "embedding_grad", _SCATTER, _SCATTER_FORWARD,
                     init=_SCATTER_INIT),
    triton_candidate("scatter-sorted", "Sorted ids, a program for each row of the table: deterministic", "embedding_grad",
                     _SCATTER_OWNED, _OWNED_FORWARD, init=_SCATTER_INIT),
    triton_candidate("threshold", "Booleans, floats and integers at once", "threshold", _THRESHOLD, _THRESHOLD_FORWARD,
                     init=_THRESHOLD_INIT),
    triton_candidate("rmsnorm-train", "Weight gradients in bands of 16 rows", "rmsnorm_train", _RMS_TRAIN, _RMS_FORWARD,
                     init=RMS_INIT),
    triton_candidate("tanh", "A series near zero, exponentials elsewhere", "tanh", _TANH, _FLAT_FORWARD),
    triton_candidate("tanh-graph", "A CUDA graph with its own buffers, filled in every call", "tanh", _TANH,
                     _GRAPH_FORWARD, init=_GRAPH_INIT),
)  # fmt: skip
"""Honest Triton tiles."""
