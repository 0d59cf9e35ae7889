"""Blocks stay and walk over the rows. Each thread copies its own columns of the next two rows into shared memory
(cp.async), so that reading does not wait for the two exchanges that a row needs, the sum of its squares and its largest
value; from there to the 8-bit store the row is in registers. All rows of a block begin at the same place of a vector:
rows of 5003 have aligned vectors, too, and the weight is shifted and widened once.

Bound by memory: 3 bytes an element where 16-bit rows come in, 5 for floats. In the time of 3 bytes an H200 issues about
21 instructions for an element. These loops have 14 (32 held) to 17 (16 held); with `/`, which takes ten with a branch,
they would be bound by that. The scale's reciprocal with one correction takes three, and rounds as `/` does.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"HELD": [8, 16, 32], "RESIDENT": [768, 1024, 1280]}
HELD = 16
"""Elements of a row that a thread holds, or twice as many where it takes more than 320 threads."""
RESIDENT = 1280
"""Threads of a processor."""

KERNELS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef unsigned int u32;
typedef long long i64;

__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ u32 to_bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float from_bits(u32 bits) { return __uint_as_float(bits); }

// A word holds one float or two 16-bit numbers.
template <class T> __device__ __forceinline__ void unpack(u32 word, float* to);
template <> __device__ __forceinline__ void unpack<float>(u32 word, float* to) { to[0] = from_bits(word); }
template <> __device__ __forceinline__ void unpack<__half>(u32 word, float* to) {
    const float2 pair = __half22float2(*(const __half2*)&word);
    to[0] = pair.x, to[1] = pair.y;
}
template <> __device__ __forceinline__ void unpack<__nv_bfloat16>(u32 word, float* to) {
    to[0] = from_bits(word << 16), to[1] = from_bits(word & 0xffff0000u);
}
template <class T> __device__ __forceinline__ void unpack(uint4 from, float* to) {
    constexpr int PER = 4 / sizeof(T);
    unpack<T>(from.x, to), unpack<T>(from.y, to + PER);
    unpack<T>(from.z, to + 2 * PER), unpack<T>(from.w, to + 3 * PER);
}

__device__ __forceinline__ void copy_later(uint4* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
        :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void committed() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void arrived_but_last() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// The larger of two sizes; NaN, other than with fmaxf, stays.
__device__ __forceinline__ float larger(float one, float other) {
    float made;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(made) : "f"(one), "f"(fabsf(other)));
    return made;
}
__device__ __forceinline__ float about_inverse(float value) {
    float made;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(value));
    return made;
}
// Two 8-bit floats, to nearest even, 448 for what is above it, and NaN: what torch has after a clamp.
__device__ __forceinline__ u32 eight_bits(float low, float high) {
    unsigned short made;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(made) : "f"(high), "f"(low));
    return made;
}

// Sums and largest sizes of the warps: a barrier is behind the last read of either before it is written again.
struct Parts { float4 sums[8]; u32 tops[32]; };
__device__ __forceinline__ float over_row(float sum, Parts& parts) {
    #pragma unroll
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) ((float*)parts.sums)[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    #pragma unroll 1
    for (int w = 0; w < blockDim.x / 32; w += 4) {
        const float4 part = parts.sums[w / 4];
        sum += part.x + part.y + (part.z + part.w);
    }
    return sum;
}
// Compared as whole numbers, where NaN is above infinity: one instruction for a warp.
__device__ __forceinline__ float most_of_row(float top, Parts& parts) {
    const u32 most = __reduce_max_sync(0xffffffffu, to_bits(top));
    if (threadIdx.x % 32 == 0) parts.tops[threadIdx.x / 32] = most;
    __syncthreads();
    return from_bits(__reduce_max_sync(0xffffffffu, parts.tops[threadIdx.x % 32]));
}
__device__ __forceinline__ void no_parts(Parts& parts) {
    if (threadIdx.x < 8) parts.sums[threadIdx.x] = float4{0.0f, 0.0f, 0.0f, 0.0f};
    if (threadIdx.x < 32) parts.tops[threadIdx.x] = 0;
    __syncthreads();
}

constexpr u32 LEAST = 0x358637bdu, INFINITE = 0x7f800000u;  // 1e-6, and what its name says
// Quotients as of `/`, without its branches: what a product with the reciprocal leaves is known exactly and put right.
__device__ __forceinline__ float quotient(float value, float by, float inverse) {
    const float close = value * inverse;
    return fmaf(-fmaf(close, by, -value), inverse, close);  // this way round, -0 stays what it is
}
struct Scale {
    float scale, inverse, divisor;
    __device__ __forceinline__ explicit Scale(float largest) {
        const float top = from_bits(max(to_bits(largest), LEAST));
        const bool infinite = to_bits(top) == INFINITE;
        // From 2.2e-9 to 7.6e35: neither it nor its reciprocal is a subnormal.
        scale = infinite ? top : quotient(top, 448.0f, 1.0f / 448.0f);
        // Of infinity, finite numbers are 0 and infinite ones NaN: a product with 0, of which nothing is put right.
        divisor = infinite ? 0.0f : scale;
        inverse = about_inverse(scale);
        inverse = fmaf(-fmaf(divisor, inverse, -1.0f), inverse, inverse);
    }
    __device__ __forceinline__ float operator()(float value) const { return quotient(value, divisor, inverse); }
};

// A thread's vectors of a row, the first of which is at `from`, into shared memory: [vector][thread]. Nobody else reads
// them.
template <int EACH> __device__ __forceinline__ void ahead(uint4* to, const char* from, int vectors) {
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = e * blockDim.x;
        if ((int)threadIdx.x < vectors - v) copy_later(to + v, from + v * 16);
    }
}
// Rows of up to HELD elements a thread. ODD: they begin between vectors, each of a block's at the same place. The
// weight is in shared memory as floats: in registers it would leave no room for 1,280 threads, which have 48 of them.
template <class T, int HELD, bool ODD>
__global__ void __launch_bounds__(HELD > 16 ? 512 : 320, HELD > 16 ? 2 : 4) rows_ahead(
    const T* x, const T* weight, unsigned char* out, float* scales, int rows, int hidden, float eps) {
    constexpr int LANES = 16 / sizeof(T), EACH = HELD / LANES, FOURS = LANES / 4;
    extern __shared__ uint4 room[];
    __shared__ Parts parts;
    const int thread = threadIdx.x, pitch = EACH * blockDim.x;
    const int head = ODD ? min(hidden, (int)((LANES - blockIdx.x * (i64)hidden % LANES) % LANES)) : 0;
    const int vectors = (hidden - head) / LANES, edge = hidden - vectors * LANES;
    // Of this thread's element before the first vector or after the last, -1 without one.
    const int column = !ODD || thread >= edge ? -1 : thread < head ? thread : thread + vectors * LANES;
    const i64 stride = (i64)gridDim.x * hidden;
    int row = blockIdx.x;
    i64 at = (i64)row * hidden;  // the same for all threads, as is what is added to it

    uint4 *mine = room + thread, *other = mine + pitch;
    const float4* factors = (const float4*)(mine + 2 * pitch);
    const char* next = (const char*)(x + (at + head + thread * LANES));
    #pragma unroll
    for (int s = 0; s < 2; s++) {
        if (row < rows - s * (int)gridDim.x) ahead<EACH>(mine + s * pitch, next, vectors);
        committed();
        next += stride * (i64)sizeof(T);
    }
    float coming = 0.0f, factor = 0.0f;
    if (ODD && column >= 0 && row < rows) coming = wide(x[at + column]), factor = wide(weight[column]);
    const bool even = (size_t)(weight + head) % 16 == 0;
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = e * blockDim.x + thread;
        float f[LANES];
        if (v < vectors && even) {
            unpack<T>(((const uint4*)(weight + head))[v], f);
        } else {
            #pragma unroll
            for (int k = 0; k < LANES; k++) f[k] = v < vectors ? wide(weight[head + v * LANES + k]) : 0.0f;
        }
        #pragma unroll
        for (int j = 0; j < FOURS; j++)
            ((float4*)factors)[(e * FOURS + j) * blockDim.x] =
                float4{f[4 * j], f[4 * j + 1], f[4 * j + 2], f[4 * j + 3]};
        // Where the row has no vector for the thread, no copy ever writes.
        if (v >= vectors) mine[e * blockDim.x] = other[e * blockDim.x] = uint4{0, 0, 0, 0};
    }
    no_parts(parts);
    const float share = 1.0f / hidden;
    for (; row < rows; row += gridDim.x, at += stride) {
        arrived_but_last();
        float value[EACH][LANES], sum = 0.0f;
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            unpack<T>(mine[e * blockDim.x], value[e]);
            float part = value[e][0] * value[e][0];
            #pragma unroll
            for (int k = 1; k < LANES; k++) part = fmaf(value[e][k], value[e][k], part);
            sum = e ? sum + part : part;
        }
        float single = coming;
        if (ODD) sum = fmaf(single, single, sum);
        const float root = rsqrtf(over_row(sum, parts) * share + eps);
        // Behind the barrier everybody has read the stage.
        if (row < rows - 2 * (int)gridDim.x) ahead<EACH>(mine, next, vectors);
        committed();
        next += stride * (i64)sizeof(T);
        uint4* const read = mine;
        mine = other, other = read;
        if (ODD && column >= 0 && row < rows - (int)gridDim.x) coming = wide((x + (at + stride))[column]);
        float top = 0.0f;
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            #pragma unroll
            for (int j = 0; j < FOURS; j++) {
                const float4 f = factors[(e * FOURS + j) * blockDim.x];
                float* four = value[e] + 4 * j;
                four[0] = four[0] * root * f.x, four[1] = four[1] * root * f.y;
                four[2] = four[2] * root * f.z, four[3] = four[3] * root * f.w;
                #pragma unroll
                for (int k = 0; k < 4; k++) top = larger(top, four[k]);
            }
        }
        if (ODD) {
            single = single * root * factor;
            top = larger(top, single);
        }
        const Scale scale(most_of_row(top, parts));
        if (thread == 0) scales[row] = scale.scale;
        unsigned char* to = out + (at + head);
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int v = e * blockDim.x + thread;
            if (v >= vectors) break;
            u32 word[FOURS];
            #pragma unroll
            for (int k = 0; k < LANES; k += 4)
                word[k / 4] = eight_bits(scale(value[e][k]), scale(value[e][k + 1]))
                    | eight_bits(scale(value[e][k + 2]), scale(value[e][k + 3])) << 16;
            if constexpr (LANES == 8) __stcs((uint2*)to + v, uint2{word[0], word[1]});
            else __stcs((u32*)to + v, word[0]);
        }
        if (ODD && column >= 0) (out + at)[column] = eight_bits(scale(single), 0.0f) & 0xff;
    }
}

// Rows of any length: 1,024 threads read them three times, the last two from the L2 cache.
template <class T> __global__ void __launch_bounds__(1024) rows_again(
    const T* x, const T* weight, unsigned char* out, float* scales, int rows, int hidden, float eps) {
    __shared__ Parts parts;
    no_parts(parts);
    const float share = 1.0f / hidden;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* from = x + (i64)row * hidden;
        unsigned char* to = out + (i64)row * hidden;
        float sum = 0.0f, top = 0.0f;
        #pragma unroll 8
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) sum = fmaf(wide(from[i]), wide(from[i]), sum);
        const float root = rsqrtf(over_row(sum, parts) * share + eps);
        #pragma unroll 8
        for (int i = threadIdx.x; i < hidden; i += blockDim.x)
            top = larger(top, wide(from[i]) * root * wide(weight[i]));
        const Scale scale(most_of_row(top, parts));
        if (threadIdx.x == 0) scales[row] = scale.scale;
        #pragma unroll 8
        for (int i = threadIdx.x; i < hidden; i += blockDim.x)
            to[i] = eight_bits(scale(wide(from[i]) * root * wide(weight[i])), 0.0f) & 0xff;
    }
}

struct Call {
    const void *x, *weight;
    void *out, *scales;
    i64 rows;
    int hidden;
    float eps;
    int resident, processors;
    cudaStream_t stream;
};
static i64 over(i64 value, i64 by) { return (value + by - 1) / by; }

template <class T, int HELD, bool ODD> static cudaError_t run(const Call& c) {
    constexpr int LANES = 16 / sizeof(T);
    const int threads = c.hidden < LANES ? 32 : (int)over(c.hidden / LANES, HELD / LANES * 32) * 32;
    const int shared = threads * HELD * (4 + 2 * (int)sizeof(T));  // the weight and two rows
    i64 resident = c.resident / threads, fit = 224000 / (shared + 1400);
    resident = resident < fit ? resident : fit;
    resident = resident < 1 ? 1 : resident > 16 ? 16 : resident;
    // Equally many rows for each block; where vectors are to lie alike in all of them, a multiple of LANES blocks.
    i64 places = c.processors * resident;
    if (ODD) places = places < LANES ? LANES : places / LANES * LANES;
    const i64 rounds = over(c.rows, places);
    i64 blocks = over(c.rows, rounds);
    if (ODD && rounds > 1) blocks = over(blocks, LANES) * LANES;
    const auto kernel = rows_ahead<T, HELD, ODD>;
    if (shared > 47 << 10) {  // with the static part, 48 KB need nobody's consent
        const cudaError_t failed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        if (failed != cudaSuccess) return failed;
    }
    kernel<<<(unsigned)blocks, threads, shared, c.stream>>>(
        (const T*)c.x, (const T*)c.weight, (unsigned char*)c.out, (float*)c.scales, (int)c.rows, c.hidden, c.eps);
    return cudaGetLastError();
}
template <class T, int HELD> static cudaError_t with_place(const Call& c) {
    return c.hidden % (16 / sizeof(T)) ? run<T, HELD, true>(c) : run<T, HELD, false>(c);
}
template <class T> static cudaError_t with_held(const Call& c, int held) {
    if (held == 8 && c.hidden <= 8 * 320) return with_place<T, 8>(c);
    if (held <= 16 && c.hidden <= 16 * 320) return with_place<T, 16>(c);
    if (c.hidden <= 32 * 512) return with_place<T, 32>(c);
    const i64 blocks = c.rows < 2 * c.processors ? c.rows : 2 * c.processors;
    rows_again<T><<<(unsigned)blocks, 1024, 0, c.stream>>>(
        (const T*)c.x, (const T*)c.weight, (unsigned char*)c.out, (float*)c.scales, (int)c.rows, c.hidden, c.eps);
    return cudaGetLastError();
}
cudaError_t launch(
    char type, const void* x, const void* weight, void* out, void* scales, i64 rows, int hidden, float eps, int held,
    int resident, int device, cudaStream_t stream) {
    Call call = {x, weight, out, scales, rows, hidden, eps, resident, 0, stream};
    const cudaError_t failed = cudaDeviceGetAttribute(&call.processors, cudaDevAttrMultiProcessorCount, device);
    if (failed != cudaSuccess) return failed;
    if (type == 'h') return with_held<__half>(call, held);
    if (type == 'b') return with_held<__nv_bfloat16>(call, held);
    return with_held<float>(call, held);
}
"""

GLUE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <limits>
#include <tuple>

using at::Tensor;
typedef long long i64;

cudaError_t launch(
    char type, const void* x, const void* weight, void* out, void* scales, i64 rows, int hidden, float eps, int held,
    int resident, int device, cudaStream_t stream);

static bool known(at::ScalarType type) { return type == at::kFloat || type == at::kHalf || type == at::kBFloat16; }
// Elsewhere vectors of x and of the 8-bit result would begin at different elements.
static Tensor aligned(const Tensor& given) {
    const Tensor x = given.contiguous();
    return (uintptr_t)x.const_data_ptr() % 16 ? x.clone() : x;
}

std::tuple<Tensor, Tensor> rmsnorm_quant(
    const Tensor& given, const Tensor& weight, double eps, int64_t held, int64_t resident) {
    const i64 hidden = weight.numel();
    TORCH_CHECK(given.is_cuda() && weight.device() == given.device(), "tensors of one GPU are needed");
    TORCH_CHECK(known(given.scalar_type()) && known(weight.scalar_type()), "float32, float16 or bfloat16, not ",
                given.scalar_type(), " and ", weight.scalar_type());
    TORCH_CHECK(given.dim() && weight.dim() == 1 && given.size(-1) == hidden && hidden > 0 &&
                    hidden <= std::numeric_limits<int>::max() / 2,
                "rows of ", hidden, " are needed, not ", given.sizes());
    TORCH_CHECK(given.numel() / hidden <= std::numeric_limits<int>::max() / 2, "too many rows");
    const c10::cuda::CUDAGuard guard(given.device());
    const bool alike = given.scalar_type() == weight.scalar_type();  // else both as floats, as in the reference
    const Tensor x = aligned(alike ? given : given.to(at::kFloat));
    const Tensor factors = (alike ? weight : weight.to(at::kFloat)).contiguous();
    at::DimVector shape(x.sizes());
    Tensor out = at::empty(shape, x.options().dtype(at::kFloat8_e4m3fn));
    shape.back() = 1;
    Tensor scales = at::empty(shape, x.options().dtype(at::kFloat));
    if (!x.numel()) return {out, scales};
    const auto type = x.scalar_type();
    const int device = x.device().index();
    C10_CUDA_CHECK(launch(
        type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', x.const_data_ptr(), factors.const_data_ptr(),
        out.mutable_data_ptr(), scales.mutable_data_ptr(), x.numel() / hidden, (int)hidden, (float)eps, (int)held,
        (int)resident, device, c10::cuda::getCurrentCUDAStream(device)));
    return {out, scales};
}
"""
rmsnorm_quant = load_inline(
    name="rmsnorm_quant_rows_ahead",
    cpp_sources=GLUE,
    cuda_sources=KERNELS,
    functions=["rmsnorm_quant"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
).rmsnorm_quant


class ModelNew(nn.Module):
    def __init__(self, hidden, eps=1e-6, dtype="float32"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
        self.eps = eps

    def forward(self, x):
        # Out of the dictionary: a parameter by attribute costs 2 us.
        return rmsnorm_quant(x, self._parameters["weight"], self.eps, HELD, RESIDENT)
