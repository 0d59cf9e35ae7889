"""Both halves of a head are turned in one pass, each token's angles staying in the first cache for all of its heads.

The reference makes four products, two sums and a joined copy for queries and keys each, and the same again backwards.
The backward is the same turn the other way, so nothing but the table of angles is kept.
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

// Streaming stores save reading the lines that they overwrite; they want whole cache lines.
#ifdef __AVX512F__
INLINE void stream(float* p, vf v) { __builtin_ia32_movntps512(p, v); }
#define FENCE __builtin_ia32_sfence()
#else
INLINE void stream(float* p, vf v) { store(p, v); }
#define FENCE
#endif
INLINE bool lines(const void* p) { return ((uintptr_t)p & 63) == 0; }

template <bool STREAMED> INLINE void turn(const float* in, float* out, const float* cos, const float* sin, float way,
                                          int64_t heads, int64_t half) {
    for (int64_t h = 0; h < heads; h++, in += 2 * half, out += 2 * half)
        walk(half, [&](auto k) {
            const vf a = load(in, k), b = load(in + half, k), c = load(cos, k), s = load(sin, k) * way;
            if (STREAMED) {
                stream(out + k.i, a * c - b * s);
                stream(out + half + k.i, b * c + a * s);
            } else {
                store(out, k, a * c - b * s);
                store(out + half, k, b * c + a * s);
            }
        });
}

extern "C" void rotate(const float* q, const float* k, const float* cos, const float* sin, float* out_q, float* out_k,
                       int64_t tokens, int64_t length, int64_t heads, int64_t kv_heads, int64_t half, double way_) {
    const int64_t row = heads * 2 * half, kv_row = kv_heads * 2 * half;
    const float way = (float)way_;
    #pragma omp parallel if (tokens * (row + kv_row) >= 131072)
    {
        const bool whole = half % 16 == 0 && lines(out_q) && lines(out_k);
        #pragma omp for schedule(static) nowait
        for (int64_t t = 0; t < tokens; t++) {
            const float *c = cos + t % length * half, *s = sin + t % length * half;
            if (whole) {
                turn<true>(q + t * row, out_q + t * row, c, s, way, heads, half);
                turn<true>(k + t * kv_row, out_k + t * kv_row, c, s, way, kv_heads, half);
            } else {
                turn<false>(q + t * row, out_q + t * row, c, s, way, heads, half);
                turn<false>(k + t * kv_row, out_k + t * kv_row, c, s, way, kv_heads, half);
            }
        }
        FENCE;
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


def rotated(q, k, cos, sin, way):
    q, k = q.contiguous(), k.contiguous()
    batch, length, heads, dim = q.shape
    outs = torch.empty_like(q), torch.empty_like(k)
    lib.rotate(q, k, cos, sin, *outs, batch * length, length, heads, k.shape[2], dim // 2, way)
    return outs


class Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return rotated(q, k, cos, sin, 1.0)

    @staticmethod
    def backward(ctx, dq, dk):
        return (*rotated(dq, dk, *ctx.saved_tensors, -1.0), None, None)


class ModelNew(nn.Module):
    def __init__(self, length, dim, base=10000.0, dtype="float32"):
        super().__init__()
        frequency = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(length).float(), frequency)
        self.register_buffer("cos", angle.cos().to(getattr(torch, dtype)))
        self.register_buffer("sin", angle.sin().to(getattr(torch, dtype)))

    def forward(self, q, k):
        batch, length, _, dim = q.shape
        if any(each.dtype != torch.float32 for each in (q, k, self.cos)):
            raise ValueError("this kernel is for float32")
        if k.shape[:2] != q.shape[:2] or k.shape[3] != dim or dim != 2 * self.cos.shape[1]:
            raise ValueError("queries, keys and angles do not fit one another")
        if length > self.cos.shape[0]:
            raise ValueError(f"there are angles for {self.cos.shape[0]} positions, not for {length}")
        return Rotated.apply(q, k, self.cos.contiguous(), self.sin.contiguous())
