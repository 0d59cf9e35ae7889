"""The mask is hashed anew in each direction and never stored. Forward holds its rows in registers. Backward is one
block for each multiprocessor, which bulk copies keep tiles of rows ahead in shared memory: it reads the sum that
forward returns, with a mean and a scale for each row, and holds the gradients of weight and bias in registers.
Autograd's function is in C++: a call's time on the host is what most workloads wait for.

Bound by memory: 9 tensors of traffic, forward and backward. What 132 blocks found of the gradients of weight and bias
is added up by a small launch.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"AHEAD_HOLD": [8, 16, 32], "AHEAD_THREADS": [128, 256, 512], "HOLD": [8, 16], "TILE": [24, 56, 112]}
AHEAD_HOLD = 16
"""Elements of a row that a thread holds in forward, if 512 threads are enough for the row then."""
AHEAD_THREADS = 256
HOLD = 16
"""The same in backward."""
TILE = 56
"""Thousands of bytes of the sum and of both cotangents that a block works on at a time."""

KERNELS = r"""
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float& to) { to = value; }
__device__ __forceinline__ void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }
// Two at a time: one instruction narrows a pair, where a single number takes one of a quarter of the speed; and a
// bfloat16 that is half a word is widened by one, not by two.
__device__ __forceinline__ void widen(const float* from, float* to) { to[0] = from[0], to[1] = from[1]; }
__device__ __forceinline__ void widen(const __half* from, float* to) {
    const float2 pair = __half22float2(*(const __half2*)from);
    to[0] = pair.x, to[1] = pair.y;
}
__device__ __forceinline__ void widen(const __nv_bfloat16* from, float* to) {
    const u32 word = *(const u32*)from;
    to[0] = __uint_as_float(word << 16), to[1] = __uint_as_float(word & 0xffff0000u);
}
__device__ __forceinline__ void narrow(float low, float high, float* to) { to[0] = low, to[1] = high; }
__device__ __forceinline__ void narrow(float low, float high, __half* to) {
    *(__half2*)to = __floats2half2_rn(low, high);
}
__device__ __forceinline__ void narrow(float low, float high, __nv_bfloat16* to) {
    *(__nv_bfloat162*)to = __floats2bfloat162_rn(low, high);
}

template <class T, int WIDTH> struct alignas(sizeof(T) * WIDTH) Vector { T at[WIDTH]; };
template <class T, int WIDTH>
__device__ __forceinline__ void widened(const Vector<T, WIDTH>& from, float (&to)[WIDTH]) {
    #pragma unroll
    for (int k = 0; k + 1 < WIDTH; k += 2) widen(from.at + k, to + k);
    if (WIDTH == 1) to[0] = wide(from.at[0]);
}
template <class T, int WIDTH> __device__ __forceinline__ Vector<T, WIDTH> narrowed(const float (&value)[WIDTH]) {
    Vector<T, WIDTH> made;
    #pragma unroll
    for (int k = 0; k + 1 < WIDTH; k += 2) narrow(value[k], value[k + 1], made.at + k);
    if (WIDTH == 1) narrow(value[0], made.at[0]);
    return made;
}
__device__ __forceinline__ uint4 load_past_cache(const uint4* from) {
    uint4 got;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w) : "l"(from));
    return got;
}
// Weight and bias stay in the first cache, rows do not; where rows begin anywhere, neighbours share what they load.
template <class T, int WIDTH> __device__ __forceinline__ Vector<T, WIDTH> load_row(const T* from) {
    if constexpr (WIDTH > 1) {
        const uint4 got = load_past_cache((const uint4*)from);
        return *(const Vector<T, WIDTH>*)&got;
    } else {
        return Vector<T, WIDTH>{{__ldg(from)}};
    }
}
template <class T, int WIDTH> __device__ __forceinline__ void store_once(T* to, const Vector<T, WIDTH>& made) {
    if constexpr (WIDTH > 1) __stcs((uint4*)to, *(const uint4*)&made);
    else __stcs(to, made.at[0]);
}
__device__ __forceinline__ float over_warp(float value) {
    #pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
// The sum of what each of the warps that share a row has left in `parts`, for all of their threads.
__device__ __forceinline__ float over_row(const float* parts, int warps) {
    const int warp = threadIdx.x / 32;
    float value = parts[(warp & -warps) + (threadIdx.x & (warps - 1))];
    for (int step = warps / 2; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
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

// The mask: all arithmetic is that of 32 bits, so the place may be cut off to them, and the seed too.
constexpr u32 NEXT = 0x9E3779B1u;  // what one place adds
struct Rule {
    u32 least;
    bool any;  // else nothing is kept: `least` is 2^32 then
    float factor;
    __device__ __forceinline__ bool keeps(u32 bits) const {
        bits = (bits ^ (bits >> 16)) * 0x7FEB352Du;
        bits = (bits ^ (bits >> 15)) * 0x846CA68Bu;
        return (bits ^ (bits >> 16)) >= least && any;
    }
};
__device__ __forceinline__ u32 key_of(const i64* seed) { return (u32)__ldg(seed) * 0x85EBCA77u; }

// Blocks of 512 that a multiprocessor is to have room for, so that 48 KB or more of what they load is on its way.
constexpr int room(int loaded, int elements) { return loaded <= 8 ? 3 : elements <= 16 ? 2 : 1; }

// `lanes` threads hold a row, EACH vectors each. `stats`, each row's mean and scale, may be null.
template <int WIDTH, int EACH> constexpr int ROOM = room(2 * EACH * (WIDTH < 4 ? WIDTH : 4), WIDTH * EACH);
template <class T, int WIDTH, int EACH> __global__ void __launch_bounds__(512, ROOM<WIDTH, EACH>) rows_forward(
    const T* x, const T* residual, const i64* seed, const T* weight, const T* bias, T* out, T* total, float2* stats,
    i64 rows, int hidden, float eps, Rule rule, int lanes) {
    __shared__ float parts[2][16];
    typedef Vector<T, WIDTH> V;
    const int lane = threadIdx.x & (lanes - 1), vectors = hidden / WIDTH;
    const i64 row = (i64)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    const bool mine = row < rows;
    const i64 base = row * hidden;
    V one[EACH], other[EACH];
    float h[EACH][WIDTH], sum = 0.0f, spread = 0.0f;
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = lane + e * lanes;
        if (!mine || v >= vectors) continue;
        one[e] = load_row<T, WIDTH>(x + base + v * WIDTH), other[e] = load_row<T, WIDTH>(residual + base + v * WIDTH);
    }
    const u32 key = key_of(seed);
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = lane + e * lanes;
        if (!mine || v >= vectors) continue;
        const u32 bits = (u32)(base + v * WIDTH) * NEXT + key;
        float value[WIDTH];
        widened<T, WIDTH>(one[e], value), widened<T, WIDTH>(other[e], h[e]);
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) h[e][k] += rule.keeps(bits + k * NEXT) ? value[k] * rule.factor : 0.0f;
        const V made = narrowed<T, WIDTH>(h[e]);
        *(V*)(total + base + v * WIDTH) = made;  // backward begins with the last ones, which the L2 cache still has
        widened<T, WIDTH>(made, h[e]);  // the statistics are of what backward will read
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) sum += h[e][k];
    }
    sum = over_warp(sum);
    if (lanes > 32) {
        if (threadIdx.x % 32 == 0) parts[0][threadIdx.x / 32] = sum;
        __syncthreads();
        sum = over_row(parts[0], lanes / 32);
    }
    const float mean = sum / hidden;
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (!mine || lane + e * lanes >= vectors) continue;
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            const float away = h[e][k] - mean;
            spread += away * away;
        }
    }
    spread = over_warp(spread);
    if (lanes > 32) {
        if (threadIdx.x % 32 == 0) parts[1][threadIdx.x / 32] = spread;
        __syncthreads();
        spread = over_row(parts[1], lanes / 32);
    }
    const float scale = rsqrtf(spread / hidden + eps);
    if (stats && mine && lane == 0) stats[row] = make_float2(mean, scale);
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = lane + e * lanes;
        if (!mine || v >= vectors) continue;
        const V factor = *(const V*)(weight + v * WIDTH), offset = *(const V*)(bias + v * WIDTH);
        float by[WIDTH], value[WIDTH];
        widened<T, WIDTH>(factor, by), widened<T, WIDTH>(offset, value);
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) value[k] += (h[e][k] - mean) * scale * by[k];
        store_once<T, WIDTH>(out + base + v * WIDTH, narrowed<T, WIDTH>(value));
    }
}

// `lanes` threads have a row of the tile, EACH vectors each. Slots begin at the 16 bytes in which their tile begins.
// `dx`, `dresidual` and `partial` are null where nobody wants them.
template <class T, int WIDTH, int EACH> __global__ void __launch_bounds__(512, 1) rows_backward(
    const T* total, const i64* seed, const T* weight, const float2* stats, const T* dy, const T* dtotal, T* dx,
    T* dresidual, float* partial, i64 rows, int hidden, Rule rule, int lanes, int stages, int pitch) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float parts[2][2][16];
    __shared__ u64 barriers[16];
    typedef Vector<T, WIDTH> V;
    constexpr int SIZE = sizeof(T);
    constexpr bool HELD = EACH * WIDTH <= 16;  // else rows are read twice from shared memory, and the weight for each
    const int groups = 512 / lanes, lane = threadIdx.x & (lanes - 1), group = threadIdx.x / lanes;
    const int vectors = hidden / WIDTH;
    const float inverse = 1.0f / hidden;
    const i64 tiles = (rows + groups - 1) / groups, whole = rows * hidden * SIZE / 16 * 16;

    const T* tensors[3] = {total, dy, dtotal};
    auto fetch = [&](i64 number) {
        const i64 tile = tiles - 1 - (blockIdx.x + number * gridDim.x);  // forward left the last rows in the L2 cache
        if (tile < 0) return;
        const i64 from = tile * groups * hidden * SIZE / 16 * 16;
        const i64 to = min((min((tile + 1) * groups, rows) * hidden * SIZE + 15) / 16 * 16, whole);
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

    const u32 key = key_of(seed);
    // A mean and a scale: of the next tile while this one's is at work.
    auto described = [&](i64 tile) {
        const i64 row = tile * groups + group;
        return tile >= 0 && row < rows ? __ldg(stats + row) : make_float2(0.0f, 0.0f);
    };
    float2 next = described(tiles - 1 - blockIdx.x);
    V w[HELD ? EACH : 1];
    float dw[EACH][WIDTH], db[EACH][WIDTH];
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = lane + e * lanes;
        if (HELD && v < vectors) w[HELD ? e : 0] = *(const V*)(weight + v * WIDTH);
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) dw[e][k] = db[e][k] = 0.0f;
    }
    int slot = 0, parity = 0;
    i64 number = 0;
    for (i64 tile = tiles - 1 - blockIdx.x; tile >= 0; tile -= gridDim.x, number++) {
        const float mean = next.x, scale = next.y;
        next = described(tile - gridDim.x);
        const i64 start = tile * groups * hidden;
        const int lead = (int)(start * SIZE % 16) / SIZE;
        const i64 row = tile * groups + group;
        const bool mine = row < rows;
        const i64 end = min((tile + 1) * groups, rows) * hidden;
        unsigned char* held = memory + slot * 3 * pitch;
        await_bytes(&barriers[slot], parity);
        if (end * SIZE > whole) {  // what lies behind the last 16 bytes of the tensors
            const i64 from = max(start, whole / SIZE);
            if (threadIdx.x < 3 * (int)(end - from)) {
                const int t = threadIdx.x % 3;
                const i64 i = from + threadIdx.x / 3;
                ((T*)(held + t * pitch))[i - start + lead] = tensors[t][i];
            }
            fence_copies();
            __syncthreads();
        }
        const T* hs = (const T*)held + lead + group * hidden;
        const T* gs = (const T*)(held + pitch) + lead + group * hidden;
        const T* ts = (const T*)(held + 2 * pitch) + lead + group * hidden;
        V through[HELD ? EACH : 1];
        float normed[HELD ? EACH : 1][WIDTH], slope[HELD ? EACH : 1][WIDTH], factor[WIDTH];
        auto read = [&](int e, int v) {
            const V h = *(const V*)(hs + v * WIDTH), g = *(const V*)(gs + v * WIDTH);
            widened<T, WIDTH>(h, normed[e]), widened<T, WIDTH>(g, slope[e]);
            if (!HELD) w[0] = *(const V*)(weight + v * WIDTH);
            widened<T, WIDTH>(w[e], factor);
            #pragma unroll
            for (int k = 0; k < WIDTH; k++) normed[e][k] = (normed[e][k] - mean) * scale;
        };
        float along = 0.0f, level = 0.0f;
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int v = lane + e * lanes, at = HELD ? e : 0;
            if (!mine || v >= vectors) continue;
            read(at, v);
            if (HELD) through[at] = *(const V*)(ts + v * WIDTH);
            #pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                dw[e][k] += slope[at][k] * normed[at][k];
                db[e][k] += slope[at][k];
                slope[at][k] *= factor[k];
                along += slope[at][k] * normed[at][k];
                level += slope[at][k];
            }
        }
        along = over_warp(along), level = over_warp(level);
        float (*left)[16] = parts[number % 2];
        if (lanes > 32 && threadIdx.x % 32 == 0) left[0][threadIdx.x / 32] = along, left[1][threadIdx.x / 32] = level;
        __syncthreads();
        if (HELD && threadIdx.x == 0) fetch(number + stages);  // all have read the tile
        if (lanes > 32) along = over_row(left[0], lanes / 32), level = over_row(left[1], lanes / 32);
        along *= inverse, level *= inverse;
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int v = lane + e * lanes, at = HELD ? e : 0;
            if (!mine || v >= vectors) continue;
            if (!HELD) read(at, v), through[at] = *(const V*)(ts + v * WIDTH);
            const i64 place = row * hidden + v * WIDTH;
            const u32 bits = (u32)place * NEXT + key;
            float found[WIDTH], masked[WIDTH];
            widened<T, WIDTH>(through[at], found);
            #pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                if (!HELD) slope[at][k] *= factor[k];
                found[k] += scale * (slope[at][k] - level - normed[at][k] * along);
                // Multiplied last: where nothing is kept the factor is infinite, and autograd makes NaN, too.
                masked[k] = (rule.keeps(bits + k * NEXT) ? found[k] : 0.0f) * rule.factor;
            }
            if (dresidual) store_once<T, WIDTH>(dresidual + place, narrowed<T, WIDTH>(found));
            if (dx) store_once<T, WIDTH>(dx + place, narrowed<T, WIDTH>(masked));
        }
        if (!HELD) {
            __syncthreads();
            if (threadIdx.x == 0) fetch(number + stages);
        }
        if (++slot == stages) slot = 0, parity ^= 1;
    }

    if (!partial) return;
    partial += (i64)blockIdx.x * 2 * hidden;
    float* sums = groups > 1 ? (float*)memory + group * 2 * hidden : partial;
    if (groups > 1) __syncthreads();
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = lane + e * lanes;
        if (v >= vectors) continue;
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) sums[v * WIDTH + k] = dw[e][k], sums[hidden + v * WIDTH + k] = db[e][k];
    }
    if (groups == 1) return;
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * hidden; i += 512) {
        float sum = 0.0f;
        for (int k = 0; k < groups; k++) sum += ((const float*)memory)[k * 2 * hidden + i];
        partial[i] = sum;
    }
}

// Sums down 32 columns, 32 rows at a time: of the weight's gradient, then of the bias's. Either may be null.
template <class T> __global__ void __launch_bounds__(1024) add_up(
    const float* partial, T* dweight, T* dbias, int count, int hidden) {
    __shared__ float parts[32][33];
    const int column = blockIdx.x * 32 + threadIdx.x % 32, line = threadIdx.x / 32;
    float sum = 0.0f;
    if (column < 2 * hidden) {
        #pragma unroll 5
        for (int i = line; i < count; i += 32) sum += partial[(i64)i * 2 * hidden + column];
    }
    parts[line][threadIdx.x % 32] = sum;
    __syncthreads();
    sum = over_warp(parts[threadIdx.x % 32][line]);
    const int place = blockIdx.x * 32 + line;
    T* to = place < hidden ? dweight : dbias;
    if (threadIdx.x % 32 == 0 && place < 2 * hidden && to) narrow(sum, to[place < hidden ? place : place - hidden]);
}

// Calls `go` with the type, the elements of a vector and how many vectors a thread has: the fewest that are enough.
template <class T, int WIDTH, int EACH> struct Kind {
    typedef T Element;
    static constexpr int width = WIDTH, each = EACH;
};
template <class T, class Go> cudaError_t with_each(int hidden, int lanes, Go go) {
    constexpr int WIDTH = 16 / sizeof(T);
    const int held = (hidden + lanes - 1) / lanes;
    if (hidden % WIDTH) {
        if (held <= 10) return go(Kind<T, 1, 10>());
        if (held <= 16) return go(Kind<T, 1, 16>());
        return go(Kind<T, 1, 32>());
    }
    if (held <= 8) return go(Kind<T, WIDTH, 8 / WIDTH>());
    if (held <= 16) return go(Kind<T, WIDTH, 16 / WIDTH>());
    return go(Kind<T, WIDTH, 32 / WIDTH>());
}
template <class Go> cudaError_t with_kind(char type, int hidden, int lanes, Go go) {
    if (type == 'h') return with_each<__half>(hidden, lanes, go);
    if (type == 'b') return with_each<__nv_bfloat16>(hidden, lanes, go);
    return with_each<float>(hidden, lanes, go);
}
// The share that is dropped is that of the hashes below p * 2^32, cut off to an integer.
static Rule rule_of(double p) {
    const double least = p * 4294967296.0;
    const bool any = least < 4294967296.0;
    return Rule{least > 0.0 && any ? (u32)least : 0u, any, (float)(1.0 / (1.0 - p))};
}

// `stats` may be null.
cudaError_t forward_launch(
    char type, const void* x, const void* residual, const int64_t* seed, const void* weight, const void* bias,
    void* out, void* total, float* stats, i64 rows, int hidden, float eps, double p, int lanes, int threads,
    cudaStream_t stream) {
    return with_kind(type, hidden, lanes, [&](auto kind) {
        typedef decltype(kind) K;
        typedef typename K::Element T;
        const i64 tall = threads / lanes;
        const unsigned blocks = (unsigned)((rows + tall - 1) / tall);
        rows_forward<T, K::width, K::each><<<blocks, threads, 0, stream>>>(
            (const T*)x, (const T*)residual, (const i64*)seed, (const T*)weight, (const T*)bias, (T*)out, (T*)total,
            (float2*)stats, rows, hidden, eps, rule_of(p), lanes);
        return cudaGetLastError();
    });
}
// `dx`, `dresidual`, `partial`, `dweight` and `dbias` may be null.
cudaError_t backward_launch(
    char type, const void* total, const int64_t* seed, const void* weight, const float* stats, const void* dy,
    const void* dtotal, void* dx, void* dresidual, float* partial, void* dweight, void* dbias, i64 rows, int hidden,
    double p, int lanes, int stages, int pitch, int blocks, int device, cudaStream_t stream) {
    return with_kind(type, hidden, lanes, [&](auto kind) {
        typedef decltype(kind) K;
        typedef typename K::Element T;
        static bool roomy[128];
        if (!roomy[device]) {
            const cudaError_t failed = cudaFuncSetAttribute(
                rows_backward<T, K::width, K::each>, cudaFuncAttributeMaxDynamicSharedMemorySize, 231424);
            if (failed != cudaSuccess) return failed;
            roomy[device] = true;
        }
        rows_backward<T, K::width, K::each><<<blocks, 512, stages * 3 * pitch, stream>>>(
            (const T*)total, (const i64*)seed, (const T*)weight, (const float2*)stats, (const T*)dy,
            (const T*)dtotal, (T*)dx, (T*)dresidual, partial, rows, hidden, rule_of(p), lanes, stages, pitch);
        if (partial)
            add_up<T><<<(2 * hidden + 31) / 32, 1024, 0, stream>>>(
                partial, (T*)dweight, (T*)dbias, blocks, hidden);
        return cudaGetLastError();
    });
}
int multiprocessors(int device) {
    static int found[128];
    if (!found[device]) cudaDeviceGetAttribute(&found[device], cudaDevAttrMultiProcessorCount, device);
    return found[device];
}
"""

GLUE = r"""
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>
#include <limits>
#include <tuple>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
typedef long long i64;

cudaError_t forward_launch(
    char type, const void* x, const void* residual, const int64_t* seed, const void* weight, const void* bias,
    void* out, void* total, float* stats, i64 rows, int hidden, float eps, double p, int lanes, int threads,
    cudaStream_t stream);
cudaError_t backward_launch(
    char type, const void* total, const int64_t* seed, const void* weight, const float* stats, const void* dy,
    const void* dtotal, void* dx, void* dresidual, float* partial, void* dweight, void* dbias, i64 rows, int hidden,
    double p, int lanes, int stages, int pitch, int blocks, int device, cudaStream_t stream);
int multiprocessors(int device);

static Tensor aligned(const Tensor& given) {
    const Tensor x = given.contiguous();
    return (uintptr_t)x.const_data_ptr() % 16 ? x.clone() : x;
}
static char letter(const Tensor& x) {
    const auto type = x.scalar_type();
    return type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f';
}
struct Rows { Tensor out, total, stats; };

// `stats`: whether backward will want each row's mean and scale.
static Rows forward(const Tensor& x, const Tensor& residual, const Tensor& seed, const Tensor& weight,
                    const Tensor& bias, double eps, double p, int64_t hold, int64_t threads, bool stats) {
    const c10::cuda::CUDAGuard guard(x.device());
    const at::AutoDispatchBelowADInplaceOrView below;
    const i64 hidden = weight.numel(), rows = hidden ? x.numel() / hidden : 0;
    Rows made = {at::empty(x.sizes(), x.options()), at::empty(x.sizes(), x.options()), Tensor()};
    if (stats) made.stats = at::empty({rows, 2}, x.options().dtype(at::kFloat));
    if (!x.numel()) return made;
    int lanes = 32;
    while (lanes < 512 && lanes * hold < hidden) lanes *= 2;
    C10_CUDA_CHECK(forward_launch(
        letter(x), x.const_data_ptr(), residual.const_data_ptr(), seed.const_data_ptr<int64_t>(),
        weight.const_data_ptr(), bias.const_data_ptr(), made.out.mutable_data_ptr(), made.total.mutable_data_ptr(),
        stats ? (float*)made.stats.mutable_data_ptr() : nullptr, rows, (int)hidden, (float)eps, p, lanes,
        std::max(lanes, (int)threads), c10::cuda::getCurrentCUDAStream(x.device().index())));
    return made;
}

struct Joint : torch::autograd::Function<Joint> {
    static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& residual, const Tensor& seed,
                                 const Tensor& weight, const Tensor& bias, double eps, double p, int64_t ahead_hold,
                                 int64_t ahead_threads, int64_t hold, int64_t tile) {
        const Tensor factors = aligned(weight);
        const Rows made = ::forward(
            aligned(x), aligned(residual), seed, factors, aligned(bias), eps, p, ahead_hold, ahead_threads, true);
        ctx->save_for_backward({made.total, seed, factors, made.stats});
        ctx->saved_data["p"] = p;
        ctx->saved_data["hold"] = hold;
        ctx->saved_data["tile"] = tile;
        return {made.out, made.total};
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const variable_list saved = ctx->get_saved_variables();
        const Tensor &total = saved[0], &seed = saved[1], &weight = saved[2], &stats = saved[3];
        const c10::cuda::CUDAGuard guard(total.device());
        const at::AutoDispatchBelowADInplaceOrView below;
        const Tensor dy = aligned(grads[0]), dtotal = aligned(grads[1]);
        const i64 hold = ctx->saved_data["hold"].toInt(), room = ctx->saved_data["tile"].toInt() * 1000;
        const bool none = !total.numel();
        Tensor dx, dresidual, dweight, dbias, partial;
        if (ctx->needs_input_grad(0)) dx = at::empty(total.sizes(), total.options());
        if (ctx->needs_input_grad(1)) dresidual = at::empty(total.sizes(), total.options());
        for (int i = 0; i < 2; i++) {
            if (!ctx->needs_input_grad(3 + i)) continue;
            Tensor& made = i ? dbias : dweight;
            made = none ? at::zeros(weight.sizes(), weight.options()) : at::empty(weight.sizes(), weight.options());
        }
        if (none) return {dx, dresidual, {}, dweight, dbias, {}, {}, {}, {}, {}, {}};

        const i64 hidden = weight.numel(), size = (i64)total.element_size(), rows = total.numel() / hidden;
        i64 lanes = 32;
        while (lanes < 512 && (lanes * hold < hidden || 3 * 512 / lanes * hidden * size > room)) lanes *= 2;
        const i64 tall = 512 / lanes, spare = hidden * size % 16 ? 30 : 0;
        const i64 pitch = (tall * hidden * size + spare + 15) / 16 * 16, stages = std::min(16LL, 231424 / (3 * pitch));
        TORCH_CHECK(stages, "rows of ", hidden, " elements of ", total.scalar_type(), " do not fit into shared memory");
        const int device = total.device().index();
        const i64 blocks = std::min((i64)multiprocessors(device), (rows + tall - 1) / tall);
        if (dweight.defined() || dbias.defined()) partial = at::empty({blocks, 2, hidden}, stats.options());
        auto at = [](const Tensor& of) { return of.defined() ? of.mutable_data_ptr() : nullptr; };
        C10_CUDA_CHECK(backward_launch(
            letter(total), total.const_data_ptr(), seed.const_data_ptr<int64_t>(), weight.const_data_ptr(),
            (const float*)stats.const_data_ptr(), dy.const_data_ptr(), dtotal.const_data_ptr(), at(dx), at(dresidual),
            (float*)at(partial), at(dweight), at(dbias), rows, (int)hidden, ctx->saved_data["p"].toDouble(),
            (int)lanes, (int)stages, (int)pitch, (int)blocks, device, c10::cuda::getCurrentCUDAStream(device)));
        return {dx, dresidual, {}, dweight, dbias, {}, {}, {}, {}, {}, {}};
    }
};

std::tuple<Tensor, Tensor> dropout_residual_norm(
    const Tensor& x, const Tensor& residual, const Tensor& seed, const Tensor& weight, const Tensor& bias, double eps,
    double p, int64_t ahead_hold, int64_t ahead_threads, int64_t hold, int64_t tile) {
    const auto type = weight.scalar_type();
    TORCH_CHECK(x.is_cuda() && x.device() == residual.device() && x.device() == seed.device() &&
                    x.device() == weight.device() && x.device() == bias.device(), "tensors of one GPU are needed");
    TORCH_CHECK(x.sizes() == residual.sizes() && x.dim() && weight.dim() == 1 && x.size(-1) == weight.numel() &&
                    bias.sizes() == weight.sizes() && x.scalar_type() == type && residual.scalar_type() == type &&
                    bias.scalar_type() == type,
                "two alike are needed, ", type, " rows of ", weight.numel(), ", not ", x.scalar_type(), " ", x.sizes(),
                " and ", residual.scalar_type(), " ", residual.sizes());
    TORCH_CHECK(seed.scalar_type() == at::kLong && seed.numel() == 1, "a seed is one int64, not ", seed.numel(), " of ",
                seed.scalar_type());
    TORCH_CHECK((type == at::kHalf || type == at::kBFloat16 || type == at::kFloat) && weight.numel() <= 16384,
                type, " rows of ", weight.numel(), " do not stay in registers");
    TORCH_CHECK(!x.numel() || x.numel() / weight.numel() <= std::numeric_limits<int>::max(), "too many rows");
    if (at::GradMode::is_enabled() && (x.requires_grad() || residual.requires_grad() || weight.requires_grad() ||
                                       bias.requires_grad())) {
        const variable_list made = Joint::apply(
            x, residual, seed, weight, bias, eps, p, ahead_hold, ahead_threads, hold, tile);
        return {made[0], made[1]};
    }
    const Rows made = forward(
        aligned(x), aligned(residual), seed, aligned(weight), aligned(bias), eps, p, ahead_hold, ahead_threads, false);
    return {made.out, made.total};
}
"""
dropout_residual_norm = load_inline(
    name="dropout_residual_norm_extension",
    cpp_sources=GLUE,
    cuda_sources=KERNELS,
    functions=["dropout_residual_norm"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
).dropout_residual_norm


class ModelNew(nn.Module):
    def __init__(self, hidden, p=0.1, dtype="float32"):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, dtype=getattr(torch, dtype))
        self.p = p

    def forward(self, x, residual, seed):
        norm = self._modules["norm"]
        # Out of the dictionary: a parameter by attribute costs 2 us.
        found = norm._parameters
        return dropout_residual_norm(
            x, residual, seed, found["weight"], found["bias"], norm.eps, self.p, AHEAD_HOLD, AHEAD_THREADS, HOLD, TILE
        )
