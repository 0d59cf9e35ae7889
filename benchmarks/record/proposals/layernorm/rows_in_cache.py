"""A row is read from memory once: its mean, the spread about it and the result come out of the first cache.

Whole lines of the result are streamed past the caches, which saves reading what is overwritten: eight bytes an element
move instead of twelve. The next row is asked for while this one is worked on.
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
INLINE float lanes_sum(vf v) {
    float t[16];
    memcpy(t, &v, sizeof t);
    for (int w = 8; w; w /= 2)
        for (int l = 0; l < w; l++) t[l] += t[l + w];
    return t[0];
}
// Four accumulators hide the latency of an addition; what stands behind a row's end adds nothing.
template <class Get> INLINE float row_sum(int64_t n, Get get) {
    vf a = {}, b = {}, c = {}, d = {};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        a += get(Whole{i});
        b += get(Whole{i + 16});
        c += get(Whole{i + 32});
        d += get(Whole{i + 48});
    }
    for (; i + 16 <= n; i += 16) a += get(Whole{i});
    if (i < n) b += keep(get(Rest{i, n - i}), Rest{i, n - i});
    return lanes_sum((a + b) + (c + d));
}
template <class Get> INLINE void row_sums(int64_t n, float& first, float& second, Get get) {
    vf a = {}, b = {}, c = {}, d = {};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        get(Whole{i}, a, b);
        get(Whole{i + 16}, c, d);
    }
    for (; i + 16 <= n; i += 16) get(Whole{i}, a, b);
    if (i < n) {
        vf e = {}, f = {};
        get(Rest{i, n - i}, e, f);
        c += keep(e, Rest{i, n - i});
        d += keep(f, Rest{i, n - i});
    }
    first = lanes_sum(a + c);
    second = lanes_sum(b + d);
}

extern "C" void normalise(const float* x, const float* weight, const float* bias, float* out, int64_t rows, int64_t n,
                          double eps) {
    #pragma omp parallel if (rows * n >= 65536)
    {
        const bool whole = n % 16 == 0 && lines(out);
        #pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < rows; row++) {
            const float* in = x + row * n;
            float* to = out + row * n;
            const float mean = row_sum(n, [&](auto k) { return load(in, k); }) / (float)n;
            float squares, slip;  // what the mean's rounding left over is taken out again
            row_sums(n, squares, slip, [&](auto k, vf& a, vf& b) {
                const vf d = load(in, k) - mean;
                a += d * d;
                b += d;
            });
            slip /= (float)n;
            const float spread = squares / (float)n - slip * slip;
            const float factor = 1.0f / __builtin_sqrtf((spread < 0.0f ? 0.0f : spread) + (float)eps);
            const float shift = -slip * factor;
            auto made = [&](auto k) {
                __builtin_prefetch(in + n + k.i);
                return ((load(in, k) - mean) * factor + shift) * load(weight, k) + load(bias, k);
            };
            if (whole)
                for (int64_t i = 0; i < n; i += 16) stream(to + i, made(Whole{i}));
            else
                walk(n, [&](auto k) { store(to, k, made(k)); });
        }
        FENCE;
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, hidden, dtype="float32"):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, dtype=getattr(torch, dtype))

    def forward(self, x):
        n, weight, bias = x.shape[-1], self.norm.weight, self.norm.bias
        if x.dtype != torch.float32 or weight.dtype != torch.float32 or weight.shape != (n,):
            raise ValueError(f"{x.dtype} rows of {n} are not what this kernel is for")
        x = x.contiguous()
        out = torch.empty_like(x)
        lib.normalise(x, weight.contiguous(), bias.contiguous(), out, x.numel() // max(n, 1), n, self.norm.eps)
        return out
