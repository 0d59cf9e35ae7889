"""Tokens are sorted by their row of the table; a row adds up its dy first, in float32, and goes through the norm once.

Within one row x, and so the norm, is the same for all its tokens, and the norm's backward is linear in dy. So the work
on x is done once a row and not once a token, each row of the result is written once, rows without tokens are set to
zero, and nothing is scattered: no atomics, and a fixed order of additions. The weight's gradient is added up in 64
strips of rows, and these in order.
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
INLINE float lanes_sum(vf v) {
    float t[16];
    memcpy(t, &v, sizeof t);
    for (int w = 8; w; w /= 2)
        for (int l = 0; l < w; l++) t[l] += t[l + w];
    return t[0];
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
#include <stdlib.h>
// Memory that stays from call to call: fresh pages would cost as much as the work.
struct Room {
    void* data = nullptr;
    size_t size = 0;
    ~Room() { free(data); }
    float* of(int64_t count) {
        const size_t wanted = ((size_t)count * sizeof(float) + 127) & ~(size_t)63;
        if (size < wanted) {
            free(data);
            data = aligned_alloc(64, wanted);
            size = wanted;
        }
        return (float*)data;
    }
};

typedef uint16_t vh __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(64)));
struct Half { uint16_t bits; };  // bfloat16
INLINE vf widen(vh h) { return (vf)(__builtin_convertvector(h, vu) << 16); }
INLINE vh narrow(vf v) {  // to the nearest, ties to even
    const vu bits = (vu)v, up = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return __builtin_convertvector((vi)(v != v) ? vu{} + 0x7fc0 : up, vh);
}
INLINE vf load(const Half* p, Whole k) { vh h; memcpy(&h, p + k.i, sizeof h); return widen(h); }
INLINE vf load(const Half* p, Rest k) { vh h = {}; memcpy(&h, p + k.i, 2 * k.count); return widen(h); }
INLINE void store(Half* p, Whole k, vf v) { const vh h = narrow(v); memcpy(p + k.i, &h, sizeof h); }
INLINE void store(Half* p, Rest k, vf v) { const vh h = narrow(v); memcpy(p + k.i, &h, 2 * k.count); }

static thread_local Room room;

template <class T> INLINE void one_row(const T* x, const T* weight, const T* dy, const int64_t* tokens, int64_t count,
                                       T* dx, float* share, float* sum, int64_t n, float eps) {
    const T* only = dy + tokens[0] * n;
    walk(n, [&](auto k) { store(sum, k, load(only, k)); });
    int64_t t = 1;
    for (; t + 4 <= count; t += 4) {
        const T *a = dy + tokens[t] * n, *b = dy + tokens[t + 1] * n;
        const T *c = dy + tokens[t + 2] * n, *d = dy + tokens[t + 3] * n;
        walk(n, [&](auto k) {
            store(sum, k, load(sum, k) + ((load(a, k) + load(b, k)) + (load(c, k) + load(d, k))));
        });
    }
    for (; t < count; t++) {
        const T* a = dy + tokens[t] * n;
        walk(n, [&](auto k) { store(sum, k, load(sum, k) + load(a, k)); });
    }
    float squares, along;
    row_sums(n, squares, along, [&](auto k, vf& a, vf& b) {
        const vf v = load(x, k);
        a += v * v;
        b += v * (load(sum, k) * load(weight, k));
    });
    const float scale = 1.0f / __builtin_sqrtf(squares / (float)n + eps), mean = along * scale / (float)n;
    walk(n, [&](auto k) {
        const vf normed = load(x, k) * scale, d = load(sum, k);
        store(dx, k, scale * (d * load(weight, k) - normed * mean));
        store(share, k, load(share, k) + d * normed);
    });
}

// order, starts: room for the tokens by row, and where each row's begin.
template <class T> INLINE void all_rows(const T* dy, const int64_t* ids, const T* table, const T* weight, T* dtable,
                                        T* dweight, int64_t* order, int64_t* starts, float* partial, int64_t* bad,
                                        int64_t count, int64_t vocab, int64_t n, int64_t strips, float eps) {
    *bad = 0;
    memset(starts, 0, (vocab + 2) * sizeof(int64_t));
    for (int64_t t = 0; t < count; t++) {
        if (ids[t] < -vocab || ids[t] >= vocab) {
            *bad += 1;
            return;
        }
        starts[(ids[t] < 0 ? ids[t] + vocab : ids[t]) + 2]++;
    }
    for (int64_t row = 0; row < vocab; row++) starts[row + 2] += starts[row + 1];
    for (int64_t t = 0; t < count; t++) order[starts[(ids[t] < 0 ? ids[t] + vocab : ids[t]) + 1]++] = t;
    #pragma omp parallel if ((vocab + count) * n >= 65536)
    {
        float* sum = room.of(n);
        #pragma omp for schedule(dynamic)
        for (int64_t strip = 0; strip < strips; strip++) {
            float* share = partial + strip * n;
            memset(share, 0, n * sizeof(float));
            for (int64_t row = vocab * strip / strips; row < vocab * (strip + 1) / strips; row++) {
                const int64_t here = starts[row + 1] - starts[row];
                if (here)
                    one_row(table + row * n, weight, dy, order + starts[row], here, dtable + row * n, share, sum, n,
                            eps);
                else
                    memset((void*)(dtable + row * n), 0, n * sizeof(T));
            }
        }
        #pragma omp for schedule(static)
        for (int64_t start = 0; start < n; start += 64) {
            const int64_t width = start + 64 < n ? 64 : n - start;
            walk(width, [&](auto k) {
                vf total = {};
                for (int64_t strip = 0; strip < strips; strip++) total += load(partial + strip * n + start, k);
                store(dweight + start, k, total);
            });
        }
    }
}

extern "C" void floats(const float* dy, const int64_t* ids, const float* table, const float* weight, float* dtable,
                       float* dweight, int64_t* order, int64_t* starts, float* partial, int64_t* bad, int64_t count,
                       int64_t vocab, int64_t n, int64_t strips, double eps) {
    all_rows(dy, ids, table, weight, dtable, dweight, order, starts, partial, bad, count, vocab, n, strips, (float)eps);
}
extern "C" void halves(const Half* dy, const int64_t* ids, const Half* table, const Half* weight, Half* dtable,
                       Half* dweight, int64_t* order, int64_t* starts, float* partial, int64_t* bad, int64_t count,
                       int64_t vocab, int64_t n, int64_t strips, double eps) {
    all_rows(dy, ids, table, weight, dtable, dweight, order, starts, partial, bad, count, vocab, n, strips, (float)eps);
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])
KERNELS = {torch.float32: lib.floats, torch.bfloat16: lib.halves}


class ModelNew(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, dy, ids, table, weight):
        vocab, n = table.shape
        kernel = KERNELS.get(table.dtype)
        if kernel is None or not dy.dtype == weight.dtype == table.dtype:
            raise ValueError(f"expected float32 or bfloat16 alone, and not {dy.dtype}, {table.dtype}, {weight.dtype}")
        if dy.shape != (ids.numel(), n) or ids.dim() != 1 or weight.shape != (n,):
            raise ValueError("dy, ids, table and weight do not fit one another")
        dy, table, weight, ids = (each.contiguous() for each in (dy, table, weight, ids.to(torch.int64)))
        strips = min(64, max(1, vocab))
        order, starts = (torch.empty(size, dtype=torch.int64) for size in (ids.numel(), vocab + 2))
        bad, partial = torch.empty((), dtype=torch.int64), torch.empty(strips, n)
        dtable, dweight = torch.empty_like(table), torch.empty_like(weight)
        kernel(
            dy, ids, table, weight, dtable, dweight, order, starts, partial, bad,
            ids.numel(), vocab, n, strips, self.eps,
        )  # fmt: skip
        if int(bad):
            raise IndexError("a token is not in the table")
        return dtable, dweight
