"""CUDA kernels of other kinds: pointwise, tiles, scatters, an argmax with ties."""

from __future__ import annotations

from tests.redteam.entry import Entry
from tests.redteam.honest.cuda_building import cuda

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
    int across = (n + 7) / 8, i = blockIdx.x / across * 8 + threadIdx.x / 8,
        j = blockIdx.x % across * 8 + threadIdx.x % 8;
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
    for (int d = threadIdx.x; d < dim; d += 64) atomicAdd(out + ids[blockIdx.x] * dim + d,
        grad[blockIdx.x * (long long)dim + d]);
}"""
_SCATTER_OWNED = """extern "C" __global__ void run(const long long* ids, const float* grad, float* out,
    int tokens, int dim) {
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


def _point(id: str, title: str, problem: str, one: str, grid: int) -> Entry:
    code, forward = (text.replace("GRID", str(grid)) for text in (_POINT, _POINT_FORWARD))
    return cuda(id, title, problem, code.replace("ONE", one), forward)


ENTRIES = (
    _point("gelu-erfc", "A grid-stride loop of seven blocks", "gelu", "0.5f * v * erfcf(-v * 0.70710678f)", 7),
    _point("gelu-erf", "A grid-stride loop of 64 blocks", "gelu", "0.5f * v * (1.0f + erff(v * 0.70710678f))", 64),
    _point("tanh", "CUDA's own tanhf", "tanh", "tanhf(v)", 32),
    _point("relu-nan", "A comparison that lets NaN through", "relu", "v < 0.0f ? 0.0f : v", 16),
    cuda("matmul-tiles", "Tiles of 8 x 8 in shared memory, zeros beyond the edges", "matmul", _MATMUL, _MATMUL_FORWARD),
    cuda(
        "scatter-atomic",
        "Float32 atomics by id",
        "embedding_grad",
        _SCATTER,
        _SCATTER_FORWARD.replace("BLOCKS", "ids.numel()"),
        init=_SCATTER_INIT,
    ),
    cuda(
        "scatter-owned",
        "A block owns a row of the table: the same bits every time",
        "embedding_grad",
        _SCATTER_OWNED,
        _SCATTER_FORWARD.replace("BLOCKS", "self.vocab"),
        init=_SCATTER_INIT,
    ),
    cuda("argmax-first", "The first of equal maxima across threads; a NaN wins", "argmax", _ARGMAX, _ARGMAX_FORWARD),
)
"""Honest CUDA kernels of other kinds."""
