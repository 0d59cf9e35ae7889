"""A thread turns 16 bytes of both halves of two heads, queries and keys alike, by angles that it reads once; backward
is the same kernel with the sine's sign changed. Bound by memory: 4 tensors of traffic, forward and backward.
"""

import functools

import torch
from kernelwright import load_cuda
from torch import nn

TUNABLES = {"ITEMS": [1, 2], "THREADS": [96, 160, 320]}
ITEMS = 2
"""Heads of a thread whose loads are under way together."""
THREADS = 320
"""Of a block of whole tokens; more where a token has more."""
MOST_VECTORS, MOST_SINGLES = 320, 512
"""Threads of a block: with 320 there are 48 registers for each of 1,280 on a processor."""

SOURCE = r"""
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

// A token has `unit` threads: `groups` for each place of a half, and each of these has every so many-th head.
template <class T, class Piece> __device__ __forceinline__ void turn(
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

extern "C" __global__ void __launch_bounds__(320, 4) turn_vectors(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* cos, const ELEMENT* sin, ELEMENT* out_q, ELEMENT* out_k,
    int tokens, int length, int heads, int kv_heads, int half, int groups, int unit, float sign) {
    turn<ELEMENT, Vector<ELEMENT>>(
        q, k, cos, sin, out_q, out_k, tokens, length, heads, kv_heads, half, groups, unit, sign);
}
extern "C" __global__ void __launch_bounds__(512, 2) turn_singles(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* cos, const ELEMENT* sin, ELEMENT* out_q, ELEMENT* out_k,
    int tokens, int length, int heads, int kv_heads, int half, int groups, int unit, float sign) {
    turn<ELEMENT, Single<ELEMENT>>(
        q, k, cos, sin, out_q, out_k, tokens, length, heads, kv_heads, half, groups, unit, sign);
}
"""
NAMES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", torch.float32: "float"}


@functools.cache
def module(dtype):
    return load_cuda(SOURCE, flags=[f"-DELEMENT={NAMES[dtype]}", f"-DITEMS={ITEMS}"])


@functools.lru_cache(maxsize=64)
def planned(shape, key_shape, angles, dtype):
    """Launches and the sizes that they are given: of vectors (None: halves are no whole ones), of singles."""
    batch, length, heads, dim = shape
    kv_heads, half = key_shape[2], dim // 2
    if key_shape != (batch, length, kv_heads, dim) or dim % 2 or angles[0] < length or angles[1] != half:
        raise ValueError(f"angles {tuple(angles)} do not fit queries {tuple(shape)} and keys {tuple(key_shape)}")
    if dtype not in NAMES or half > MOST_SINGLES:
        raise ValueError(f"float16, bfloat16 or float32, and up to {2 * MOST_SINGLES} elements, not {dtype} of {dim}")
    tokens, found = batch * length, []
    if not tokens * half * (heads + kv_heads):
        return None
    for lanes, most in ((16 // dtype.itemsize, MOST_VECTORS), (1, MOST_SINGLES)):
        each = half // lanes
        if half % lanes:
            found.append(None)
            continue
        groups = max(1, min(-(-(heads + kv_heads) // ITEMS), most // each))
        unit = groups * each
        many = max(1, min(tokens, THREADS // unit))
        kernel = module(dtype).turn_vectors if lanes > 1 else module(dtype).turn_singles
        launch = kernel[(-(-tokens // many),), (many * unit,)]
        found.append((launch, (tokens, length, heads, kv_heads, half, groups, unit)))
    return found


def turned(q, k, cos, sin, sign):
    q, k = q.contiguous(), k.contiguous()
    out_q, out_k = torch.empty_like(q), torch.empty_like(k)
    plan = planned(q.shape, k.shape, cos.shape, q.dtype)
    if plan:
        vectors = plan[0]
        if (q.data_ptr() | k.data_ptr() | cos.data_ptr() | sin.data_ptr()) % 16:
            vectors = None
        launch, sizes = vectors or plan[1]
        launch(q, k, cos, sin, out_q, out_k, *sizes, sign)
    return out_q, out_k


class Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin):
        if not q.dtype == k.dtype == cos.dtype == sin.dtype:
            raise ValueError(f"queries of {q.dtype}, keys of {k.dtype} and angles of {cos.dtype} are not of one type")
        ctx.save_for_backward(cos, sin)
        return turned(q, k, cos, sin, 1.0)

    @staticmethod
    def backward(ctx, dq, dk):
        cos, sin = ctx.saved_tensors
        dq, dk = turned(dq, dk, cos, sin, -1.0)
        return dq, dk, None, None


class ModelNew(nn.Module):
    def __init__(self, length, dim, base=10000.0, dtype="float32"):
        super().__init__()
        frequency = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(length).float(), frequency)
        self.register_buffer("cos", angle.cos().to(getattr(torch, dtype)))
        self.register_buffer("sin", angle.sin().to(getattr(torch, dtype)))
        module(self.cos.dtype)

    def forward(self, q, k):
        return Turn.apply(q, k, self.cos.contiguous(), self.sin.contiguous())
