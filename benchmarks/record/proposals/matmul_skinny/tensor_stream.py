"""Weights stream from memory into the registers of tensor cores, 16 bytes a lane and 8 loads ahead; rows of x come from
the first cache. A lane's 8 numbers are two operands' as they lie, since both sides may count the inner dimension in any
order. Where rows of the weight begin anywhere, a block takes rows that begin alike and has x shifted in shared memory.

Bound by memory: the weights. One launch: warps of a block split the inner dimension.
"""

import functools
import math

import torch
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"BLOCKS": [1, 2, 3], "WARPS": [4, 8], "STRIPS": [1, 2, 4, 8]}
BLOCKS = 2
"""Blocks for each multiprocessor."""
WARPS = 8
STRIPS = 8
"""The most warps of a block that share rows of x, when those are more than 8, rather than the inner dimension."""
ODD_WARPS = 16
ROOM = 232448
SUMS = 16384

COMMON = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef unsigned int u32;
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float& to) { to = value; }
__device__ __forceinline__ void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

// The first cache is for x.
__device__ __forceinline__ uint4 load_past_cache(const void* from) {
    uint4 got;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w) : "l"(from));
    return got;
}
"""
TENSOR = r"""
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
__device__ __forceinline__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TEXT(KIND) "." TEXT(KIND) ".f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A warp takes TILES times 8 outputs and DEEP times 32 inner places at a time, of which a lane has 8 neighbours.
// `across` warps split the inner dimension, the others take other outputs. ODD: a block's outputs are `period` apart,
// so that their rows begin at the same place of 16 bytes. TALL: there are more than 8 rows of x.
template <int TILES, int DEEP, bool ODD, bool TALL> __device__ __forceinline__ void stream(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* out, int rows, int inner, int outer, int tall, int across,
    int period, int pitch) {
    extern __shared__ __align__(128) unsigned char memory[];
    float* sums = (float*)memory;
    ELEMENT* held = (ELEMENT*)(memory + SUMS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int part = warp % across, strip = warp / across, strips = blockDim.x / 32 / across;
    const int kind = ODD ? blockIdx.x % period : 0, shift = ODD ? (int)((i64)kind * inner % 8) : 0;
    const int vectors = (inner + shift + 7) / 8, rounds = (vectors + across * 4 * DEEP - 1) / (across * 4 * DEEP);
    const int first = blockIdx.y * tall, mine = min(tall, rows - first);
    const int members = (outer - kind + period - 1) / period, each = 8 * TILES * strips;
    const int jobs = (members + each - 1) / each, stride = gridDim.x / period;
    const i64 whole = (i64)outer * inner;

    auto fetch = [&](uint4 (&to)[TILES][DEEP], int job, int round) {
        #pragma unroll
        for (int n = 0; n < TILES; n++) {
            const int member = (job * strips + strip) * 8 * TILES + n * 8 + g;
            const i64 row = ((i64)member * period + kind) * inner - shift;
            #pragma unroll
            for (int d = 0; d < DEEP; d++) {
                const int v = (round * across + part) * 4 * DEEP + d * 4 + t;
                to[n][d] = uint4{0, 0, 0, 0};
                if (member >= members || v >= vectors) continue;
                const i64 at = row + 8 * v;
                if (!ODD || at + 8 <= whole) {
                    to[n][d] = load_past_cache(weight + at);
                } else {
                    ELEMENT last[8];
                    #pragma unroll
                    for (int k = 0; k < 8; k++) {
                        narrow(0.0f, last[k]);
                        if (at + k < whole) last[k] = weight[at + k];
                    }
                    to[n][d] = uint4{pair(last), pair(last + 2), pair(last + 4), pair(last + 6)};
                }
            }
        }
    };
    auto put = [&](int job, int strip, int n, int e, int lane, float sum) {
        const int m = lane / 4 + e / 2 * 8;
        const int member = (job * strips + strip) * 8 * TILES + n * 8 + lane % 4 * 2 + e % 2;
        if (m < mine && member < members) narrow(sum, out[(i64)(first + m) * outer + (i64)member * period + kind]);
    };

    uint4 next[TILES][DEEP];
    int job = blockIdx.x / period, round = 0, turn = 0;
    if (job < jobs) fetch(next, job, 0);
    if (ODD) {
        for (int m = 0; m < mine; m++) {
            #pragma unroll 16
            for (int i = threadIdx.x; i < vectors * 8; i += 512) {
                ELEMENT value;
                narrow(0.0f, value);
                if (i >= shift && i - shift < inner) value = x[(i64)(first + m) * inner + i - shift];
                held[m * pitch + i] = value;
            }
        }
        __syncthreads();
    }
    float sum[TILES][4] = {};
    while (job < jobs) {
        uint4 now[TILES][DEEP];
        #pragma unroll
        for (int n = 0; n < TILES; n++)
            #pragma unroll
            for (int d = 0; d < DEEP; d++) now[n][d] = next[n][d];
        const int job_now = job, round_now = round;
        if (++round == rounds) round = 0, job += stride;
        if (job < jobs) fetch(next, job, round);
        #pragma unroll
        for (int d = 0; d < DEEP; d++) {
            const int v = (round_now * across + part) * 4 * DEEP + d * 4 + t;
            uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
            if (v < vectors) {
                const ELEMENT* from = (ODD ? held + g * pitch : x + (i64)(first + g) * inner) + 8 * v;
                if (g < mine) low = *(const uint4*)from;
                if (TALL && g + 8 < mine) high = *(const uint4*)(from + 8 * (i64)(ODD ? pitch : inner));
            }
            #pragma unroll
            for (int n = 0; n < TILES; n++) {
                uint4& w = now[n][d];
                if (ODD && (v == 0 || v == vectors - 1)) {  // numbers of the rows before and after
                    w.x = within(w.x, 8 * v - shift, inner), w.y = within(w.y, 8 * v - shift + 2, inner);
                    w.z = within(w.z, 8 * v - shift + 4, inner), w.w = within(w.w, 8 * v - shift + 6, inner);
                }
                multiply(sum[n], low.x, high.x, low.y, high.y, w.x, w.y);
                multiply(sum[n], low.z, high.z, low.w, high.w, w.z, w.w);
            }
        }
        if (round_now + 1 < rounds) continue;
        if (across == 1) {
            #pragma unroll
            for (int n = 0; n < TILES; n++)
                #pragma unroll
                for (int e = 0; e < 4; e++) put(job_now, strip, n, e, lane, sum[n][e]);
        } else {
            float* box = sums + turn * (SUMS / 8);  // the other half may still be read
            #pragma unroll
            for (int n = 0; n < TILES; n++)
                #pragma unroll
                for (int e = 0; e < 4; e++) box[((warp * TILES + n) * 4 + e) * 32 + lane] = sum[n][e];
            __syncthreads();
            for (int i = threadIdx.x; i < strips * TILES * 128; i += blockDim.x) {
                const int s = i / (TILES * 128), place = i % (TILES * 128);
                float total = 0.0f;
                for (int p = 0; p < across; p++) total += box[(s * across + p) * TILES * 128 + place];
                put(job_now, s, place / 128, place / 32 % 4, place % 32, total);
            }
            turn ^= 1;
        }
        #pragma unroll
        for (int n = 0; n < TILES; n++)
            #pragma unroll
            for (int e = 0; e < 4; e++) sum[n][e] = 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) even_8(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* out, int rows, int inner, int outer, int tall, int across,
    int period, int pitch) {
    stream<2, 4, false, false>(x, weight, out, rows, inner, outer, tall, across, 1, pitch);
}
extern "C" __global__ void __launch_bounds__(256, 2) even_16(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* out, int rows, int inner, int outer, int tall, int across,
    int period, int pitch) {
    stream<2, 4, false, true>(x, weight, out, rows, inner, outer, tall, across, 1, pitch);
}
// Rows of the weight that begin anywhere.
extern "C" __global__ void __launch_bounds__(512, 1) odd_8(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* out, int rows, int inner, int outer, int tall, int across,
    int period, int pitch) {
    stream<1, 8, true, false>(x, weight, out, rows, inner, outer, tall, across, period, pitch);
}
extern "C" __global__ void __launch_bounds__(512, 1) odd_16(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* out, int rows, int inner, int outer, int tall, int across,
    int period, int pitch) {
    stream<1, 8, true, true>(x, weight, out, rows, inner, outer, tall, across, period, pitch);
}
"""
LANES = r"""
template <int N> struct alignas(sizeof(ELEMENT) * N) Vector { ELEMENT at[N]; };

// A block takes 8 outputs and ROWS rows of x, its threads split the inner dimension. Neighbouring blocks have the same
// outputs, whose weights the L2 cache then holds.
template <int N, int ROWS> __device__ __forceinline__ void lanes(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* out, int rows, int inner, int outer) {
    __shared__ float sums[8][8 * ROWS];
    const int chunks = (rows + ROWS - 1) / ROWS, first = blockIdx.x % chunks * ROWS, output = blockIdx.x / chunks * 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum[8][ROWS] = {};
    for (int v = threadIdx.x; v < inner / N; v += 256) {
        Vector<N> w[8], value[ROWS];
        #pragma unroll
        for (int o = 0; o < 8; o++) {
            const ELEMENT* from = weight + (i64)min(output + o, outer - 1) * inner + v * N;
            if constexpr (N > 1) {
                const uint4 got = load_past_cache(from);
                w[o] = *(const Vector<N>*)&got;
            } else {
                w[o].at[0] = *from;
            }
        }
        #pragma unroll
        for (int m = 0; m < ROWS; m++)
            value[m] = *(const Vector<N>*)(x + (i64)min(first + m, rows - 1) * inner + v * N);
        #pragma unroll
        for (int o = 0; o < 8; o++)
            #pragma unroll
            for (int m = 0; m < ROWS; m++)
                #pragma unroll
                for (int k = 0; k < N; k++) sum[o][m] += wide(w[o].at[k]) * wide(value[m].at[k]);
    }
    #pragma unroll
    for (int o = 0; o < 8; o++)
        #pragma unroll
        for (int m = 0; m < ROWS; m++) {
            #pragma unroll
            for (int step = 16; step; step /= 2) sum[o][m] += __shfl_xor_sync(0xffffffffu, sum[o][m], step);
            if (lane == 0) sums[warp][m * 8 + o] = sum[o][m];
        }
    __syncthreads();
    const int m = first + threadIdx.x / 8, o = output + threadIdx.x % 8;
    if (threadIdx.x >= 8 * ROWS || m >= rows || o >= outer) return;
    float total = 0.0f;
    #pragma unroll
    for (int w = 0; w < 8; w++) total += sums[w][threadIdx.x];
    narrow(total, out[(i64)m * outer + o]);
}

extern "C" __global__ void __launch_bounds__(256) one_row(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* out, int rows, int inner, int outer) {
    lanes<16 / sizeof(ELEMENT), 1>(x, weight, out, rows, inner, outer);
}
extern "C" __global__ void __launch_bounds__(256) some_rows(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* out, int rows, int inner, int outer) {
    lanes<16 / sizeof(ELEMENT), 4>(x, weight, out, rows, inner, outer);
}
extern "C" __global__ void __launch_bounds__(256) any_rows(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* out, int rows, int inner, int outer) {
    lanes<1, 4>(x, weight, out, rows, inner, outer);
}
"""
WORDS = r"""
__device__ __forceinline__ u32 pair(const ELEMENT* at) {
    return (u32)*(const unsigned short*)at | (u32)*(const unsigned short*)(at + 1) << 16;
}
// What of two neighbours lies within a row, zeros for the rest.
__device__ __forceinline__ u32 within(u32 word, int k, int inner) {
    return (k >= 0 && k < inner ? word & 0xffffu : 0) | (k >= -1 && k < inner - 1 ? word & 0xffff0000u : 0);
}
"""
NAMES = {torch.float16: ("__half", "f16"), torch.bfloat16: ("__nv_bfloat16", "bf16"), torch.float32: ("float", "")}


@functools.cache
def modules(dtype):
    """(with tensor cores, without)."""
    if dtype not in NAMES:
        raise ValueError(f"{dtype} is not multiplied here")
    name, kind = NAMES[dtype]
    flags = [f"-DELEMENT={name}", f"-DSUMS={SUMS}"]
    tensor = load_cuda(COMMON + WORDS + TENSOR, flags=[*flags, f"-DKIND={kind}"]) if kind else None
    return tensor, load_cuda(COMMON + LANES, flags=flags)


@functools.lru_cache(maxsize=256)
def plan(dtype, rows, inner, outer, aligned):
    """(launch, what it takes after x, the weight and the result)."""
    tensor, plain = modules(dtype)
    processors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    if tensor and aligned and inner and inner % 8 == 0:
        tall = 8 if rows <= 8 else 16
        strips = 1
        most = min(WARPS, 1 if rows <= 4 else STRIPS // 2 if rows <= 8 else STRIPS)
        while strips * 2 <= most and outer >= 16 * 2 * strips * processors:  # x is read once for each block's outputs
            strips *= 2
        jobs = -(-outer // (16 * strips))
        kernel = tensor.even_8 if tall == 8 else tensor.even_16
        launch = kernel[(min(jobs, BLOCKS * processors), -(-rows // tall)), (32 * WARPS,), SUMS]
        return launch, (rows, inner, outer, tall, WARPS // strips, 1, 0)
    period = 8 // math.gcd(inner, 8)
    pitch = -(-(inner + 8) // 64) * 64 + 32  # rows 64 bytes apart in the banks
    tall = min(16, rows, (ROOM - SUMS) // (2 * pitch))
    if tensor and aligned and inner and tall:
        jobs = -(-outer // (8 * period))
        grid = (min(jobs, processors // period) * period, -(-rows // tall))
        kernel = tensor.odd_8 if tall <= 8 else tensor.odd_16
        launch = kernel[grid, (32 * ODD_WARPS,), SUMS + tall * pitch * 2]
        return launch, (rows, inner, outer, tall, ODD_WARPS, period, pitch)
    vectors = aligned and inner * dtype.itemsize % 16 == 0
    chunk = 1 if rows == 1 and vectors else 4
    kernel = plain.any_rows if not vectors else plain.one_row if rows == 1 else plain.some_rows
    return kernel[(-(-outer // 8) * -(-rows // chunk),), (256,), 0], (rows, inner, outer)


class ModelNew(nn.Module):
    def __init__(self, inner, outer, dtype="float32"):
        super().__init__()
        self.linear = nn.Linear(inner, outer, bias=False, dtype=getattr(torch, dtype))
        modules(self.linear.weight.dtype)

    def forward(self, x):
        weight = self.linear.weight.contiguous()
        outer, inner = weight.shape
        if x.shape[-1] != inner or x.dtype is not weight.dtype:
            raise ValueError(f"{weight.dtype} rows of {inner} are needed")
        x = x.contiguous()
        out = torch.empty(*x.shape[:-1], outer, dtype=x.dtype, device=x.device)
        count = out.numel()
        if count:
            aligned = (x.data_ptr() | weight.data_ptr()) % 16 == 0
            launch, rest = plan(x.dtype, count // outer, inner, outer, aligned)
            launch(x, weight, out, *rest)
        return out
