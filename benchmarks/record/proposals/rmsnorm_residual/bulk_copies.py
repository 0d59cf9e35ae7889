"""Forward holds its rows in registers. Backward is one block for each multiprocessor, which bulk copies keep three
tiles ahead in shared memory; it makes the rows' scales anew and holds the weight's gradient in registers.

Bound by memory: 7 tensors of traffic, forward and backward. What 132 blocks found of the weight's gradient is added up
by a launch of 3 us.
"""

import functools

import torch
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"AHEAD_HOLD": [8, 16, 32], "AHEAD_THREADS": [128, 256, 512], "HOLD": [8, 16], "TILE": [24, 56, 112]}
AHEAD_HOLD = 16
"""Elements of a row that a thread holds in forward, if 512 threads are enough for the row then."""
AHEAD_THREADS = 256
HOLD = 16
"""The same in backward."""
TILE = 56
"""Thousands of bytes of x, residual and dy that a block works on at a time."""
THREADS = 512
ROOM = 232448
LARGEST = 32768

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float& to) { to = value; }
__device__ __forceinline__ void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

struct alignas(sizeof(ELEMENT) * WIDTH) Vector { ELEMENT at[WIDTH]; };
__device__ __forceinline__ uint4 load_past_cache(const uint4* from) {
    uint4 got;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w) : "l"(from));
    return got;
}
// The weight stays in the first cache, rows do not; where rows begin anywhere, neighbours share what they load.
__device__ __forceinline__ Vector load_row(const ELEMENT* from) {
    if constexpr (WIDTH > 1) {
        const uint4 got = load_past_cache((const uint4*)from);
        return *(const Vector*)&got;
    } else {
        return Vector{{__ldg(from)}};
    }
}
__device__ __forceinline__ void store_once(ELEMENT* to, const Vector& made) {
    if constexpr (WIDTH > 1) __stcs((uint4*)to, *(const uint4*)&made);
    else __stcs(to, made.at[0]);
}
__device__ __forceinline__ float over_warp(float value) {
    #pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

__device__ __forceinline__ u32 at_shared(const void* at) { return (u32)__cvta_generic_to_shared(at); }
__device__ __forceinline__ void open_barrier(u64* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at_shared(barrier)) : "memory");
}
__device__ __forceinline__ void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void expect_bytes(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
        :: "r"(at_shared(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_bytes(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(at_shared(to)), "l"(from), "r"(bytes), "r"(at_shared(barrier)) : "memory");
}
__device__ __forceinline__ void await_bytes(u64* barrier, u32 parity) {
    u32 done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(at_shared(barrier)), "r"(parity) : "memory");
    }
}

// AHEAD_LANES threads hold a row, AHEAD_EACH vectors each. The weight is late: 1,536 threads with what they load in 40
// registers keep the memory busier than 1,024 of 60.
extern "C" __global__ void __launch_bounds__(AHEAD_THREADS, AHEAD_BLOCKS) forward_rows(
    const ELEMENT* x, const ELEMENT* residual, const ELEMENT* weight, ELEMENT* out,
    int64_t rows, int hidden, float eps) {
    __shared__ float parts[16];
    const int lane = threadIdx.x % AHEAD_LANES, vectors = hidden / WIDTH;
    const i64 row = (i64)blockIdx.x * (blockDim.x / AHEAD_LANES) + threadIdx.x / AHEAD_LANES;
    const bool mine = row < rows;
    const i64 base = row * hidden;
    float h[AHEAD_EACH][WIDTH], sum = 0.0f;
    Vector one[AHEAD_EACH], other[AHEAD_EACH];
    #pragma unroll
    for (int e = 0; e < AHEAD_EACH; e++) {
        const int v = lane + e * AHEAD_LANES;
        if (!mine || v >= vectors) continue;
        one[e] = load_row(x + base + v * WIDTH), other[e] = load_row(residual + base + v * WIDTH);
    }
    #pragma unroll
    for (int e = 0; e < AHEAD_EACH; e++) {
        if (!mine || lane + e * AHEAD_LANES >= vectors) continue;
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            h[e][k] = wide(one[e].at[k]) + wide(other[e].at[k]);
            sum += h[e][k] * h[e][k];
        }
    }
    sum = over_warp(sum);
    if (AHEAD_LANES > 32) {
        const int warp = threadIdx.x / 32, first = warp / (AHEAD_LANES / 32) * (AHEAD_LANES / 32);
        if (threadIdx.x % 32 == 0) parts[warp] = sum;
        __syncthreads();
        sum = 0.0f;
        #pragma unroll
        for (int k = 0; k < AHEAD_LANES / 32; k++) sum += parts[first + k];
    }
    const float scale = rsqrtf(sum / hidden + eps);
    #pragma unroll
    for (int e = 0; e < AHEAD_EACH; e++) {
        const int v = lane + e * AHEAD_LANES;
        if (!mine || v >= vectors) continue;
        const Vector factor = *(const Vector*)(weight + v * WIDTH);
        Vector made;
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) narrow(h[e][k] * scale * wide(factor.at[k]), made.at[k]);
        store_once(out + base + v * WIDTH, made);
    }
}

// LANES threads have a row of the tile, EACH vectors each. Slots begin at the 16 bytes in which their tile begins.
extern "C" __global__ void __launch_bounds__(512, 1) backward_rows(
    const ELEMENT* x, const ELEMENT* residual, const ELEMENT* weight, const ELEMENT* dy, ELEMENT* dx, float* partial,
    int64_t rows, int hidden, float eps, int stages, int pitch) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float parts[2][16][2];
    __shared__ u64 barriers[16];
    constexpr int GROUPS = 512 / LANES, SIZE = sizeof(ELEMENT);
    constexpr bool HELD = EACH * WIDTH <= 16;  // else rows are read twice from shared memory, and the weight for each
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, vectors = hidden / WIDTH;
    const i64 tiles = (rows + GROUPS - 1) / GROUPS, whole = rows * hidden * SIZE / 16 * 16;

    const ELEMENT* tensors[3] = {x, residual, dy};
    auto fetch = [&](i64 number) {
        const i64 tile = tiles - 1 - (blockIdx.x + number * gridDim.x);  // forward left the last rows in the L2 cache
        if (tile < 0) return;
        const i64 from = tile * GROUPS * hidden * SIZE / 16 * 16;
        const i64 to = min((min((tile + 1) * GROUPS, (i64)rows) * hidden * SIZE + 15) / 16 * 16, whole);
        const int slot = (int)(number % stages);
        const u32 bytes = to > from ? (u32)(to - from) : 0;
        expect_bytes(&barriers[slot], 3 * bytes);
        if (!bytes) return;
        #pragma unroll
        for (int t = 0; t < 3; t++)
            copy_bytes(memory + (slot * 3 + t) * pitch, (const char*)tensors[t] + from, bytes, &barriers[slot]);
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; s++) open_barrier(&barriers[s]);
        fence_copies();
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int s = 0; s < stages; s++) fetch(s);

    float w[HELD ? EACH : 1][WIDTH], dw[EACH][WIDTH];
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = lane + e * LANES;
        Vector got = {};
        if (HELD && v < vectors) got = *(const Vector*)(weight + v * WIDTH);
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            dw[e][k] = 0.0f;
            if (HELD) w[HELD ? e : 0][k] = wide(got.at[k]);
        }
    }
    int slot = 0, parity = 0;
    i64 number = 0;
    for (i64 tile = tiles - 1 - blockIdx.x; tile >= 0; tile -= gridDim.x, number++) {
        const i64 start = tile * GROUPS * hidden;
        const int lead = (int)(start * SIZE % 16) / SIZE;
        const i64 row = tile * GROUPS + group;
        const bool mine = row < rows;
        const i64 end = min((tile + 1) * GROUPS, (i64)rows) * hidden;
        unsigned char* held = memory + slot * 3 * pitch;
        await_bytes(&barriers[slot], parity);
        if (end * SIZE > whole) {  // what lies behind the last 16 bytes of the tensors
            const i64 from = max(start, whole / SIZE);
            if (threadIdx.x < 3 * (int)(end - from)) {
                const int t = threadIdx.x % 3;
                const i64 i = from + threadIdx.x / 3;
                ((ELEMENT*)(held + t * pitch))[i - start + lead] = tensors[t][i];
            }
            fence_copies();
            __syncthreads();
        }
        const ELEMENT* xs = (const ELEMENT*)held + lead + group * hidden;
        const ELEMENT* rs = (const ELEMENT*)(held + pitch) + lead + group * hidden;
        const ELEMENT* gs = (const ELEMENT*)(held + 2 * pitch) + lead + group * hidden;
        float h[HELD ? EACH : 1][WIDTH], g[HELD ? EACH : 1][WIDTH], f[WIDTH];
        auto read = [&](int e, int v) {
            const Vector one = *(const Vector*)(xs + v * WIDTH), other = *(const Vector*)(rs + v * WIDTH);
            const Vector grad = *(const Vector*)(gs + v * WIDTH);
            #pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                h[e][k] = wide(one.at[k]) + wide(other.at[k]);
                g[e][k] = wide(grad.at[k]);
            }
        };
        auto factors = [&](int e, int v) {
            Vector got;
            if (!HELD) got = *(const Vector*)(weight + v * WIDTH);
            #pragma unroll
            for (int k = 0; k < WIDTH; k++) f[k] = HELD ? w[HELD ? e : 0][k] : wide(got.at[k]);
        };
        float square = 0.0f, dot = 0.0f;
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int v = lane + e * LANES, at = HELD ? e : 0;
            if (!mine || v >= vectors) continue;
            read(at, v), factors(e, v);
            #pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                square += h[at][k] * h[at][k];
                dot += g[at][k] * h[at][k] * f[k];
            }
        }
        square = over_warp(square), dot = over_warp(dot);
        const int warp = threadIdx.x / 32, turn = (int)(number % 2);
        if (LANES > 32 && threadIdx.x % 32 == 0) parts[turn][warp][0] = square, parts[turn][warp][1] = dot;
        __syncthreads();
        if (HELD && threadIdx.x == 0) fetch(number + stages);  // all have read the tile
        if (LANES > 32) {
            const int first = warp / (LANES / 32) * (LANES / 32);
            square = dot = 0.0f;
            #pragma unroll
            for (int k = 0; k < LANES / 32; k++) square += parts[turn][first + k][0], dot += parts[turn][first + k][1];
        }
        const float scale = rsqrtf(square / hidden + eps), pull = dot * scale / hidden * scale * scale;
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int v = lane + e * LANES, at = HELD ? e : 0;
            if (!mine || v >= vectors) continue;
            if (!HELD) read(at, v);
            factors(e, v);
            Vector made;
            #pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                dw[e][k] += g[at][k] * h[at][k] * scale;
                narrow(g[at][k] * f[k] * scale - h[at][k] * pull, made.at[k]);
            }
            store_once(dx + row * hidden + v * WIDTH, made);
        }
        if (!HELD) {
            __syncthreads();
            if (threadIdx.x == 0) fetch(number + stages);
        }
        if (++slot == stages) slot = 0, parity ^= 1;
    }

    float* sums = (float*)memory;
    if (GROUPS > 1) __syncthreads();
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = lane + e * LANES;
        if (v >= vectors) continue;
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            if (GROUPS > 1) sums[group * hidden + v * WIDTH + k] = dw[e][k];
            else partial[(i64)blockIdx.x * hidden + v * WIDTH + k] = dw[e][k];
        }
    }
    if (GROUPS == 1) return;
    __syncthreads();
    for (int i = threadIdx.x; i < hidden; i += 512) {
        float sum = 0.0f;
        for (int k = 0; k < GROUPS; k++) sum += sums[k * hidden + i];
        partial[(i64)blockIdx.x * hidden + i] = sum;
    }
}

// Sums down 32 columns, 32 rows at a time.
extern "C" __global__ void __launch_bounds__(1024) add_up(const float* partial, ELEMENT* out, int count, int hidden) {
    __shared__ float parts[32][33];
    const int column = blockIdx.x * 32 + threadIdx.x % 32, line = threadIdx.x / 32;
    float sum = 0.0f;
    if (column < hidden) {
        #pragma unroll 5
        for (int i = line; i < count; i += 32) sum += partial[(i64)i * hidden + column];
    }
    parts[line][threadIdx.x % 32] = sum;
    __syncthreads();
    sum = over_warp(parts[threadIdx.x % 32][line]);
    const int place = blockIdx.x * 32 + line;
    if (threadIdx.x % 32 == 0 && place < hidden) narrow(sum, out[place]);
}
"""
NAMES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", torch.float32: "float"}


@functools.cache
def kernels_for(*flags):
    return load_cuda(SOURCE, flags=flags)


@functools.cache
def plan(dtype, hidden):
    """(module, threads and rows of a block forward, rows of a tile, its slots, bytes of one tensor in a slot)."""
    size = torch.empty((), dtype=dtype).itemsize
    if hidden > LARGEST or dtype not in NAMES:
        raise ValueError(f"{dtype} rows of {hidden} do not stay in registers")
    width = 16 // size if hidden % (16 // size) == 0 else 1
    ahead = lanes = 32
    while ahead < 512 and ahead * AHEAD_HOLD < hidden:
        ahead *= 2
    while lanes < THREADS and (lanes * HOLD < hidden or 3 * THREADS // lanes * hidden * size > TILE * 1000):
        lanes *= 2
    tall = THREADS // lanes
    pitch = -(-(tall * hidden * size + (0 if width > 1 else 30)) // 16) * 16
    stages = min(16, (ROOM - 1024) // (3 * pitch))
    if not stages:
        raise ValueError(f"{dtype} rows of {hidden} do not fit into shared memory")
    threads, each = max(ahead, AHEAD_THREADS), -(-hidden // (ahead * width))
    named = {"WIDTH": width, "LANES": lanes, "EACH": -(-hidden // (lanes * width))}
    named |= {"AHEAD_LANES": ahead, "AHEAD_EACH": each, "AHEAD_THREADS": threads}
    loaded = 2 * each * min(width, 4)  # registers for x and residual as they come; the sums of 16 bits take twice that
    named["AHEAD_BLOCKS"] = max(1, (1536 if loaded <= 20 else 1024 if loaded <= 32 else 512) // threads)
    kernels = kernels_for(f"-DELEMENT={NAMES[dtype]}", *(f"-D{name}={value}" for name, value in named.items()))
    return kernels, (threads,), threads // ahead, tall, stages, pitch


@functools.cache
def processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


def aligned(tensor):
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


class Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        x, residual, weight = aligned(x), aligned(residual), aligned(weight)
        ctx.save_for_backward(x, residual, weight)
        ctx.eps = eps
        out, hidden = torch.empty_like(x), weight.numel()
        if out.numel():
            rows = out.numel() // hidden
            kernels, block, tall, _tall, _stages, _pitch = plan(x.dtype, hidden)
            kernels.forward_rows[(-(-rows // tall),), block, 0](x, residual, weight, out, rows, hidden, eps)
        return out

    @staticmethod
    def backward(ctx, dy):
        x, residual, weight = ctx.saved_tensors
        dy, hidden = aligned(dy), weight.numel()
        dx = torch.empty_like(x)
        rows = dx.numel() // max(1, hidden)
        if not rows or not hidden:
            return dx, dx, torch.zeros_like(weight), None
        kernels, _block, _tall, tall, stages, pitch = plan(x.dtype, hidden)
        blocks = min(processors(x.device), -(-rows // tall))
        dweight = torch.empty_like(weight)
        partial = torch.empty((blocks, hidden), dtype=torch.float32, device=x.device)
        kernels.backward_rows[(blocks,), (THREADS,), stages * 3 * pitch](
            x, residual, weight, dy, dx, partial, rows, hidden, ctx.eps, stages, pitch
        )
        kernels.add_up[(-(-hidden // 32),), (1024,), 0](partial, dweight, blocks, hidden)
        return dx, dx, dweight, None


class ModelNew(nn.Module):
    def __init__(self, hidden, eps=1e-6, dtype="float32"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
        self.eps = eps
        if hidden:
            plan(self.weight.dtype, hidden)

    def forward(self, x, residual):
        weight = self.weight
        if x.shape != residual.shape or x.shape[-1:] != weight.shape or not x.dtype == residual.dtype == weight.dtype:
            raise ValueError(f"two alike are needed, {weight.dtype} rows of {weight.numel()}")
        return Normed.apply(x, residual, weight, self.eps)
