"""A thread turns 16 bytes of both halves of two heads, queries and keys alike, by angles that it reads once; backward
is the same kernel with the sine's sign changed. Autograd's function is in C++: a call's time on the host is what
small workloads wait for. Bound by memory: 4 tensors of traffic, forward and backward.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TUNABLES = {"ITEMS": [1, 2], "THREADS": [96, 160, 320]}
ITEMS = 2
"""Heads of a thread whose loads are under way together."""
THREADS = 320
"""Of a block of whole tokens; more where a token has more."""

KERNELS = r"""
#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
typedef unsigned int u32;
typedef long long i64;

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

// What a thread loads and stores at once: 16 bytes, or one element where halves do not begin at multiples of 16 bytes.
template <class T> struct Vector {
    static constexpr int LANES = 16 / sizeof(T), PER = 4 / sizeof(T);
    static constexpr int MOST = 320, RESIDENT = 4;  // 48 registers for each of 1,280 threads on a processor
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
    static constexpr int MOST = 512, RESIDENT = 2;
    T value;
    __device__ __forceinline__ void load(const T* from) { value = *from; }
    __device__ __forceinline__ void load_often(const T* from) { value = *from; }
    __device__ __forceinline__ void get(int, float* to) const { to[0] = wide(value); }
    __device__ __forceinline__ void set(int, const float* from) { narrow(from[0], value); }
    __device__ __forceinline__ void store(T* to) const { *to = value; }
};

// A token has `unit` threads: `groups` for each place of a half, and each of these has every so many-th head.
template <class T, class Piece, int ITEMS> __global__ void __launch_bounds__(Piece::MOST, Piece::RESIDENT) turn(
    const T* q, const T* k, const T* cos, const T* sin, T* out_q, T* out_k,
    u32 tokens, u32 length, int heads, int kv_heads, int half, int groups, u32 unit, float sign) {
    constexpr int LANES = Piece::LANES, PER = Piece::PER;
    const u32 each = half / LANES, local = threadIdx.x % unit, group = local / each, place = local % each * LANES;
    const u32 token = blockIdx.x * (blockDim.x / unit) + threadIdx.x / unit;
    if (token >= tokens) return;
    Piece near, far;
    const i64 angle = (i64)(token % length) * half + place;
    near.load_often(cos + angle), far.load_often(sin + angle);
    const i64 start_q = (i64)token * heads * 2 * half + place, start_k = (i64)token * kv_heads * 2 * half + place;
    for (int begin = (int)group; begin < heads + kv_heads; begin += ITEMS * groups) {
        Piece first[ITEMS], second[ITEMS];
        #pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            const int head = begin + j * groups;
            if (head >= heads + kv_heads) continue;
            const T* from = head < heads ? q + start_q + head * 2 * half : k + start_k + (head - heads) * 2 * half;
            first[j].load(from), second[j].load(from + half);
        }
        #pragma unroll
        for (int w = 0; w < LANES / PER; w++) {  // a word at a time: 64 floats would not fit beside the words
            float c[PER], s[PER], one[PER], other[PER], made[PER];
            near.get(w, c), far.get(w, s);
            #pragma unroll
            for (int j = 0; j < ITEMS; j++) {
                first[j].get(w, one), second[j].get(w, other);
                #pragma unroll
                for (int l = 0; l < PER; l++) made[l] = one[l] * c[l] - other[l] * (sign * s[l]);
                first[j].set(w, made);
                #pragma unroll
                for (int l = 0; l < PER; l++) made[l] = other[l] * c[l] + one[l] * (sign * s[l]);
                second[j].set(w, made);
            }
        }
        #pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            const int head = begin + j * groups;
            if (head >= heads + kv_heads) continue;
            T* to = head < heads ? out_q + start_q + head * 2 * half : out_k + start_k + (head - heads) * 2 * half;
            first[j].store(to), second[j].store(to + half);
        }
    }
}

template <class T, class Piece, int ITEMS> void launch(
    const void* q, const void* k, const void* cos, const void* sin, void* out_q, void* out_k,
    int tokens, int length, int heads, int kv_heads, int half, int threads, float sign, cudaStream_t stream) {
    const int each = half / Piece::LANES;
    const int groups = std::max(1, std::min((heads + kv_heads + ITEMS - 1) / ITEMS, Piece::MOST / each));
    const int unit = groups * each, many = std::max(1, std::min(tokens, threads / unit));
    turn<T, Piece, ITEMS><<<(tokens + many - 1) / many, many * unit, 0, stream>>>(
        (const T*)q, (const T*)k, (const T*)cos, (const T*)sin, (T*)out_q, (T*)out_k,
        tokens, length, heads, kv_heads, half, groups, unit, sign);
}
template <class T, class Piece, class... Args> void with_items(int items, Args... args) {
    if (items == 2) launch<T, Piece, 2>(args...);
    else launch<T, Piece, 1>(args...);
}
cudaError_t turn_launch(
    char type, bool aligned, int items, const void* q, const void* k, const void* cos, const void* sin, void* out_q,
    void* out_k, int tokens, int length, int heads, int kv_heads, int half, int threads, float sign,
    cudaStream_t stream) {
    auto with = [&](auto sample) {
        typedef decltype(sample) T;
        auto go = [&](auto start) {
            start(items, q, k, cos, sin, out_q, out_k, tokens, length, heads, kv_heads, half, threads, sign, stream);
        };
        if (aligned && half % Vector<T>::LANES == 0)
            go([](auto... all) { with_items<T, Vector<T>>(all...); });
        else
            go([](auto... all) { with_items<T, Single<T>>(all...); });
    };
    if (type == 'h') with(__half());
    else if (type == 'b') with(__nv_bfloat16());
    else with(0.0f);
    return cudaGetLastError();
}
"""

GLUE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>
#include <limits>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

cudaError_t turn_launch(
    char type, bool aligned, int items, const void* q, const void* k, const void* cos, const void* sin, void* out_q,
    void* out_k, int tokens, int length, int heads, int kv_heads, int half, int threads, float sign,
    cudaStream_t stream);

// Queries and keys turned, by the opposite of the angles with a sign of -1. `cos` and `sin` are contiguous.
static variable_list turned(const Tensor& of_q, const Tensor& of_k, const Tensor& cos, const Tensor& sin,
                            int64_t items, int64_t threads, float sign) {
    const c10::cuda::CUDAGuard guard(of_q.device());
    const Tensor q = of_q.contiguous(), k = of_k.contiguous();
    const Tensor out_q = at::empty(q.sizes(), q.options()), out_k = at::empty(k.sizes(), k.options());
    const int64_t tokens = q.size(0) * q.size(1), heads = q.size(2), kv_heads = k.size(2), half = q.size(3) / 2;
    if (!(tokens * (heads + kv_heads) * half)) return {out_q, out_k};
    const void *from_q = q.const_data_ptr(), *from_k = k.const_data_ptr();
    const void *c = cos.const_data_ptr(), *s = sin.const_data_ptr();
    const bool aligned = ((uintptr_t)from_q | (uintptr_t)from_k | (uintptr_t)c | (uintptr_t)s) % 16 == 0;
    const auto type = q.scalar_type();
    C10_CUDA_CHECK(turn_launch(
        type == at::kHalf ? 'h' : type == at::kBFloat16 ? 'b' : 'f', aligned, (int)items, from_q, from_k, c, s,
        out_q.mutable_data_ptr(), out_k.mutable_data_ptr(), (int)tokens, (int)q.size(1), (int)heads, (int)kv_heads,
        (int)half, (int)threads, sign, c10::cuda::getCurrentCUDAStream(q.device().index())));
    return {out_q, out_k};
}

struct Turn : torch::autograd::Function<Turn> {
    static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& cos,
                                 const Tensor& sin, int64_t items, int64_t threads) {
        ctx->save_for_backward({cos, sin});
        ctx->saved_data["items"] = items;
        ctx->saved_data["threads"] = threads;
        return turned(q, k, cos, sin, items, threads, 1.0f);
    }
    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const variable_list saved = ctx->get_saved_variables();
        const int64_t items = ctx->saved_data["items"].toInt(), threads = ctx->saved_data["threads"].toInt();
        const variable_list made = turned(grads[0], grads[1], saved[0], saved[1], items, threads, -1.0f);
        return {made[0], made[1], {}, {}, {}, {}};
    }
};

variable_list rope(const Tensor& q, const Tensor& k, const Tensor& all_cos, const Tensor& all_sin, int64_t items,
                   int64_t threads) {
    const auto type = q.scalar_type();
    TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
                "float16, bfloat16 or float32 are needed, not ", type);
    for (const Tensor* each : {&k, &all_cos, &all_sin})
        TORCH_CHECK(each->scalar_type() == type && each->device() == q.device(), "queries are of ", type, " on ",
                    q.device(), ", something else of ", each->scalar_type(), " on ", each->device());
    TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && q.size(0) == k.size(0) && q.size(1) == k.size(1) &&
                    q.size(3) == k.size(3) && q.size(3) % 2 == 0 && q.size(3) <= 1024,
                "[batch, length, heads, up to 1024 elements] twice are needed, not ", q.sizes(), " and ", k.sizes());
    TORCH_CHECK(all_cos.dim() == 2 && all_cos.sizes() == all_sin.sizes() && all_cos.size(0) >= q.size(1) &&
                    all_cos.size(1) * 2 == q.size(3),
                "angles ", all_cos.sizes(), " do not fit queries ", q.sizes());
    TORCH_CHECK(q.size(0) * q.size(1) <= std::numeric_limits<int>::max() / 2, "too many tokens: ", q.sizes());
    const Tensor cos = all_cos.contiguous(), sin = all_sin.contiguous();
    if (at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad()))
        return Turn::apply(q, k, cos, sin, items, threads);
    return turned(q, k, cos, sin, items, threads, 1.0f);
}
"""
rope = load_inline(
    name="rope_extension",
    cpp_sources=GLUE,
    cuda_sources=KERNELS,
    functions=["rope"],
    extra_cflags=["-O2"],
    extra_cuda_cflags=["-O3"],
    no_implicit_headers=True,
).rope


class ModelNew(nn.Module):
    def __init__(self, length, dim, base=10000.0, dtype="float32"):
        super().__init__()
        frequency = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(length).float(), frequency)
        self.register_buffer("cos", angle.cos().to(getattr(torch, dtype)))
        self.register_buffer("sin", angle.sin().to(getattr(torch, dtype)))

    def forward(self, q, k):
        out_q, out_k = rope(q, k, self.cos, self.sin, ITEMS, THREADS)
        return out_q, out_k
