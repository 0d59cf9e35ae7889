"""CUDA sums and norms: shuffles, double, runs of neighbours, vector loads with tails, atomics, two stages."""

from __future__ import annotations

from tests.redteam.honest.cuda_building import EACH, HEAD, SAME, WARPS, cuda
from tests.redteam.honest.norms import RMS_INIT

_REDUCED = SAME.replace("torch.empty_like(x)", "torch.empty(x.shape[:-1], device=x.device)")
_SUMS = {
    "shuffles": (
        "Warps and a last shuffle",
        WARPS
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
        WARPS
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
    WARPS
    + """extern "C" __global__ void run(const float* x, float* y, int n, int parts) {
    int r = blockIdx.x / parts, from = blockIdx.x % parts * 512;
    float t = 0;
    for (int i = from + threadIdx.x; i < n && i < from + 512; i += 64) t += x[r * (long long)n + i];
    t = warp_sum(t);
    if (threadIdx.x % 32 == 0) atomicAdd(y + r, t);  // float32, in any order
}"""
)
_STAGED = (
    WARPS
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
    WARPS
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
    HEAD
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

ENTRIES = (
    *(
        cuda(f"sum-{name}", title, "row_sum", code, _REDUCED.replace("LAUNCH", EACH))
        for name, (title, code) in _SUMS.items()
    ),
    cuda(
        "sum-atomic",
        "Float32 atomics on a zeroed output",
        "row_sum",
        _ATOMIC,
        _REDUCED.replace("torch.empty(", "torch.zeros(").replace(
            "LAUNCH", "parts = -(-n // 512)\n        mod.run[(rows * parts,), (64,), 0](x, out, n, parts)"
        ),
    ),
    cuda(
        "sum-two-stages",
        "Partials, then their sum: the same bits every time",
        "row_sum",
        _STAGED,
        _REDUCED.replace("LAUNCH", _STAGED_LAUNCH),
    ),
    cuda(
        "rmsnorm-rsqrt",
        "rsqrtf and fused multiply-adds",
        "rmsnorm",
        _RMS.replace("SCALE", "rsqrtf((s[0] + s[1]) / n + 1e-6f)"),
        _RMS_FORWARD,
        init=RMS_INIT,
    ),
    cuda(
        "rmsnorm-double",
        "The scale in double",
        "rmsnorm",
        _RMS.replace("SCALE", "(float)(1.0 / sqrt(((double)s[0] + s[1]) / n + 1e-6))"),
        _RMS_FORWARD,
        init=RMS_INIT,
    ),
    cuda("cumsum-blocks", "Scans of 64 with a carry", "cumsum", _CUMSUM, SAME.replace("LAUNCH", EACH)),
)
"""Honest CUDA sums and norms."""
