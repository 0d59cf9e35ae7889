"""One call for 300 tensors: squares of pieces of at most 8,192 elements, norms from them in order, one scaling pass.

300 norms are 300 calls of some microseconds each. Pieces never cross a border, so that two threads share them evenly
however long the tensors are, and the result does not depend on who took which. The second pass reads what the caches
still hold.
"""

import torch
from kernelwright import load_cpp
from torch import nn

SOURCE = r"""
#include <math.h>
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

// pieces: tensor, first element, elements. partial has a number for each.
extern "C" void clip(const float* grads, float* out, float* total, float* norms, const int64_t* pieces, double* partial,
                     int64_t count, int64_t tensors, double limit) {
    const int64_t elements = count ? pieces[3 * count - 2] + pieces[3 * count - 1] : 0;
    const bool wide = elements >= 131072;
    #pragma omp parallel for schedule(static) if (wide)
    for (int64_t p = 0; p < count; p++) {
        const float* x = grads + pieces[3 * p + 1];
        double sum = 0.0;
        for (int64_t at = 0; at < pieces[3 * p + 2]; at += 1024) {
            const int64_t left = pieces[3 * p + 2] - at;
            sum += row_sum(left < 1024 ? left : 1024, [&](auto k) { const vf v = load(x + at, k); return v * v; });
        }
        partial[p] = sum;
    }
    double all = 0.0;
    for (int64_t t = 0, p = 0; t < tensors; t++) {
        double sum = 0.0;
        for (; p < count && pieces[3 * p] == t; p++) sum += partial[p];
        norms[t] = (float)sqrt(sum);
        all += (double)norms[t] * (double)norms[t];
    }
    *total = (float)sqrt(all);
    float scale = (float)limit / (*total + 1e-6f);
    scale = scale > 1.0f ? 1.0f : scale;
    #pragma omp parallel for schedule(static) if (wide)
    for (int64_t p = count - 1; p >= 0; p--)
        walk(pieces[3 * p + 2], [&](auto k) {
            store(out + pieces[3 * p + 1], k, load(grads + pieces[3 * p + 1], k) * scale);
        });
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])
PIECE = 8192


class ModelNew(nn.Module):
    def __init__(self, sizes, limit=1.0):
        super().__init__()
        self.sizes, self.limit = sizes, limit
        pieces, start = [], 0
        for tensor, size in enumerate(sizes):
            pieces += [(tensor, start + at, min(PIECE, size - at)) for at in range(0, size, PIECE)]
            start += size
        self.total = start
        self.register_buffer("pieces", torch.tensor(pieces, dtype=torch.int64).reshape(-1, 3), persistent=False)

    def forward(self, grads):
        if grads.dtype != torch.float32 or grads.dim() != 1 or grads.numel() != self.total:
            raise ValueError(f"expected {self.total} gradients in float32")
        grads = grads.contiguous()
        count, tensors = self.pieces.shape[0], len(self.sizes)
        out, total, norms = torch.empty_like(grads), torch.empty(()), torch.empty(tensors)
        partial = torch.empty(count, dtype=torch.float64)
        lib.clip(grads, out, total, norms, self.pieces, partial, count, tensors, self.limit)
        return out, total, norms
