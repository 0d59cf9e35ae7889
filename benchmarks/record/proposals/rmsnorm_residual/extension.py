"""Forward holds its rows in registers. Backward is one block for each multiprocessor, which bulk copies keep three
tiles ahead in shared memory; it makes the rows' scales anew and holds the weight's gradient in registers. Autograd's
function is in C++: a call's time on the host is what small workloads wait for.

Bound by memory: 7 tensors of traffic, forward and backward. What 132 blocks found of the weight's gradient is added up
by a launch of 3 us.
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
"""Thousands of bytes of x, residual and dy that a block works on at a time."""

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

template <class T, int WIDTH> struct alignas(sizeof(T) * WIDTH) Vector { T at[WIDTH]; };
__device__ __forceinline__ uint4 load_past_cache(const uint4* from) {
    uint4 got;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w) : "l"(from));
    return got;
}
// The weight stays in the first cache, rows do not; where rows begin anywhere, neighbours share what they load.
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

// Blocks of 512 that a multiprocessor is to have room for. The weight is late: 1,536 threads with what they load in 40
// registers keep the memory busier than 1,024 of 60.
constexpr int room(int loaded) { return loaded <= 20 ? 3 : loaded <= 32 ? 2 : 1; }

// `lanes` threads hold a row, EACH vectors each.
template <int WIDTH, int EACH> constexpr int ROOM = room(2 * EACH * (WIDTH < 4 ? WIDTH : 4));
template <class T, int WIDTH, int EACH> __global__ void __launch_bounds__(512, ROOM<WIDTH, EACH>) rows_forward(
    const T* x, const T* residual, const T* weight, T* out, i64 rows, int hidden, float eps, int lanes) {
    __shared__ float parts[16];
    typedef Vector<T, WIDTH> V;
    const int lane = threadIdx.x & (lanes - 1), vectors = hidden / WIDTH;
    const i64 row = (i64)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    const bool mine = row < rows;
    const i64 base = row * hidden;
    float h[EACH][WIDTH], sum = 0.0f;
    V one[EACH], other[EACH];
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = lane + e * lanes;
        if (!mine || v >= vectors) continue;
        one[e] = load_row<T, WIDTH>(x + base + v * WIDTH), other[e] = load_row<T, WIDTH>(residual + base + v * WIDTH);
    }
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (!mine || lane + e * lanes >= vectors) continue;
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            h[e][k] = wide(one[e].at[k]) + wide(other[e].at[k]);
            sum += h[e][k] * h[e][k];
        }
    }
    sum = over_warp(sum);
    if (lanes > 32) {
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = over_row(parts, lanes / 32);
    }
    const float scale = rsqrtf(sum / hidden + eps);
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = lane + e * lanes;
        if (!mine || v >= vectors) continue;
        const V factor = *(const V*)(weight + v * WIDTH);
        V made;
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) narrow(h[e][k] * scale * wide(factor.at[k]), made.at[k]);
        store_once<T, WIDTH>(out + base + v * WIDTH, made);
    }
}

// `lanes` threads have a row of the tile, EACH vectors each. Slots begin at the 16 bytes in which their tile begins.
template <class T, int WIDTH, int EACH> __global__ void __launch_bounds__(512, 1) rows_backward(
    const T* x, const T* residual, const T* weight, const T* dy, T* dx, float* partial,
    i64 rows, int hidden, float eps, int lanes, int stages, int pitch) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float parts[2][2][16];
    __shared__ u64 barriers[16];
    typedef Vector<T, WIDTH> V;
    constexpr int SIZE = sizeof(T);
    constexpr bool HELD = EACH * WIDTH <= 16;  // else rows are read twice from shared memory, and the weight for each
    const int groups = 512 / lanes, lane = threadIdx.x & (lanes - 1), group = threadIdx.x / lanes;
    const int vectors = hidden / WIDTH;
    const i64 tiles = (rows + groups - 1) / groups, whole = rows * hidden * SIZE / 16 * 16;

    const T* tensors[3] = {x, residual, dy};
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

    float w[HELD ? EACH : 1][WIDTH], dw[EACH][WIDTH];
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = lane + e * lanes;
        V got = {};
        if (HELD && v < vectors) got = *(const V*)(weight + v * WIDTH);
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            dw[e][k] = 0.0f;
            if (HELD) w[HELD ? e : 0][k] = wide(got.at[k]);
        }
    }
    int slot = 0, parity = 0;
    i64 number = 0;
    for (i64 tile = tiles - 1 - blockIdx.x; tile >= 0; tile -= gridDim.x, number++) {
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
        const T* xs = (const T*)held + lead + group * hidden;
        const T* rs = (const T*)(held + pitch) + lead + group * hidden;
        const T* gs = (const T*)(held + 2 * pitch) + lead + group * hidden;
        float h[HELD ? EACH : 1][WIDTH], g[HELD ? EACH : 1][WIDTH], f[WIDTH];
        auto read = [&](int e, int v) {
            const V one = *(const V*)(xs + v * WIDTH), other = *(const V*)(rs + v * WIDTH);
            const V grad = *(const V*)(gs + v * WIDTH);
            #pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                h[e][k] = wide(one.at[k]) + wide(other.at[k]);
                g[e][k] = wide(grad.at[k]);
            }
        };
        auto factors = [&](int e, int v) {
            V got;
            if (!HELD) got = *(const V*)(weight + v * WIDTH);
            #pragma unroll
            for (int k = 0; k < WIDTH; k++) f[k] = HELD ? w[HELD ? e : 0][k] : wide(got.at[k]);
        };
        float square = 0.0f, dot = 0.0f;
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int v = lane + e * lanes, at = HELD ? e : 0;
            if (!mine || v >= vectors) continue;
            read(at, v), factors(e, v);
            #pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                square += h[at][k] * h[at][k];
                dot += g[at][k] * h[at][k] * f[k];
            }
        }
        square = over_warp(square), dot = over_warp(dot);
        float (*left)[16] = parts[number % 2];
        if (lanes > 32 && threadIdx.x % 32 == 0) left[0][threadIdx.x / 32] = square, left[1][threadIdx.x / 32] = dot;
        __syncthreads();
        if (HELD && threadIdx.x == 0) fetch(number + stages);  // all have read the tile
        if (lanes > 32) square = over_row(left[0], lanes / 32), dot = over_row(left[1], lanes / 32);
        const float scale = rsqrtf(square / hidden + eps), pull = dot * scale / hidden * scale * scale;
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int v = lane + e * lanes, at = HELD ? e : 0;
            if (!mine || v >= vectors) continue;
            if (!HELD) read(at, v);
            factors(e, v);
            V made;
            #pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                dw[e][k] += g[at][k] * h[at][k] * scale;
                narrow(g[at][k] * f[k] * scale - h[at][k] * pull, made.at[k]);
            }
            if (dx) store_once<T, WIDTH>(dx + row * hidden + v * WIDTH, made);
        }
        if (!HELD) {
            __syncthreads();
            if (threadIdx.x == 0) fetch(number + stages);
        }
        if (++slot == stages) slot = 0, parity ^= 1;
    }

    float* sums = (float*)memory;
    if (groups > 1) __syncthreads();
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = lane + e * lanes;
        if (v >= vectors) continue;
        #pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            if (groups > 1) sums[group * hidden + v * WIDTH + k] = dw[e][k];
            else partial[(i64)blockIdx.x * hidden + v * WIDTH + k] = dw[e][k];
        }
    }
    if (groups == 1) return;
    __syncthreads();
    for (int i = threadIdx.x; i < hidden; i += 512) {
        float sum = 0.0f;
        for (int k = 0; k < groups; k++) sum += sums[k * hidden + i];
        partial[(i64)blockIdx.x * hidden + i] = sum;
    }
}

// Sums down 32 columns, 32 rows at a time.
template <class T> __global__ void __launch_bounds__(1024) add_up(
    const float* partial, T* out, int count, int hidden) {
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

// Calls `go` with the type, the elements of a vector and how many vectors a thread has: the fewest that are enough.
template <class T, int WIDTH, int EACH> struct Kind {
    typedef T Element;
    static constexpr int width = WIDTH, each = EACH;
};
template <class T, class Go> cudaError_t with_each(int hidden, int lanes, Go go) {
    constexpr int WIDTH = 16 / sizeof(T);
    if (hidden % WIDTH) {
        const int each = (hidden + lanes - 1) / lanes;
        if (each <= 10) return go(Kind<T, 1, 10>());
        if (each <= 16) return go(Kind<T, 1, 16>());
        return go(Kind<T, 1, 64>());
    }
    const int held = (hidden + lanes - 1) / lanes;
    if (held <= 8) return go(Kind<T, WIDTH, 8 / WIDTH>());
    if (held <= 16) return go(Kind<T, WIDTH, 16 / WIDTH>());
    if (held <= 32) return go(Kind<T, WIDTH, 32 / WIDTH>());
    return go(Kind<T, WIDTH, 64 / WIDTH>());
}
template <class Go> cudaError_t with_kind(char type, int hidden, int lanes, Go go) {
    if (type == 'h') return with_each<__half>(hidden, lanes, go);
    if (type == 'b') return with_each<__nv_bfloat16>(hidden, lanes, go);
    return with_each<float>(hidden, lanes, go);
}

cudaError_t forward_launch(
    char type, const void* x, const void* residual, const void* weight, void* out, i64 rows, int hidden, float eps,
    int lanes, int threads, cudaStream_t stream) {
    return with_kind(type, hidden, lanes, [&](auto kind) {
        typedef decltype(kind) K;
        typedef typename K::Element T;
        const i64 tall = threads / lanes;
        const unsigned blocks = (unsigned)((rows + tall - 1) / tall);
        rows_forward<T, K::width, K::each><<<blocks, threads, 0, stream>>>(
            (const T*)x, (const T*)residual, (const T*)weight, (T*)out, rows, hidden, eps, lanes);
        return cudaGetLastError();
    });
}
// `dx` and `dweight` may be null.
cudaError_t backward_launch(
    char type, const void* x, const void* residual, const void* weight, const void* dy, void* dx, float* partial,
    void* dweight, i64 rows, int hidden, float eps, int lanes, int stages, int pitch, int blocks, int device,
    cudaStream_t stream) {
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
            (const T*)x, (const T*)residual, (const T*)weight, (const T*)dy, (T*)dx, partial, rows, hidden, eps,
            lanes, stages, pitch);
        if (dweight) add_up<T><<<(hidden + 31) / 32, 1024, 0, stream>>>(partial, (T*)dweight, blocks, hidden);
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
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
typedef long long i64;

cudaError_t forward_launch(
    char type, const void* x, const void* residual, const void* weight, void* out, i64 rows, int hidden, float eps,
    int lanes, int threads, cudaStream_t stream);
cudaError_t backward_launch(
    char type, const void* x, const void* residual, const void* weight, const void* dy, void* dx, float* partial,
    void* dweight, i64 rows, int hidden, float eps, int lanes, int stages, int pitch, int blocks, int device,
    cudaStream_t stream);
int multiprocessors(int device);

static Tensor aligned(const Tensor& given) {
    const Tensor x = given.contiguous();
    return (uintptr_t)x.const_data_ptr() % 16 ? x.clone() : x;
}
static char letter(const Tensor& x) {
    const auto type = x.scalar_type();
    return type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f';
}

static Tensor forward(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, int64_t hold,
                      int64_t threads) {
    Tensor out = at::empty(x.sizes(), x.options());
    if (!out.numel()) return out;
    const c10::cuda::CUDAGuard guard(x.device());
    const int hidden = (int)weight.numel();
    int lanes = 32;
    while (lanes < 512 && lanes * hold < hidden) lanes *= 2;
    C10_CUDA_CHECK(forward_launch(
        letter(x), x.const_data_ptr(), residual.const_data_ptr(), weight.const_data_ptr(), out.mutable_data_ptr(),
        x.numel() / hidden, hidden, (float)eps, lanes, std::max(lanes, (int)threads),
        c10::cuda::getCurrentCUDAStream(x.device().index())));
    return out;
}

struct Normed : torch::autograd::Function<Normed> {
    static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& residual, const Tensor& weight,
                          double eps, int64_t ahead_hold, int64_t ahead_threads, int64_t hold, int64_t tile) {
        const Tensor one = aligned(x), other = aligned(residual), factors = aligned(weight);
        ctx->save_for_backward({one, other, factors});
        ctx->saved_data["eps"] = eps;
        ctx->saved_data["hold"] = hold;
        ctx->saved_data["tile"] = tile;
        return ::forward(one, other, factors, eps, ahead_hold, ahead_threads);
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const variable_list saved = ctx->get_saved_variables();
        const Tensor &x = saved[0], &residual = saved[1], &weight = saved[2], dy = aligned(grads[0]);
        const i64 hold = ctx->saved_data["hold"].toInt(), room = ctx->saved_data["tile"].toInt() * 1000;
        Tensor dx, dweight;
        if (ctx->needs_input_grad(0) || ctx->needs_input_grad(1)) dx = at::empty(x.sizes(), x.options());
        if (!x.numel()) return {dx, dx, at::zeros(weight.sizes(), weight.options()), {}, {}, {}, {}, {}};
        if (ctx->needs_input_grad(2)) dweight = at::empty(weight.sizes(), weight.options());

        const i64 hidden = weight.numel(), size = (i64)x.element_size(), rows = x.numel() / hidden;
        i64 lanes = 32;
        while (lanes < 512 && (lanes * hold < hidden || 3 * 512 / lanes * hidden * size > room)) lanes *= 2;
        const i64 tall = 512 / lanes, spare = hidden * size % 16 ? 30 : 0;
        const i64 pitch = (tall * hidden * size + spare + 15) / 16 * 16, stages = std::min(16LL, 231424 / (3 * pitch));
        TORCH_CHECK(stages, "rows of ", hidden, " elements of ", x.scalar_type(), " do not fit into shared memory");
        const c10::cuda::CUDAGuard guard(x.device());
        const int device = x.device().index();
        const i64 blocks = std::min((i64)multiprocessors(device), (rows + tall - 1) / tall);
        const Tensor partial = at::empty({blocks, hidden}, x.options().dtype(at::kFloat));
        C10_CUDA_CHECK(backward_launch(
            letter(x), x.const_data_ptr(), residual.const_data_ptr(), weight.const_data_ptr(), dy.const_data_ptr(),
            dx.defined() ? dx.mutable_data_ptr() : nullptr, (float*)partial.mutable_data_ptr(),
            dweight.defined() ? dweight.mutable_data_ptr() : nullptr, rows, (int)hidden,
            (float)ctx->saved_data["eps"].toDouble(), (int)lanes, (int)stages, (int)pitch, (int)blocks, device,
            c10::cuda::getCurrentCUDAStream(device)));
        return {dx, dx, dweight, {}, {}, {}, {}, {}};
    }
};

Tensor rmsnorm_residual(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, int64_t ahead_hold,
                        int64_t ahead_threads, int64_t hold, int64_t tile) {
    const auto type = weight.scalar_type();
    TORCH_CHECK(x.sizes() == residual.sizes() && x.dim() && weight.dim() == 1 && x.size(-1) == weight.numel() &&
                    x.scalar_type() == type && residual.scalar_type() == type,
                "two alike are needed, ", type, " rows of ", weight.numel(), ", not ", x.scalar_type(), " ", x.sizes(),
                " and ", residual.scalar_type(), " ", residual.sizes());
    TORCH_CHECK(x.device() == residual.device() && x.device() == weight.device(), "tensors are on several devices");
    TORCH_CHECK((type == at::kHalf || type == at::kBFloat16 || type == at::kFloat) && weight.numel() <= 32768,
                type, " rows of ", weight.numel(), " do not stay in registers");
    if (at::GradMode::is_enabled() && (x.requires_grad() || residual.requires_grad() || weight.requires_grad()))
        return Normed::apply(x, residual, weight, eps, ahead_hold, ahead_threads, hold, tile);
    return forward(aligned(x), aligned(residual), aligned(weight), eps, ahead_hold, ahead_threads);
}
"""
rmsnorm_residual = load_inline(
    name="rmsnorm_residual_extension",
    cpp_sources=GLUE,
    cuda_sources=KERNELS,
    functions=["rmsnorm_residual"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
).rmsnorm_residual


class ModelNew(nn.Module):
    def __init__(self, hidden, eps=1e-6, dtype="float32"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
        self.eps = eps

    def forward(self, x, residual):
        return rmsnorm_residual(x, residual, self.weight, self.eps, AHEAD_HOLD, AHEAD_THREADS, HOLD, TILE)
