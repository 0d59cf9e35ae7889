"""CUDA softmaxes: trees, shuffles, online lanes, half types, a CUDA graph, a stream of its own."""

from __future__ import annotations

from tests.redteam.honest.cuda_building import EACH, HEAD, SAME, WARPS, cuda

_TREE = """
__device__ float tree(float* s, float v, bool top) {  // 64 threads, a tree in shared memory
    __syncthreads();
    s[threadIdx.x] = v;
    __syncthreads();
    for (int d = 32; d; d /= 2) {
        if (threadIdx.x < d) s[threadIdx.x] = top ? fmaxf(s[threadIdx.x],
            s[threadIdx.x + d]) : s[threadIdx.x] + s[threadIdx.x + d];
        __syncthreads();
    }
    return s[0];
}
"""
_SOFTMAX = {
    "tree": (
        "Trees in shared memory",
        _TREE
        + HEAD
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
        WARPS
        + HEAD
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
        WARPS
        + HEAD
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
extern "C" __global__ void run_bf16(const __nv_bfloat16* x, __nv_bfloat16* y, int n) { softmax(x, y,
    blockIdx.x * (long long)n, n); }
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

ENTRIES = (
    *(
        cuda(
            f"softmax-{name}",
            title,
            "softmax",
            code,
            SAME.replace(
                "LAUNCH", EACH if name != "one-thread" else "mod.run[(-(-rows // 64),), (64,), 0](x, out, rows, n)"
            ),
        )
        for name, (title, code) in _SOFTMAX.items()
    ),
    cuda(
        "softmax-half", "bfloat16 and float16 storage, float32 arithmetic", "half_softmax", _TREE + _HALF, _HALF_FORWARD
    ),
    cuda(
        "softmax-graph",
        "A CUDA graph with its own buffers, filled in every call",
        "softmax",
        _SOFTMAX["tree"][1],
        _GRAPH_FORWARD,
        init=_GRAPH_INIT,
        share=0.3,  # torch copies into the graph's input and out of its result: 53 % of the time (H200)
    ),
    cuda(
        "softmax-side-stream",
        "Works on a stream of its own, which the caller's stream waits for",
        "softmax",
        _SOFTMAX["shuffles"][1],
        SAME.replace("LAUNCH", _STREAM_LAUNCH),
    ),
)
"""Honest CUDA softmaxes."""
