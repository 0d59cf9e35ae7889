"""Triton pointwise kernels, scatters, gradients, three outputs, and a CUDA graph."""

from __future__ import annotations

from tests.redteam.honest.contract_inits import THRESHOLD_INIT
from tests.redteam.honest.norms import RMS_INIT
from tests.redteam.honest.triton_building import SAME, triton_candidate

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
    h = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + tl.load(bias + at % n, mask=inside,
        other=0.0).to(tl.float32)
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
    triton_candidate(
        "swiglu",
        "a / (1 + exp(-a)) * b",
        "swiglu",
        _SWIGLU.replace("ONE", "u / (1.0 + tl.exp(-u)) * v"),
        _SWIGLU_FORWARD,
        head="BLOCK = 1024",
    ),
    triton_candidate(
        "swiglu-sigmoid",
        "tl.sigmoid",
        "swiglu",
        _SWIGLU.replace("ONE", "u * tl.sigmoid(u) * v"),
        _SWIGLU_FORWARD,
        head='TUNABLES = {"BLOCK": [256, 512]}\nBLOCK = 512',
    ),
    triton_candidate(
        "bias-gelu", "Half storage", "half_bias_gelu", _BIAS_GELU, _BIAS_GELU_FORWARD, init=_BIAS_GELU_INIT
    ),
    triton_candidate(
        "scatter-atomic", "float32 atomics by id", "embedding_grad", _SCATTER, _SCATTER_FORWARD, init=_SCATTER_INIT
    ),
    triton_candidate(
        "scatter-sorted",
        "Sorted ids, a program for each row of the table: deterministic",
        "embedding_grad",
        _SCATTER_OWNED,
        _OWNED_FORWARD,
        init=_SCATTER_INIT,
        share=0.5,  # torch sorts the ids: 37 % of the time (H200)
    ),
    triton_candidate(
        "threshold",
        "Booleans, floats and integers at once",
        "threshold",
        _THRESHOLD,
        _THRESHOLD_FORWARD,
        init=THRESHOLD_INIT,
    ),
    triton_candidate(
        "rmsnorm-train",
        "Weight gradients in bands of 16 rows, which torch adds up",
        "rmsnorm_train",
        _RMS_TRAIN,
        _RMS_FORWARD,
        init=RMS_INIT,
        share=0.5,  # torch's sum takes 13 % of the time (H200)
    ),
    triton_candidate("tanh", "A series near zero, exponentials elsewhere", "tanh", _TANH, _FLAT_FORWARD),
    triton_candidate(
        "tanh-graph",
        "A CUDA graph with its own buffers, filled in every call",
        "tanh",
        _TANH,
        _GRAPH_FORWARD,
        init=_GRAPH_INIT,
        share=0.2,  # torch copies in and out: two thirds of the bytes that move, 69 % of the time (H200)
    ),
)
"""Honest Triton kernels of other kinds."""
