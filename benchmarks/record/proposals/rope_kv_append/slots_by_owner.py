"""One pass: a table says which token owns a slot of the cache, so each row of the result is written once, from its
source.

The reference gathers angles, rotates by five tensors, joins, copies both caches and writes over them. Here a cache's
row is either copied or rotated in place of its copy, and queries are turned as they are read.
"""

import torch
from kernelwright import load_cpp
from torch import nn

SOURCE = r"""
#include <stdint.h>
#include <string.h>
#define INLINE static inline __attribute__((always_inline))
#define INF __builtin_inff()
#define NOT_A_NUMBER __builtin_nanf("")
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));

// A place in a row: sixteen elements, or the last few of it.
struct Whole { int64_t i; };
struct Rest { int64_t i, count; };
INLINE vf splat(float x) { return vf{} + x; }
INLINE vf load(const float* p) { vf v; memcpy(&v, p, sizeof v); return v; }
INLINE vf load(const float* p, Whole k) { return load(p + k.i); }
INLINE void store(float* p, vf v) { memcpy(p, &v, sizeof v); }
INLINE void store(float* p, Whole k, vf v) { store(p + k.i, v); }
INLINE vi first_lanes(int64_t count) {
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return lane < (int32_t)count;
}
INLINE vf keep(vf v, Whole) { return v; }
INLINE vf keep(vf v, Rest k) { return first_lanes(k.count) ? v : vf{}; }
#ifdef __AVX512F__
INLINE vf load(const float* p, Rest k) {
    return (vf)__builtin_ia32_loadups512_mask(p + k.i, vf{}, (unsigned short)((1u << k.count) - 1));
}
INLINE void store(float* p, Rest k, vf v) {
    __builtin_ia32_storeups512_mask(p + k.i, v, (unsigned short)((1u << k.count) - 1));
}
#else
INLINE vf load(const float* p, Rest k) { vf v = {}; memcpy(&v, p + k.i, 4 * k.count); return v; }
INLINE void store(float* p, Rest k, vf v) { memcpy(p + k.i, &v, 4 * k.count); }
#endif
template <class Body> INLINE void walk(int64_t n, Body body) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) body(Whole{i});
    if (i < n) body(Rest{i, n - i});
}

INLINE void turn(const float* in, float* out, const float* cos, const float* sin, int64_t heads, int64_t half) {
    for (int64_t h = 0; h < heads; h++, in += 2 * half, out += 2 * half)
        walk(half, [&](auto k) {
            const vf a = load(in, k), b = load(in + half, k), c = load(cos, k), s = load(sin, k);
            store(out, k, a * c - b * s);
            store(out + half, k, b * c + a * s);
        });
}

// owner: for each slot the token that is written to it, or -1; behind them whether an index is out of range.
extern "C" void append(const float* q, const float* k, const float* v, const float* keys, const float* values,
                       const int64_t* positions, const int64_t* slots, const float* cos, const float* sin, float* out,
                       float* out_keys, float* out_values, int64_t* owner, int64_t tokens, int64_t heads,
                       int64_t kv_heads, int64_t dim, int64_t cache, int64_t length) {
    const int64_t half = dim / 2, row = kv_heads * dim;
    owner[cache] = 0;
    for (int64_t s = 0; s < cache; s++) owner[s] = -1;
    for (int64_t t = 0; t < tokens; t++) {
        if (positions[t] < -length || positions[t] >= length || slots[t] < 0 || slots[t] >= cache) {
            owner[cache] = 1;
            return;
        }
        owner[slots[t]] = t;
    }
    #pragma omp parallel if (tokens * heads * dim + 2 * cache * row >= 262144)
    {
        #pragma omp for schedule(static) nowait
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t at = (positions[t] < 0 ? positions[t] + length : positions[t]) * half;
            turn(q + t * heads * dim, out + t * heads * dim, cos + at, sin + at, heads, half);
        }
        #pragma omp for schedule(static)
        for (int64_t s = 0; s < cache; s++) {
            const int64_t t = owner[s];
            if (t < 0) {
                memcpy(out_keys + s * row, keys + s * row, row * sizeof(float));
                memcpy(out_values + s * row, values + s * row, row * sizeof(float));
                continue;
            }
            const int64_t at = (positions[t] < 0 ? positions[t] + length : positions[t]) * half;
            turn(k + t * row, out_keys + s * row, cos + at, sin + at, kv_heads, half);
            memcpy(out_values + s * row, v + t * row, row * sizeof(float));
        }
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, length, dim, base=10000.0, dtype="float32"):
        super().__init__()
        frequency = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(length).float(), frequency)
        self.register_buffer("cos", angle.cos().to(getattr(torch, dtype)))
        self.register_buffer("sin", angle.sin().to(getattr(torch, dtype)))

    def forward(self, q, k, v, key_cache, value_cache, positions, slots):
        q, k, v, positions, slots = (each.contiguous() for each in (q, k, v, positions, slots))
        key_cache, value_cache, cos = key_cache.contiguous(), value_cache.contiguous(), self.cos
        (tokens, heads, dim), kv_heads, cache, length = q.shape, k.shape[1], key_cache.shape[0], cos.shape[0]
        kinds = {q.dtype, k.dtype, v.dtype, key_cache.dtype, value_cache.dtype, cos.dtype}
        if kinds != {torch.float32} or not positions.dtype == slots.dtype == torch.int64 or dim != 2 * cos.shape[1]:
            raise ValueError(f"{kinds} and heads of {dim} are not what this kernel is for")
        if not k.shape == v.shape == (tokens, kv_heads, dim) or not positions.shape == slots.shape == (tokens,):
            raise ValueError("tokens, positions and slots do not fit one another")
        if not key_cache.shape == value_cache.shape == (cache, kv_heads, dim):
            raise ValueError("the caches do not fit the keys")
        outs = torch.empty_like(q), torch.empty_like(key_cache), torch.empty_like(value_cache)
        owner = torch.empty(cache + 1, dtype=torch.int64)
        lib.append(
            q, k, v, key_cache, value_cache, positions, slots, cos, self.sin, *outs, owner,
            tokens, heads, kv_heads, dim, cache, length,
        )  # fmt: skip
        if owner[cache].item():
            raise IndexError("a position or a slot is out of range")
        return outs
