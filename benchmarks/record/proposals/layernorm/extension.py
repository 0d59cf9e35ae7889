"""Forward, a row's threads hold it in registers: mean, then squares about the mean, then the result. Backward, blocks
stay and walk over the rows; each thread copies its own columns of the rows to come into shared memory (cp.async, so
that nothing but the sums of a row waits for others), keeps the sums for weight and bias in registers, and a small
kernel adds up what the blocks found. Autograd's part is C++, too, so that a small call does not wait for Python.
Bound by memory: 5 tensors of traffic, three launches.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"HELD": [8, 16], "ROOM": [96, 160, 200], "RESIDENT": [768, 1024]}
HELD = 16
"""Elements of a row that a thread holds in the forward pass."""
ROOM = 200
"""Thousands of bytes of shared memory that the blocks of a processor have for rows to come."""
RESIDENT = 1024
"""Threads of a processor in the backward pass."""

KERNELS = r"""
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <atomic>
#include <stdexcept>
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float* to) { *to = value; }
__device__ __forceinline__ void narrow(float value, __half* to) { *to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }
__device__ __forceinline__ void narrow(float low, float high, float* to) { to[0] = low, to[1] = high; }
__device__ __forceinline__ void narrow(float low, float high, __half* to) {
    *(__half2*)to = __floats2half2_rn(low, high);
}
__device__ __forceinline__ void narrow(float low, float high, __nv_bfloat16* to) {
    *(__nv_bfloat162*)to = __floats2bfloat162_rn(low, high);
}

// LANES: 16 bytes of elements, or one where rows begin anywhere.
template <class T, int LANES> struct alignas(LANES * sizeof(T)) Vector { T at[LANES]; };
template <int LANES> struct alignas(LANES < 4 ? 4 * LANES : 16) Sums { float at[LANES]; };

template <class T, int LANES> __device__ __forceinline__ bool even(const T* a, const T* b) {
    return ((i64)a | (i64)b) % sizeof(Vector<T, LANES>) == 0;
}
template <class T, int LANES> __device__ __forceinline__ Vector<T, LANES> fetch(const T* from, bool vectors) {
    if (vectors) return *(const Vector<T, LANES>*)from;
    Vector<T, LANES> got;
    #pragma unroll
    for (int l = 0; l < LANES; l++) got.at[l] = from[l];
    return got;
}
// Results leave the cache first: x is wanted again. New tensors begin at multiples of 16 bytes.
template <class T, int LANES> __device__ __forceinline__ void leave(T* to, const float (&value)[LANES]) {
    Vector<T, LANES> made;
    #pragma unroll
    for (int l = 0; l + 1 < LANES; l += 2) narrow(value[l], value[l + 1], made.at + l);
    if (LANES == 1) narrow(value[0], made.at);
    if constexpr (sizeof(made) == 16) __stcs((uint4*)to, *(const uint4*)&made);
    else if constexpr (sizeof(made) == 4) __stcs((unsigned*)to, *(const unsigned*)&made);
    else *(Vector<T, LANES>*)to = made;
}
template <int SIZE> __device__ __forceinline__ void copy_later(void* to, const void* from) {
    const unsigned place = (unsigned)__cvta_generic_to_shared(to);
    if constexpr (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(place), "l"(from));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(place), "l"(from));
}
__device__ __forceinline__ void committed() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
__device__ __forceinline__ void arrived(int left) {  // an instruction's constant, by a branch that all threads take
    if (left == 3) arrived<3>();
    else if (left == 2) arrived<2>();
    else if (left == 1) arrived<1>();
    else arrived<0>();
}

__device__ __forceinline__ float over_warp(float value) {
    #pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
// The sum over a row's threads; `room` must not be in use for another sum.
template <bool WARP> __device__ __forceinline__ float over_team(float value, float* room) {
    value = over_warp(value);
    if (WARP) return value;
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    #pragma unroll 8
    for (int w = 0; w < blockDim.x / 32; w++) value += room[w];
    return value;
}

constexpr int ROWS = 4;  // of a block where a row is a warp's
template <class T, int LANES, bool WARP, int PIECES>
__global__ void __launch_bounds__(WARP ? 128 : 1024) forward_rows(
    const T* x, const T* weight, const T* bias, T* out, float2* stats, int rows, int hidden, float eps) {
    __shared__ __align__(16) float first[32], second[32];
    const int team = WARP ? 32 : blockDim.x, lane = threadIdx.x % team * LANES;
    const int row = WARP ? blockIdx.x * ROWS + threadIdx.x / 32 : blockIdx.x;
    if (row >= rows) return;
    const bool vectors = even<T, LANES>(x, x), factors = even<T, LANES>(weight, bias);
    x += (i64)row * hidden, out += (i64)row * hidden;
    Vector<T, LANES> got[PIECES];
    #pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int at = p * team * LANES + lane;
        if (at < hidden) got[p] = fetch<T, LANES>(x + at, vectors);
    }
    float mean = 0.0f, spread = 0.0f;
    #pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (p * team * LANES + lane < hidden)
            #pragma unroll
            for (int l = 0; l < LANES; l++) mean += wide(got[p].at[l]);
    mean = over_team<WARP>(mean, first) / hidden;
    #pragma unroll
    for (int p = 0; p < PIECES; p++)
        if (p * team * LANES + lane < hidden)
            #pragma unroll
            for (int l = 0; l < LANES; l++) spread += (wide(got[p].at[l]) - mean) * (wide(got[p].at[l]) - mean);
    const float scale = rsqrtf(over_team<WARP>(spread, second) / hidden + eps);
    if (lane == 0 && stats) stats[row] = make_float2(mean, scale);
    #pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const int at = p * team * LANES + lane;
        if (at >= hidden) continue;
        const Vector<T, LANES> w = fetch<T, LANES>(weight + at, factors), b = fetch<T, LANES>(bias + at, factors);
        float value[LANES];
        #pragma unroll
        for (int l = 0; l < LANES; l++) value[l] = (wide(got[p].at[l]) - mean) * scale * wide(w.at[l]) + wide(b.at[l]);
        leave<T, LANES>(out + at, value);
    }
}

// The rows to come of one walk: [stage][x, dy][column]. A thread reads only what it copied itself.
template <class T, int LANES, int SPANS> __device__ __forceinline__ void ahead(
    T* to, const T* x, const T* dy, int pitch, int hidden, int walkers, int lane, bool vectors) {
    constexpr int SIZE = LANES * sizeof(T);
    #pragma unroll
    for (int p = 0; p < SPANS; p++) {
        const int at = p * walkers * LANES + lane;
        if (at >= hidden) continue;
        if (SIZE >= 4 && vectors) {
            copy_later<SIZE>(to + at, x + at), copy_later<SIZE>(to + pitch + at, dy + at);
        } else {
            #pragma unroll
            for (int l = 0; l < LANES; l++) to[at + l] = x[at + l], to[pitch + at + l] = dy[at + l];
        }
    }
}
template <class T, int LANES> __device__ __forceinline__ void normalised(
    const T* own, int pitch, float2 of, float (&normed)[LANES], float (&g)[LANES]) {
    const Vector<T, LANES> value = *(const Vector<T, LANES>*)own, slope = *(const Vector<T, LANES>*)(own + pitch);
    #pragma unroll
    for (int l = 0; l < LANES; l++) normed[l] = (wide(value.at[l]) - of.x) * of.y, g[l] = wide(slope.at[l]);
}

constexpr int WALKS = 12;  // rows that a block has at a time where a row is a warp's: 170 registers for each thread
// `dx` and `partial` are null where nobody wants them.
template <class T, int LANES, bool WARP, int SPANS, int MOST>
__global__ void __launch_bounds__(MOST, MOST == 512 ? 2 : 1) backward_rows(
    const T* x, const T* weight, const float2* stats, const T* dy, T* dx, float* partial, int rows, int hidden,
    int pitch, int stages) {
    // Long pieces of a row are read again from shared memory, and their weights from the first cache: with the sums for
    // weight and bias, registers do not hold them.
    constexpr bool AGAIN = !WARP && SPANS * LANES > 8;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ __align__(16) float2 room[2][MOST / 32];
    const int walkers = WARP ? 32 : blockDim.x, walk = WARP ? threadIdx.x / 32 : 0;
    const int lane = (WARP ? threadIdx.x % 32 : threadIdx.x) * LANES, step = gridDim.x * (WARP ? WALKS : 1);
    const bool vectors = even<T, LANES>(x, dy), factors = even<T, LANES>(weight, weight);
    const float inverse = 1.0f / hidden;
    T* ring = (T*)memory + walk * stages * 2 * pitch;
    // The last rows first: the cache still has them.
    int row = rows - 1 - (int)blockIdx.x * (WARP ? WALKS : 1) - walk;
    auto begin = [&](int of, int stage) {
        if (of >= 0) {
            const i64 start = (i64)of * hidden;
            ahead<T, LANES, SPANS>(
                ring + stage * 2 * pitch, x + start, dy + start, pitch, hidden, walkers, lane, vectors);
        }
        committed();
    };
    for (int s = 0; s < stages - 1; s++) begin(row - s * step, s);
    float2 now = row >= 0 ? stats[row] : make_float2(0.0f, 0.0f);
    Vector<T, LANES> w[SPANS];
    #pragma unroll
    for (int p = 0; p < SPANS; p++)
        if (!AGAIN && p * walkers * LANES + lane < hidden)
            w[p] = fetch<T, LANES>(weight + p * walkers * LANES + lane, factors);
    Sums<LANES> dw[SPANS], db[SPANS];
    #pragma unroll
    for (int p = 0; p < SPANS; p++)
        #pragma unroll
        for (int l = 0; l < LANES; l++) dw[p].at[l] = db[p].at[l] = 0.0f;
    for (int stage = 0, turn = 0; row >= 0; row -= step, turn ^= 1) {
        // Counted by hand, as the remainder of a division by 3 costs more than a row's barrier.
        begin(row - (stages - 1) * step, stage == 0 ? stages - 1 : stage - 1);
        const float2 next = row - step >= 0 ? stats[row - step] : now;
        arrived(stages - 1);
        const T* own = ring + stage * 2 * pitch + lane;
        float normed[SPANS][LANES], g[SPANS][LANES], along = 0.0f, level = 0.0f;
        #pragma unroll
        for (int p = 0; p < SPANS; p++) {
            if (p * walkers * LANES + lane >= hidden) continue;
            normalised<T, LANES>(own + p * walkers * LANES, pitch, now, normed[p], g[p]);
            if (AGAIN) w[p] = fetch<T, LANES>(weight + p * walkers * LANES + lane, factors);
            #pragma unroll
            for (int l = 0; l < LANES; l++) {
                dw[p].at[l] += g[p][l] * normed[p][l];
                db[p].at[l] += g[p][l];
                g[p][l] *= wide(w[p].at[l]);
                along += g[p][l] * normed[p][l];
                level += g[p][l];
            }
        }
        along = over_warp(along), level = over_warp(level);
        if (!WARP) {
            if (threadIdx.x % 32 == 0) room[turn][threadIdx.x / 32] = make_float2(along, level);
            __syncthreads();
            along = level = 0.0f;
            #pragma unroll 8
            for (int k = 0; k < walkers / 32; k++) along += room[turn][k].x, level += room[turn][k].y;
        }
        if (AGAIN) asm volatile("" ::: "memory");
        along *= inverse, level *= inverse;
        T* to = dx + (i64)row * hidden + lane;
        #pragma unroll
        for (int p = 0; p < SPANS; p++) {
            if (!dx || p * walkers * LANES + lane >= hidden) continue;
            float value[LANES];
            if (AGAIN) {
                normalised<T, LANES>(own + p * walkers * LANES, pitch, now, normed[p], g[p]);
                w[p] = fetch<T, LANES>(weight + p * walkers * LANES + lane, factors);
                #pragma unroll
                for (int l = 0; l < LANES; l++) g[p][l] *= wide(w[p].at[l]);
            }
            #pragma unroll
            for (int l = 0; l < LANES; l++) value[l] = now.y * (g[p][l] - level - normed[p][l] * along);
            leave<T, LANES>(to + p * walkers * LANES, value);
        }
        now = next;
        stage = stage == stages - 1 ? 0 : stage + 1;
    }
    if (!partial) return;
    float* mine = partial + (i64)blockIdx.x * 2 * hidden;
    if (WARP) {  // the walks of a block first, through the ring
        arrived<0>();
        __syncthreads();
        mine = (float*)memory + walk * 2 * hidden;
    }
    #pragma unroll
    for (int p = 0; p < SPANS; p++) {
        const int at = p * walkers * LANES + lane;
        if (at >= hidden) continue;
        *(Sums<LANES>*)(mine + at) = dw[p];
        *(Sums<LANES>*)(mine + hidden + at) = db[p];
    }
    if (WARP) {
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * hidden; i += 32 * WALKS) {
            float sum = 0.0f;
            #pragma unroll
            for (int k = 0; k < WALKS; k++) sum += ((const float*)memory)[k * 2 * hidden + i];
            partial[(i64)blockIdx.x * 2 * hidden + i] = sum;
        }
    }
}

// 32 columns a block, 16 threads for each.
template <class T> __global__ void __launch_bounds__(512) add_up(
    const float* partial, T* dweight, T* dbias, int count, int hidden) {
    __shared__ float found[16][32];
    const int deep = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (column < 2 * hidden) {
        #pragma unroll 8
        for (int i = deep; i < count; i += 16) sum += partial[(i64)i * 2 * hidden + column];
    }
    found[deep][lane] = sum;
    __syncthreads();
    if (deep || column >= 2 * hidden) return;
    #pragma unroll
    for (int k = 1; k < 16; k++) sum += found[k][lane];
    T* to = column < hidden ? dweight : dbias;
    if (to) narrow(sum, to + column % hidden);
}

static void check(cudaError_t code) {
    if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}
static int over(i64 value, int by) { return (int)((value + by - 1) / by); }
static int device() {
    int current = 0;
    check(cudaGetDevice(&current));
    return current;
}
static int processors() {
    static std::atomic<int> known[64];
    const int at = device();
    int count = known[at % 64];
    if (!count) {
        check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, at));
        known[at % 64] = count;
    }
    return count;
}

// How so many rows are walked over in the backward pass. Equally many rows for each block.
struct Walk { int lanes, walkers, walks, pitch, stages, shared, blocks; };
static Walk walk_over(int size, int rows, int hidden, int room, int resident) {
    Walk found;
    found.lanes = hidden % (16 / size) ? 1 : 16 / size;
    const bool warp = hidden <= (found.lanes > 1 ? 768 : 512);  // no barriers
    found.walkers = warp ? 32 : hidden > 5120 ? 1024 : over(hidden, 256) * 32 < 512 ? over(hidden, 256) * 32 : 512;
    found.walks = warp ? WALKS : 1;
    int resides = warp ? 1 : resident / found.walkers;
    resides = resides < 1 ? 1 : resides > 16 ? 16 : resides;
    found.pitch = over(hidden, found.walkers * found.lanes) * found.walkers * found.lanes;
    const int stage = 2 * found.pitch * size * found.walks, stages = room * 1000 / resides / stage;
    found.stages = stages < 1 ? 1 : stages > 4 ? 4 : stages;
    found.shared = found.stages * stage;
    if (warp && found.shared < 8 * hidden * WALKS) found.shared = 8 * hidden * WALKS;
    const i64 places = (i64)processors() * resides * found.walks;
    const int rounds = rows ? over(rows, places) : 1;
    found.blocks = rows ? over(rows, rounds * found.walks) : 1;
    return found;
}

struct Forward { const void *x, *weight, *bias; void *out, *stats; int rows, hidden; float eps; cudaStream_t stream; };
template <class T, int LANES, bool WARP, int ELEMENTS> static void run(const Forward& f, int team) {
    constexpr int PIECES = ELEMENTS / LANES;
    const int grid = WARP ? over(f.rows, ROWS) : f.rows, block = WARP ? 32 * ROWS : team;
    forward_rows<T, LANES, WARP, PIECES><<<grid, block, 0, f.stream>>>(
        (const T*)f.x, (const T*)f.weight, (const T*)f.bias, (T*)f.out, (float2*)f.stats, f.rows, f.hidden, f.eps);
}
template <class T, int LANES> static void run(const Forward& f, int held) {
    if (f.hidden <= 512) return run<T, LANES, true, 16>(f, 32);
    if constexpr (LANES > 1) {
        if (f.hidden <= 768) return run<T, LANES, true, 24>(f, 32);
        if (held == 8 && f.hidden <= 8192) return run<T, LANES, false, 8>(f, over(f.hidden, 256) * 32);
    }
    run<T, LANES, false, 16>(f, over(f.hidden, 512) * 32);
}

struct Backward {
    const void *x, *weight, *stats, *dy;
    void *dx, *dweight, *dbias;
    float* partial;
    int rows, hidden;
    cudaStream_t stream;
};
template <class T, int LANES, bool WARP, int ELEMENTS, int MOST> static void run(const Backward& b, const Walk& walk) {
    constexpr auto kernel = backward_rows<T, LANES, WARP, ELEMENTS / LANES, MOST>;
    static std::atomic<int> allowed[64];
    if (walk.shared > 32 << 10) {  // with the static part, 48 KB need nobody's consent
        const int at = device() % 64;
        if (allowed[at] < walk.shared) {
            check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, walk.shared));
            allowed[at] = walk.shared;
        }
    }
    kernel<<<walk.blocks, walk.walkers * walk.walks, walk.shared, b.stream>>>(
        (const T*)b.x, (const T*)b.weight, (const float2*)b.stats, (const T*)b.dy, (T*)b.dx, b.partial, b.rows,
        b.hidden, walk.pitch, walk.stages);
}
template <class T, int LANES> static void run(const Backward& b, const Walk& walk) {
    constexpr int MIDDLE = LANES == 8 ? 16 : LANES == 4 ? 12 : 10;  // up to 5120 columns of 512 threads
    if (b.hidden <= 512) return run<T, LANES, true, 16, 32 * WALKS>(b, walk);
    if constexpr (LANES > 1) {
        if (b.hidden <= 768) return run<T, LANES, true, 24, 32 * WALKS>(b, walk);
        if (b.hidden <= 4096) return run<T, LANES, false, 8, 512>(b, walk);
    }
    if (b.hidden <= 5120) return run<T, LANES, false, MIDDLE, 512>(b, walk);
    run<T, LANES, false, 16, 1024>(b, walk);
}

template <class T> static void forward_of(const Forward& f, int held) {
    constexpr int LANES = 16 / sizeof(T);
    if (f.hidden % LANES) run<T, 1>(f, held);
    else run<T, LANES>(f, held);
    check(cudaGetLastError());
}
template <class T> static void backward_of(const Backward& b, int room, int resident) {
    const Walk walk = walk_over(sizeof(T), b.rows, b.hidden, room, resident);
    if (walk.lanes == 1) run<T, 1>(b, walk);
    else run<T, 16 / sizeof(T)>(b, walk);
    check(cudaGetLastError());
    if (!b.partial) return;
    add_up<T><<<over(2 * b.hidden, 32), 512, 0, b.stream>>>(
        b.partial, (T*)b.dweight, (T*)b.dbias, walk.blocks, b.hidden);
    check(cudaGetLastError());
}

// `type`: float, half, bfloat16.
void launch_forward(
    int type, const void* x, const void* weight, const void* bias, void* out, void* stats, int rows, int hidden,
    float eps, int held, cudaStream_t stream) {
    const Forward call = {x, weight, bias, out, stats, rows, hidden, eps, stream};
    if (type == 0) forward_of<float>(call, held);
    else if (type == 1) forward_of<__half>(call, held);
    else forward_of<__nv_bfloat16>(call, held);
}
int blocks_backward(int type, int rows, int hidden, int room, int resident) {
    return walk_over(type ? 2 : 4, rows, hidden, room, resident).blocks;
}
void launch_backward(
    int type, const void* x, const void* weight, const void* stats, const void* dy, void* dx, void* dweight,
    void* dbias, float* partial, int rows, int hidden, int room, int resident, cudaStream_t stream) {
    const Backward call = {x, weight, stats, dy, dx, dweight, dbias, partial, rows, hidden, stream};
    if (type == 0) backward_of<float>(call, room, resident);
    else if (type == 1) backward_of<__half>(call, room, resident);
    else backward_of<__nv_bfloat16>(call, room, resident);
}
"""

GLUE = r"""
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>
#include <limits>

void launch_forward(
    int type, const void* x, const void* weight, const void* bias, void* out, void* stats, int rows, int hidden,
    float eps, int held, cudaStream_t stream);
int blocks_backward(int type, int rows, int hidden, int room, int resident);
void launch_backward(
    int type, const void* x, const void* weight, const void* stats, const void* dy, void* dx, void* dweight,
    void* dbias, float* partial, int rows, int hidden, int room, int resident, cudaStream_t stream);

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

static int type_of(const Tensor& x) {
    const auto type = x.scalar_type();
    return type == at::kFloat ? 0 : type == at::kHalf ? 1 : 2;
}
static int rows_of(const Tensor& x) { return (int)(x.numel() / x.size(-1)); }

static Tensor normed(
    const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, int64_t held, Tensor* stats) {
    c10::cuda::CUDAGuard guard(x.device());
    at::AutoDispatchBelowADInplaceOrView below;
    const int rows = rows_of(x);
    Tensor out = at::empty_like(x);
    if (stats) *stats = at::empty({rows, 2}, x.options().dtype(at::kFloat));
    if (rows)
        launch_forward(
            type_of(x), x.const_data_ptr(), weight.const_data_ptr(), bias.const_data_ptr(), out.mutable_data_ptr(),
            stats ? stats->mutable_data_ptr() : nullptr, rows, (int)x.size(-1), (float)eps, (int)held,
            c10::cuda::getCurrentCUDAStream());
    return out;
}

struct Normed : torch::autograd::Function<Normed> {
    static Tensor forward(
        AutogradContext* ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, int64_t held,
        int64_t room, int64_t resident) {
        const Tensor rows = x.contiguous();
        Tensor stats, out = normed(rows, weight, bias, eps, held, &stats);
        ctx->save_for_backward({rows, weight, stats});
        ctx->saved_data["room"] = room;
        ctx->saved_data["resident"] = resident;
        return out;
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& slopes) {
        const variable_list saved = ctx->get_saved_variables();
        const Tensor &x = saved[0], &weight = saved[1], &stats = saved[2];
        c10::cuda::CUDAGuard guard(x.device());
        at::AutoDispatchBelowADInplaceOrView below;
        const Tensor dy = slopes[0].contiguous();
        const int room = (int)ctx->saved_data["room"].toInt(), resident = (int)ctx->saved_data["resident"].toInt();
        const int type = type_of(x), rows = rows_of(x), hidden = (int)x.size(-1);
        Tensor dx, dweight, dbias, partial;
        if (ctx->needs_input_grad(0)) dx = at::empty_like(x);
        if (ctx->needs_input_grad(1)) dweight = at::empty_like(weight);
        if (ctx->needs_input_grad(2)) dbias = at::empty_like(weight);
        if (dweight.defined() || dbias.defined())
            partial = at::empty({blocks_backward(type, rows, hidden, room, resident), 2, hidden}, stats.options());
        auto at = [](const Tensor& of) { return of.defined() ? of.mutable_data_ptr() : nullptr; };
        launch_backward(
            type, x.const_data_ptr(), weight.const_data_ptr(), stats.const_data_ptr(), dy.const_data_ptr(), at(dx),
            at(dweight), at(dbias), (float*)at(partial), rows, hidden, room, resident,
            c10::cuda::getCurrentCUDAStream());
        return {dx, dweight, dbias, Tensor(), Tensor(), Tensor(), Tensor()};
    }
};

Tensor layernorm(
    const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, int64_t held, int64_t room,
    int64_t resident) {
    const int64_t hidden = weight.numel();
    TORCH_CHECK(x.is_cuda() && weight.device() == x.device() && bias.device() == x.device(), "tensors of one GPU");
    TORCH_CHECK(
        x.scalar_type() == at::kFloat || x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16,
        "float32, float16 or bfloat16, not ", x.scalar_type());
    TORCH_CHECK(
        weight.scalar_type() == x.scalar_type() && bias.scalar_type() == x.scalar_type(), "one type, not ",
        x.scalar_type(), ", ", weight.scalar_type(), " and ", bias.scalar_type());
    TORCH_CHECK(0 < hidden && hidden <= 16384, "rows of ", hidden, " do not stay in registers");
    TORCH_CHECK(
        x.dim() && x.size(-1) == hidden && bias.numel() == hidden && weight.is_contiguous() && bias.is_contiguous(),
        "rows of ", hidden, " with a weight and a bias of so many are needed, not ", x.sizes());
    TORCH_CHECK(x.numel() / hidden <= std::numeric_limits<int>::max(), "too many rows");
    if (at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad() || bias.requires_grad()))
        return Normed::apply(x, weight, bias, eps, held, room, resident);
    return normed(x.contiguous(), weight, bias, eps, held, nullptr);
}
"""
extension = load_inline(
    name="layernorm",
    cpp_sources=[GLUE],
    cuda_sources=[KERNELS],
    functions=["layernorm"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
)


class ModelNew(nn.Module):
    def __init__(self, hidden, dtype="float32"):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, dtype=getattr(torch, dtype))

    def forward(self, x):
        norm = self._modules["norm"]
        # Out of the dictionary: a parameter by attribute costs 2 us.
        found = norm._parameters
        return extension.layernorm(x, found["weight"], found["bias"], norm.eps, HELD, ROOM, RESIDENT)
