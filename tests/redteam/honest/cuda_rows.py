"""CUDA C++ candidates: warps, blocks, shuffles, shared trees, atomics, vector loads with tails, two stages, half types."""

from __future__ import annotations

from tests.redteam.entry import Entry
from tests.redteam.honest.building import entry, method
from tests.redteam.honest.norms import RMS_INIT

_MODULE = '''import torch
from torch import nn

from kernelwright import load_cuda

SOURCE = r"""
CODE
"""
mod = load_cuda(SOURCE)


def dense(t, dtype=torch.float32):
    if t.dtype != dtype:
        raise TypeError(f"this kernel takes {dtype}, not {t.dtype}")
    return t.contiguous()


class ModelNew(nn.Module):
@INIT
@FORWARD
'''
_SAME = """
def forward(self, x):
    x = dense(x)
    out = torch.empty_like(x)
    n = x.shape[-1]
    rows = x.numel() // max(1, n)
    if rows:
        LAUNCH
    return out
"""
_REDUCED = _SAME.replace("torch.empty_like(x)", "torch.empty(x.shape[:-1], device=x.device)")
_EACH = "mod.run[(rows,), (64,), 0](x, out, n)"
_WARPS = """
__device__ float warp_sum(float v) {
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__device__ float warp_max(float v) {
    for (int d = 16; d; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
"""
_TREE = """
__device__ float tree(float* s, float v, bool top) {  // 64 threads, a tree in shared memory
    __syncthreads();
    s[threadIdx.x] = v;
    __syncthreads();
    for (int d = 32; d; d /= 2) {
        if (threadIdx.x < d) s[threadIdx.x] = top ? fmaxf(s[threadIdx.x], s[threadIdx.x + d]) : s[threadIdx.x] + s[threadIdx.x + d];
        __syncthreads();
    }
    return s[0];
}
"""
_HEAD = """extern "C" __global__ void run(const float* x, float* y, int n) {
    const float* a = x + blockIdx.x * (long long)n;
    float* b = y + blockIdx.x * (long long)n;
"""
_SOFTMAX = {
    "tree": (
        "Trees in shared memory",
        _TREE
        + _HEAD
        + """
    __shared__ float s[64];
    float m = -INFINITY, t = 0;
    for (int i = threadIdx.x; i < n; i += 64) m = fmaxf(m, a[i]);
    m = tree(s, m, true);
    for (int i = threadIdx.x; i < n; i += 64) t += expf(a[i] - m);
    t = tree(s, t, false);
    for (int i = threadIdx.x; i < n; i += 64) b[i] = expf(a[i] - m) / t;
}""",
    ),
    "shuffles": (
        "Shuffles in two warps, then one value for each warp",
        _WARPS
        + _HEAD
        + """
    __shared__ float s[4];
    float m = -INFINITY, t = 0;
    for (int i = threadIdx.x; i < n; i += 64) m = fmaxf(m, a[i]);
    m = warp_max(m);
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = m;
    __syncthreads();
    m = fmaxf(s[0], s[1]);
    for (int i = threadIdx.x; i < n; i += 64) t += b[i] = expf(a[i] - m);
    t = warp_sum(t);
    if (threadIdx.x % 32 == 0) s[2 + threadIdx.x / 32] = t;
    __syncthreads();
    t = s[2] + s[3];
    for (int i = threadIdx.x; i < n; i += 64) b[i] /= t;
}""",
    ),
    "online": (
        "An online maximum and sum for each lane, merged by shuffles; lanes may be empty",
        _WARPS
        + _HEAD
        + """
    if (threadIdx.x >= 32) return;
    float m = -INFINITY, t = 0;
    for (int i = threadIdx.x; i < n; i += 32) {
        float v = a[i];
        if (v > m) { t = (m == -INFINITY ? t : t * expf(m - v)) + expf(v - v); m = v; }
        else if (v != -INFINITY) t += expf(v - m);
    }
    float top = warp_max(m);
    t = warp_sum(m == -INFINITY ? t : t * expf(m - top));
    for (int i = threadIdx.x; i < n; i += 32) b[i] = expf(a[i] - top) / t;
}""",
    ),
    "one-thread": (
        "A thread for each row: slow and right",
        """extern "C" __global__ void run(const float* x, float* y, int rows, int n) {
    int r = blockIdx.x * 64 + threadIdx.x;
    if (r >= rows) return;
    const float* a = x + r * (long long)n;
    float m = -INFINITY, t = 0;
    for (int i = 0; i < n; i++) m = fmaxf(m, a[i]);
    for (int i = 0; i < n; i++) t += expf(a[i] - m);
    for (int i = 0; i < n; i++) y[r * (long long)n + i] = expf(a[i] - m) / t;
}""",
    ),
}
_SUMS = {
    "shuffles": (
        "Warps and a last shuffle",
        _WARPS
        + """extern "C" __global__ void run(const float* x, float* y, int n) {
    __shared__ float s[2];
    float t = 0;
    for (int i = threadIdx.x; i < n; i += 64) t += x[blockIdx.x * (long long)n + i];
    t = warp_sum(t);
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = t;
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = s[0] + s[1];
}""",
    ),
    "double": (
        "Sums in double through shared memory",
        """extern "C" __global__ void run(const float* x, float* y, int n) {
    __shared__ double s[64];
    double t = 0;
    for (int i = threadIdx.x; i < n; i += 64) t += x[blockIdx.x * (long long)n + i];
    s[threadIdx.x] = t;
    __syncthreads();
    for (int d = 32; d; d /= 2) {
        if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = (float)s[0];
}""",
    ),
    "contiguous": (
        "Each thread its own run of neighbours, added up by the first thread",
        """extern "C" __global__ void run(const float* x, float* y, int n) {
    __shared__ float s[64];
    int size = (n + 63) / 64, first = threadIdx.x * size;
    float t = 0;
    for (int i = first; i < n && i < first + size; i++) t += x[blockIdx.x * (long long)n + i];
    s[threadIdx.x] = t;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < 64; i++) t += s[i];
    y[blockIdx.x] = t;
}""",
    ),
    "vector-loads": (
        "float4 loads where the row allows it, single ones for head and tail",
        _WARPS
        + """extern "C" __global__ void run(const float* x, float* y, int n) {
    if (threadIdx.x >= 32) return;
    const float* a = x + blockIdx.x * (long long)n;
    int head = (int)((16 - (unsigned long long)a % 16) % 16 / 4);
    if (head > n) head = n;
    int whole = (n - head) / 4;
    const float4* v = (const float4*)(a + head);
    float t = threadIdx.x < head ? a[threadIdx.x] : 0;
    for (int i = threadIdx.x; i < whole; i += 32) { float4 q = v[i]; t += (q.x + q.y) + (q.z + q.w); }
    for (int i = head + 4 * whole + threadIdx.x; i < n; i += 32) t += a[i];
    t = warp_sum(t);
    if (threadIdx.x == 0) y[blockIdx.x] = t;
}""",
    ),
}
_ATOMIC = (
    _WARPS
    + """extern "C" __global__ void run(const float* x, float* y, int n, int parts) {
    int r = blockIdx.x / parts, from = blockIdx.x % parts * 512;
    float t = 0;
    for (int i = from + threadIdx.x; i < n && i < from + 512; i += 64) t += x[r * (long long)n + i];
    t = warp_sum(t);
    if (threadIdx.x % 32 == 0) atomicAdd(y + r, t);  // float32, in any order
}"""
)
_STAGED = (
    _WARPS
    + """extern "C" __global__ void partials(const float* x, float* part, int n, int parts) {
    if (threadIdx.x >= 32) return;
    int r = blockIdx.x / parts, from = blockIdx.x % parts * 512;
    float t = 0;
    for (int i = from + threadIdx.x; i < n && i < from + 512; i += 32) t += x[r * (long long)n + i];
    t = warp_sum(t);
    if (threadIdx.x == 0) part[blockIdx.x] = t;
}
extern "C" __global__ void finish(const float* part, float* y, int rows, int parts) {
    int r = blockIdx.x * 64 + threadIdx.x;
    if (r >= rows) return;
    float t = 0;
    for (int i = 0; i < parts; i++) t += part[r * parts + i];
    y[r] = t;
}"""
)
_STAGED_LAUNCH = """parts = -(-n // 512)
        part = torch.empty(rows * parts, device=x.device)
        mod.partials[(rows * parts,), (64,), 0](x, part, n, parts)
        mod.finish[(-(-rows // 64),), (64,), 0](part, out, rows, parts)"""
_RMS = (
    _WARPS
    + """extern "C" __global__ void run(const float* x, const float* w, float* y, int n) {
    __shared__ float s[2];
    const float* a = x + blockIdx.x * (long long)n;
    float t = 0;
    for (int i = threadIdx.x; i < n; i += 64) t = fmaf(a[i], a[i], t);
    t = warp_sum(t);
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = t;
    __syncthreads();
    float scale = SCALE;
    for (int i = threadIdx.x; i < n; i += 64) y[blockIdx.x * (long long)n + i] = a[i] * scale * w[i];
}"""
)
_RMS_FORWARD = """
def forward(self, x):
    x, n = dense(x), self.weight.numel()
    if x.shape[-1] != n:
        raise ValueError(f"rows of {n} are needed")
    out = torch.empty_like(x)
    if x.numel():
        mod.run[(x.numel() // n,), (64,), 0](x, dense(self.weight), out, n)
    return out
"""
_CUMSUM = (
    _HEAD
    + """
    __shared__ float s[64];
    float carry = 0;
    for (int from = 0; from < n; from += 64) {
        int i = from + threadIdx.x;
        s[threadIdx.x] = i < n ? a[i] : 0;
        __syncthreads();
        for (int d = 1; d < 64; d *= 2) {  // two barriers: nobody reads what another has already moved on
            float left = threadIdx.x >= d ? s[threadIdx.x - d] : 0;
            __syncthreads();
            if (threadIdx.x >= d) s[threadIdx.x] += left;
            __syncthreads();
        }
        if (i < n) b[i] = s[threadIdx.x] + carry;
        carry += s[63];
        __syncthreads();
    }
}"""
)
_POINT = """extern "C" __global__ void run(const float* x, float* y, int n) {
    for (int i = blockIdx.x * 64 + threadIdx.x; i < n; i += GRID * 64) {
        float v = x[i];
        y[i] = ONE;
    }
}"""
_POINT_FORWARD = """
def forward(self, x):
    x = dense(x)
    out = torch.empty_like(x)
    if x.numel():
        mod.run[(GRID,), (64,), 0](x, out, x.numel())
    return out
"""
_MATMUL = """extern "C" __global__ void run(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float s[8][8], t[8][8];
    int across = (n + 7) / 8, i = blockIdx.x / across * 8 + threadIdx.x / 8, j = blockIdx.x % across * 8 + threadIdx.x % 8;
    float sum = 0;
    for (int p = 0; p < k; p += 8) {
        int q = p + threadIdx.x % 8, r = p + threadIdx.x / 8;
        s[threadIdx.x / 8][threadIdx.x % 8] = i < m && q < k ? a[i * k + q] : 0;
        t[threadIdx.x / 8][threadIdx.x % 8] = r < k && j < n ? b[r * n + j] : 0;
        __syncthreads();
        for (int z = 0; z < 8; z++) sum = fmaf(s[threadIdx.x / 8][z], t[z][threadIdx.x % 8], sum);
        __syncthreads();
    }
    if (i < m && j < n) c[i * n + j] = sum;
}"""
_MATMUL_FORWARD = """
def forward(self, a, b):
    a, b = dense(a), dense(b)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError("two matrices that fit are needed")
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, device=a.device)
    if out.numel():
        mod.run[(-(-m // 8) * -(-n // 8),), (64,), 0](a, b, out, m, n, k)
    return out
"""
_SCATTER = """extern "C" __global__ void run(const long long* ids, const float* grad, float* out, int tokens, int dim) {
    for (int d = threadIdx.x; d < dim; d += 64) atomicAdd(out + ids[blockIdx.x] * dim + d, grad[blockIdx.x * (long long)dim + d]);
}"""
_SCATTER_OWNED = """extern "C" __global__ void run(const long long* ids, const float* grad, float* out, int tokens, int dim) {
    for (int d = threadIdx.x; d < dim; d += 64) {  // a block for each row of the table reads every id
        float s = 0;
        for (int t = 0; t < tokens; t++) if (ids[t] == blockIdx.x) s += grad[t * (long long)dim + d];
        out[blockIdx.x * (long long)dim + d] = s;
    }
}"""
_SCATTER_INIT = """
def __init__(self, vocab):
    super().__init__()
    self.vocab = vocab
"""
_SCATTER_FORWARD = """
def forward(self, ids, grad):
    ids, grad = dense(ids, torch.int64), dense(grad)
    out = torch.zeros(self.vocab, grad.shape[1], device=grad.device)
    if ids.numel() and grad.shape[1]:
        mod.run[(BLOCKS,), (64,), 0](ids, grad, out, ids.numel(), grad.shape[1])
    return out
"""
_ARGMAX = """extern "C" __global__ void run(const float* x, long long* y, int n) {
    __shared__ float top[64];
    __shared__ int at[64];
    const float* a = x + blockIdx.x * (long long)n;
    float m = -INFINITY;
    int best = n;
    for (int i = threadIdx.x; i < n; i += 64)
        if (best == n || (m == m && (a[i] > m || a[i] != a[i]))) { m = a[i]; best = i; }
    top[threadIdx.x] = m;
    at[threadIdx.x] = best;
    __syncthreads();
    if (threadIdx.x) return;
    for (int k = 1; k < 64; k++) {
        if (at[k] == n) continue;
        float v = top[k];
        bool better = m != m ? v != v && at[k] < best : v > m || v != v || (v == m && at[k] < best);
        if (better) { m = v; best = at[k]; }
    }
    y[blockIdx.x] = best;
}"""
_ARGMAX_FORWARD = """
def forward(self, x):
    x = dense(x)
    if not x.shape[-1]:
        raise ValueError("a row without values has no maximum")
    out = torch.empty(x.shape[:-1], dtype=torch.int64, device=x.device)
    if x.numel():
        mod.run[(out.numel(),), (64,), 0](x, out, x.shape[-1])
    return out
"""
_HALF = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
__device__ float wide(const __nv_bfloat16* p, int i) { return __bfloat162float(p[i]); }
__device__ float wide(const __half* p, int i) { return __half2float(p[i]); }
__device__ void put(__nv_bfloat16* p, long long i, float v) { p[i] = __float2bfloat16(v); }
__device__ void put(__half* p, long long i, float v) { p[i] = __float2half(v); }
template <class T> __device__ void softmax(const T* a, T* y, long long at, int n) {
    __shared__ float s[64];
    float m = -INFINITY, t = 0;
    for (int i = threadIdx.x; i < n; i += 64) m = fmaxf(m, wide(a + at, i));
    m = tree(s, m, true);
    for (int i = threadIdx.x; i < n; i += 64) t += expf(wide(a + at, i) - m);
    t = tree(s, t, false);
    for (int i = threadIdx.x; i < n; i += 64) put(y, at + i, expf(wide(a + at, i) - m) / t);
}
extern "C" __global__ void run_bf16(const __nv_bfloat16* x, __nv_bfloat16* y, int n) { softmax(x, y, blockIdx.x * (long long)n, n); }
extern "C" __global__ void run_fp16(const __half* x, __half* y, int n) { softmax(x, y, blockIdx.x * (long long)n, n); }
"""
_HALF_FORWARD = """
def forward(self, x):
    kernels = {torch.bfloat16: mod.run_bf16, torch.float16: mod.run_fp16}
    if x.dtype not in kernels:
        raise TypeError(f"this kernel takes bfloat16 and float16, not {x.dtype}")
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        kernels[x.dtype][(x.numel() // x.shape[-1],), (64,), 0](x, out, x.shape[-1])
    return out
"""
_GRAPH_FORWARD = """
def forward(self, x):
    x = dense(x)
    if not x.numel():
        return torch.empty_like(x)
    if (x.shape, x.device) not in self.graphs:
        self.graphs[x.shape, x.device] = self.recorded(x)
    graph, source, out = self.graphs[x.shape, x.device]
    source.copy_(x)  # the values of this call
    graph.replay()
    return out.clone()

def recorded(self, x):
    source, out = x.clone(), torch.empty_like(x)
    rows = x.numel() // x.shape[-1]
    mod.run[(rows,), (64,), 0](source, out, x.shape[-1])  # loads the module before the recording
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mod.run[(rows,), (64,), 0](source, out, x.shape[-1])
    return graph, source, out
"""
_GRAPH_INIT = """
def __init__(self):
    super().__init__()
    self.graphs = {}
"""
_STREAM_LAUNCH = """side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            mod.run[(rows,), (64,), 0](x, out, n)
        torch.cuda.current_stream().wait_stream(side)  # whoever reads on the caller's stream waits
        out.record_stream(side)
        x.record_stream(side)"""


def _cuda(id: str, title: str, problem: str, code: str, forward: str, *, init: str = "") -> Entry:
    source = _MODULE
    for hole, text in {"CODE": code.strip(), "@INIT": method(init).rstrip(), "@FORWARD": method(forward)}.items():
        source = source.replace(hole, text, 1)
    return entry(f"cuda-{id}", title, problem, source, language="cuda", needs="gpu")


def _point(id: str, title: str, problem: str, one: str, grid: int) -> Entry:
    code, forward = (text.replace("GRID", str(grid)) for text in (_POINT, _POINT_FORWARD))
    return _cuda(id, title, problem, code.replace("ONE", one), forward)


ENTRIES = (
    *(
        _cuda(f"softmax-{name}", title, "softmax", code, _SAME.replace("LAUNCH", _EACH if name != "one-thread" else
                                                                       "mod.run[(-(-rows // 64),), (64,), 0](x, out, rows, n)"))
        for name, (title, code) in _SOFTMAX.items()
    ),
    _cuda("softmax-half", "bfloat16 and float16 storage, float32 arithmetic", "half_softmax", _TREE + _HALF, _HALF_FORWARD),
    _cuda("softmax-graph", "A CUDA graph with its own buffers, filled in every call", "softmax", _SOFTMAX["tree"][1],
          _GRAPH_FORWARD, init=_GRAPH_INIT),
    _cuda("softmax-side-stream", "Works on a stream of its own, which the caller's stream waits for", "softmax",
          _SOFTMAX["shuffles"][1], _SAME.replace("LAUNCH", _STREAM_LAUNCH)),
    *(
        _cuda(f"sum-{name}", title, "row_sum", code, _REDUCED.replace("LAUNCH", _EACH))
        for name, (title, code) in _SUMS.items()
    ),
    _cuda("sum-atomic", "Float32 atomics on a zeroed output", "row_sum", _ATOMIC, _REDUCED.replace(
        "torch.empty(", "torch.zeros(").replace("LAUNCH", "parts = -(-n // 512)\n"
        "        mod.run[(rows * parts,), (64,), 0](x, out, n, parts)")),
    _cuda("sum-two-stages", "Partials, then their sum: the same bits every time", "row_sum", _STAGED,
          _REDUCED.replace("LAUNCH", _STAGED_LAUNCH)),
    _cuda("rmsnorm-rsqrt", "rsqrtf and fused multiply-adds", "rmsnorm", _RMS.replace(
        "SCALE", "rsqrtf((s[0] + s[1]) / n + 1e-6f)"), _RMS_FORWARD, init=RMS_INIT),
    _cuda("rmsnorm-double", "The scale in double", "rmsnorm", _RMS.replace(
        "SCALE", "(float)(1.0 / sqrt(((double)s[0] + s[1]) / n + 1e-6))"), _RMS_FORWARD, init=RMS_INIT),
    _cuda("cumsum-blocks", "Scans of 64 with a carry", "cumsum", _CUMSUM, _SAME.replace("LAUNCH", _EACH)),
    _point("gelu-erfc", "A grid-stride loop of seven blocks", "gelu", "0.5f * v * erfcf(-v * 0.70710678f)", 7),
    _point("gelu-erf", "A grid-stride loop of 64 blocks", "gelu", "0.5f * v * (1.0f + erff(v * 0.70710678f))", 64),
    _point("tanh", "CUDA's own tanhf", "tanh", "tanhf(v)", 32),
    _point("relu-nan", "A comparison that lets NaN through", "relu", "v < 0.0f ? 0.0f : v", 16),
    _cuda("matmul-tiles", "Tiles of 8 x 8 in shared memory, zeros beyond the edges", "matmul", _MATMUL, _MATMUL_FORWARD),
    _cuda("scatter-atomic", "Float32 atomics by id", "embedding_grad", _SCATTER,
          _SCATTER_FORWARD.replace("BLOCKS", "ids.numel()"), init=_SCATTER_INIT),
    _cuda("scatter-owned", "A block owns a row of the table: the same bits every time", "embedding_grad", _SCATTER_OWNED,
          _SCATTER_FORWARD.replace("BLOCKS", "self.vocab"), init=_SCATTER_INIT),
    _cuda("argmax-first", "The first of equal maxima across threads; a NaN wins", "argmax", _ARGMAX, _ARGMAX_FORWARD),
)  # fmt: skip
"""Honest CUDA kernels."""
