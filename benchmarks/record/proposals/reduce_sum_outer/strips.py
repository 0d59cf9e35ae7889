"""Strips of 1 KB walk down their share of the rows, 8 vectors of 16 bytes under way for each thread; the shares' sums
are added by a second launch of 3 us. Where the matrix is small, strips of 32 bytes take all of its rows in one launch.

Bound by memory: one read. A share is 64 KB of a strip, so that the blocks at work are neighbours, which are launched in
order: blocks of 64 KB (rows of 8 MB) read at 94 % of what the memory gives, longer ones at 56 to 60 % (H200: 128 KB of
rows of 32 KB, 256 KB of rows of 8 KB and of 512 B). The shares cost 3 % more traffic.
"""

import functools

import torch
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"LANES": [32, 64, 128], "SHARE": [128, 256, 512, 1024], "THREADS": [128, 256, 512], "DEEP": [4, 8, 16]}
LANES = 64
"""Threads, of 16 bytes each, across a strip."""
SHARE = 256
"""Bytes of a column that one block sums up."""
THREADS = 256
DEEP = 8
"""Vectors that a thread has under way; twice as many where rows begin anywhere, and are read by the element."""
MOST_SHARES = 16_384
SMALL = 4 << 20

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float& to) { to = value; }
__device__ __forceinline__ void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

template <class T, int N> struct alignas(sizeof(T) * N) Vector { T at[N]; };
// Vectors are read once; elements lie in sectors that neighbouring warps share through the first cache.
template <class T, int N> __device__ __forceinline__ Vector<T, N> load(const T* from) {
    if constexpr (sizeof(T) * N == 16) {
        const uint4 got = __ldcs((const uint4*)from);
        return *(const Vector<T, N>*)&got;
    } else {
        return Vector<T, N>{{__ldg(from)}};
    }
}

// A block takes `lanes` vectors across, a power of two, and its share of the rows; without `parts` that is all of them.
template <class T, int N> __device__ __forceinline__ void walk(
    const T* x, float* parts, ELEMENT* out, i64 rows, i64 cols, i64 share, int lanes) {
    extern __shared__ __align__(16) float sums[];
    constexpr int AHEAD = N > 1 ? DEEP : 2 * DEEP;
    const int lane = threadIdx.x % lanes, across = lanes * N;
    const i64 col = (i64)blockIdx.x * across + lane * N, step = blockDim.x / lanes;
    const i64 last = min(rows, (blockIdx.y + 1) * share);
    float sum[N];
    #pragma unroll
    for (int k = 0; k < N; k++) sum[k] = 0.0f;
    if (col < cols) {
        i64 row = blockIdx.y * share + threadIdx.x / lanes;
        const T* from = x + row * cols + col;
        const i64 stride = step * cols;
        for (; row + (AHEAD - 1) * step < last; row += AHEAD * step) {
            Vector<T, N> got[AHEAD];
            #pragma unroll
            for (int i = 0; i < AHEAD; i++, from += stride) got[i] = load<T, N>(from);
            #pragma unroll
            for (int i = 0; i < AHEAD; i++)
                #pragma unroll
                for (int k = 0; k < N; k++) sum[k] += wide(got[i].at[k]);
        }
        Vector<T, N> got[AHEAD - 1];
        #pragma unroll
        for (int i = 0; i < AHEAD - 1; i++, from += stride)
            if (row + i * step < last) got[i] = load<T, N>(from);
        #pragma unroll
        for (int i = 0; i < AHEAD - 1; i++)
            if (row + i * step < last) {
                #pragma unroll
                for (int k = 0; k < N; k++) sum[k] += wide(got[i].at[k]);
            }
    }
    for (int apart = 16; apart >= lanes; apart /= 2)
        #pragma unroll
        for (int k = 0; k < N; k++) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], apart);
    const int tall = max(lanes, 32), groups = blockDim.x / tall;
    if (threadIdx.x % tall < lanes) {
        #pragma unroll
        for (int k = 0; k < N; k++) sums[threadIdx.x / tall * across + lane * N + k] = sum[k];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < across; i += blockDim.x) {
        const i64 place = (i64)blockIdx.x * across + i;
        if (place >= cols) break;
        float total = 0.0f;
        for (int g = 0; g < groups; g++) total += sums[g * across + i];
        if (parts) parts[blockIdx.y * cols + place] = total;
        else narrow(total, out[place]);
    }
}

extern "C" __global__ void __launch_bounds__(1024) down_vectors(
    const ELEMENT* x, float* parts, ELEMENT* out, int64_t rows, int64_t cols, int64_t share, int lanes) {
    walk<ELEMENT, 16 / sizeof(ELEMENT)>(x, parts, out, rows, cols, share, lanes);
}
// Rows that begin anywhere.
extern "C" __global__ void __launch_bounds__(1024) down_any(
    const ELEMENT* x, float* parts, ELEMENT* out, int64_t rows, int64_t cols, int64_t share, int lanes) {
    walk<ELEMENT, 1>(x, parts, out, rows, cols, share, lanes);
}
extern "C" __global__ void __launch_bounds__(1024) down_parts(
    const float* x, float* parts, ELEMENT* out, int64_t rows, int64_t cols, int64_t share, int lanes) {
    walk<float, 1>(x, parts, out, rows, cols, share, lanes);
}
"""
NAMES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", torch.float32: "float"}
MODULES = {dtype: load_cuda(SOURCE, flags=[f"-DELEMENT={name}", f"-DDEEP={DEEP}"]) for dtype, name in NAMES.items()}


@functools.lru_cache(maxsize=256)
def plan(dtype, rows, cols, aligned):
    """(launch, rows of a share, lanes of a strip, shares, launch that adds up what several shares found, its lanes)."""
    if dtype not in MODULES:
        raise ValueError(f"{dtype} is not summed here")
    kernels, size = MODULES[dtype], dtype.itemsize
    width = 16 // size if aligned and cols * size % 16 == 0 else 1
    kernel = kernels.down_vectors if width > 1 else kernels.down_any
    lanes = 32 // (width * size)
    strips = -(-cols // (lanes * width))
    if rows * cols * size <= min(SMALL, strips << 17):
        threads = min(512, max(32, 1 << max(1, rows * lanes).bit_length() - 1))
        return kernel[(strips,), (threads,), threads * width * 4], rows, lanes, 1, None, 0
    lanes = LANES * 16 // (width * size)
    while lanes > 1 and (lanes > THREADS or lanes // 2 * width >= cols):
        lanes //= 2
    share = max(SHARE // size, -(-rows // MOST_SHARES))
    strips, shares = -(-cols // (lanes * width)), -(-rows // share)
    launch = kernel[(strips, shares), (THREADS,), THREADS * width * 4]
    few = 32 if cols >= 4096 else 8
    return launch, share, lanes, shares, kernels.down_parts[(-(-cols // few),), (1024,), 4096], few


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows = x.shape[0]
        out = torch.empty(x.shape[1:], dtype=x.dtype, device=x.device)
        cols = out.numel()
        if not cols:
            return out
        launch, share, lanes, shares, add_up, few = plan(x.dtype, rows, cols, x.data_ptr() % 16 == 0)
        if shares == 1:
            launch(x, None, out, rows, cols, rows, lanes)
        else:
            parts = torch.empty((shares, cols), dtype=torch.float32, device=x.device)
            launch(x, parts, out, rows, cols, share, lanes)
            add_up(parts, None, out, shares, cols, shares, few)
        return out
