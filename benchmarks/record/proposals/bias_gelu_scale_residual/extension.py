"""One pass in the order of memory, 16 bytes a load, two of x and of the residual under way in a thread; bias and scale
come from the cache. Rows of odd length are walked by the element, a warp on neighbours: vectors of bias and scale would
begin anywhere. One call of C++, as small workloads wait for the host.

Bound by memory: two reads and one write. The six bytes of an element of 16-bit numbers leave less time than the twelve
of float32: there GELU is x times a logistic function of x times a polynomial of x^2, off by 1.2e-6 at most, at half of
erf's instructions.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"ROUNDS": [1, 2, 4], "THREADS": [128, 256, 512]}
ROUNDS = 2
"""Vectors of each tensor that a thread has under way; four times as many single elements."""
THREADS = 256

INSTRUCTIONS = r"""
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// What is below 2^-126 is zero.
__device__ __forceinline__ float power_of_two(float value) {
    float made;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(value));
    return made;
}
__device__ __forceinline__ float inverse(float value) {
    float made;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(value));
    return made;
}
"""

KERNELS = r"""
__device__ __forceinline__ float wide(float value) { return value; }
__device__ __forceinline__ float wide(__half value) { return __half2float(value); }
__device__ __forceinline__ float wide(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void narrow(float value, float& to) { to = value; }
__device__ __forceinline__ void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

template <class T> struct Word;  // one float or two 16-bit numbers
template <> struct Word<float> {
    static __device__ __forceinline__ void unpack(u32 word, float* to) { to[0] = __uint_as_float(word); }
    static __device__ __forceinline__ u32 pack(const float* from) { return __float_as_uint(from[0]); }
};
template <> struct Word<__half> {
    static __device__ __forceinline__ void unpack(u32 word, float* to) {
        const float2 pair = __half22float2(*(const __half2*)&word);
        to[0] = pair.x, to[1] = pair.y;
    }
    static __device__ __forceinline__ u32 pack(const float* from) {
        const __half2 pair = __floats2half2_rn(from[0], from[1]);
        return *(const u32*)&pair;
    }
};
template <> struct Word<__nv_bfloat16> {
    static __device__ __forceinline__ void unpack(u32 word, float* to) {
        to[0] = __uint_as_float(word << 16), to[1] = __uint_as_float(word & 0xffff0000u);
    }
    static __device__ __forceinline__ u32 pack(const float* from) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(from[0], from[1]);
        return *(const u32*)&pair;
    }
};

// What a thread loads and stores at once: 16 bytes, or one element where rows do not begin at multiples of 16 bytes.
template <class T> struct Vector {
    static constexpr int LANES = 16 / sizeof(T), PER = 4 / sizeof(T);
    u32 word[4];
    __device__ __forceinline__ void take(uint4 all) {
        word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
    }
    __device__ __forceinline__ void load(const T* from) { take(__ldcs((const uint4*)from)); }
    __device__ __forceinline__ void load_often(const T* from) { take(__ldg((const uint4*)from)); }
    __device__ __forceinline__ void get(int w, float* to) const { Word<T>::unpack(word[w], to); }
    __device__ __forceinline__ void set(int w, const float* from) { word[w] = Word<T>::pack(from); }
    __device__ __forceinline__ void store(T* to) const {
        __stcs((uint4*)to, uint4{word[0], word[1], word[2], word[3]});
    }
};
template <class T> struct Single {
    static constexpr int LANES = 1, PER = 1;
    T value;
    __device__ __forceinline__ void load(const T* from) { value = *from; }
    __device__ __forceinline__ void load_often(const T* from) { value = *from; }
    __device__ __forceinline__ void get(int, float* to) const { to[0] = wide(value); }
    __device__ __forceinline__ void set(int, const float* from) { narrow(from[0], value); }
    __device__ __forceinline__ void store(T* to) const { *to = value; }
};

// Divides by a multiplication what is below 2^31.
struct Divider {
    u32 by, factor, shift;
    explicit Divider(u32 number) : by(number), shift(0) {
        while ((1ull << shift) < by) shift++;
        factor = (u32)((((1ull << shift) - by) << 32) / by + 1);
    }
    __device__ __forceinline__ u32 rest(u32 of) const {
        return of - ((__umulhi(of, factor) + of) >> shift) * by;
    }
    __device__ __forceinline__ u32 rest_of_any(u64 of) const {
        return of < 1ull << 31 ? rest((u32)of) : (u32)(of % by);
    }
};

template <class T> __device__ __forceinline__ float gelu(float x) {
    if constexpr (sizeof(T) == 4) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    // The normal distribution's logit is x times this, fitted up to 5.5, in powers of two. An infinity is not squared,
    // nor multiplied with zero before the end, where torch does as well.
    const float square = fminf(x * x, 30.25f);
    float slope = -2.6381226e-9f;
    slope = slope * square + 2.4764372e-7f;
    slope = slope * square - 8.8648685e-6f;
    slope = slope * square + 1.3822128e-4f;
    slope = slope * square + 1.7219623e-4f;
    slope = slope * square - 1.0494926e-1f;
    slope = slope * square - 2.3021615f;
    return x * inverse(1.0f + power_of_two(x * slope));
}

template <class T, class Piece, int EACH> __global__ void __launch_bounds__(THREADS) finish(
    const T* x, const T* residual, const T* bias, const T* scale, T* out, i64 count, Divider hidden) {
    constexpr int LANES = Piece::LANES, PER = Piece::PER, STEP = THREADS * LANES;
    const i64 begin = (i64)blockIdx.x * (STEP * EACH), first = begin + (int)threadIdx.x * LANES;
    const int left = (int)min(count - first, (i64)(STEP * EACH));  // elements, from the thread's first on
    const u32 column = hidden.rest_of_any(begin) + threadIdx.x * LANES;
    x += first, residual += first, out += first;
    Piece xs[EACH], rest[EACH], biases[EACH], scales[EACH];
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (e * STEP >= left) continue;
        xs[e].load(x + e * STEP), rest[e].load(residual + e * STEP);
    }
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (e * STEP >= left) continue;
        const u32 at = hidden.rest(column + e * STEP);
        biases[e].load_often(bias + at), scales[e].load_often(scale + at);
    }
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (e * STEP >= left) continue;
        #pragma unroll
        for (int w = 0; w < LANES / PER; w++) {
            float value[PER], add[PER], shift[PER], factor[PER];
            xs[e].get(w, value), rest[e].get(w, add), biases[e].get(w, shift), scales[e].get(w, factor);
            #pragma unroll
            for (int l = 0; l < PER; l++) value[l] = gelu<T>(value[l] + shift[l]) * factor[l] + add[l];
            xs[e].set(w, value);
        }
        xs[e].store(out + e * STEP);
    }
}

template <class T, class Piece, int EACH> static cudaError_t launch(
    const void* const* from, void* out, i64 count, i64 hidden, cudaStream_t stream) {
    constexpr int SHARE = THREADS * Piece::LANES * EACH;
    const i64 blocks = (count + SHARE - 1) / SHARE;
    if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
    finish<T, Piece, EACH><<<(u32)blocks, THREADS, 0, stream>>>(
        (const T*)from[0], (const T*)from[1], (const T*)from[2], (const T*)from[3], (T*)out, count,
        Divider((u32)hidden));
    return cudaGetLastError();
}
// `from`: x, the residual, bias and scale. At least one element, and no more than 2^30 columns.
cudaError_t finish_launch(
    char type, const void* const* from, void* out, i64 count, i64 hidden, cudaStream_t stream) {
    const auto with = [&](auto sample) {
        typedef decltype(sample) T;
        bool even = hidden % Vector<T>::LANES == 0 && (size_t)out % 16 == 0;
        for (int i = 0; i < 4; i++) even = even && (size_t)from[i] % 16 == 0;
        if (even) return launch<T, Vector<T>, ROUNDS>(from, out, count, hidden, stream);
        return launch<T, Single<T>, 4 * ROUNDS>(from, out, count, hidden, stream);
    };
    if (type == 'h') return with(__half());
    if (type == 'b') return with(__nv_bfloat16());
    return with(0.0f);
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

using at::Tensor;
typedef long long i64;

cudaError_t finish_launch(
    char type, const void* const* from, void* out, i64 count, i64 hidden, cudaStream_t stream);

Tensor finish(
    const Tensor& of_x, const Tensor& of_residual, const Tensor& of_bias, const Tensor& of_scale) {
    const auto type = of_x.scalar_type();
    TORCH_CHECK(of_x.is_cuda(), "tensors of a GPU, not of ", of_x.device());
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
                "float16, bfloat16 or float32 are needed, not ", type);
    for (const Tensor* each : {&of_residual, &of_bias, &of_scale})
        TORCH_CHECK(each->scalar_type() == type && each->device() == of_x.device(), "x is of ", type, " on ",
                    of_x.device(), ", something else of ", each->scalar_type(), " on ", each->device());
    TORCH_CHECK(of_x.dim() >= 1 && of_residual.sizes() == of_x.sizes() && of_bias.dim() == 1 &&
                    of_bias.size(0) == of_x.size(-1) && of_scale.sizes() == of_bias.sizes(),
                "x ", of_x.sizes(), ", residual ", of_residual.sizes(), ", bias ", of_bias.sizes(), " and scale ",
                of_scale.sizes(), " do not fit one another");
    const i64 count = of_x.numel(), hidden = of_bias.size(0);
    TORCH_CHECK(hidden <= 1 << 30, "too large: ", of_x.sizes());
    const c10::cuda::CUDAGuard guard(of_x.device());
    const Tensor out = at::empty(of_x.sizes(), of_x.options());
    if (!count) return out;
    const Tensor x = of_x.contiguous(), residual = of_residual.contiguous();
    const Tensor bias = of_bias.contiguous(), scale = of_scale.contiguous();
    const void* const from[] = {
        x.const_data_ptr(), residual.const_data_ptr(), bias.const_data_ptr(), scale.const_data_ptr()};
    C10_CUDA_CHECK(finish_launch(
        type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', from, out.mutable_data_ptr(), count, hidden,
        c10::cuda::getCurrentCUDAStream()));
    return out;
}
"""
finish = load_inline(
    name="bias_gelu_scale_residual",
    cpp_sources=[GLUE],
    cuda_sources=[INSTRUCTIONS, KERNELS],
    functions=["finish"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3", f"-DROUNDS={ROUNDS}", f"-DTHREADS={THREADS}"],
    no_implicit_headers=True,
).finish


class ModelNew(nn.Module):
    def __init__(self, hidden, dtype="float32"):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(hidden, dtype=getattr(torch, dtype)))
        self.scale = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))

    def forward(self, x, residual):
        held = self._parameters  # out of the dictionary: a parameter by attribute costs the host more
        return finish(x, residual, held["bias"], held["scale"])
