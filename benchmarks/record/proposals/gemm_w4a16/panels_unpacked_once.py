"""Panels of 32 outputs are unpacked and scaled once into the second cache, then multiplied from registers.

The reference unpacks into a tensor of integers, one of floats and one of scaled floats, each four to eight times the
packed weights, before it multiplies. Here a thread's panel (128 KiB for 1,024 inputs) serves all rows: tiles of 12 x 32
sums sit in 24 vector registers, so that each vector of weights meets 12 rows.
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

#define MEMBER inline __attribute__((always_inline))
// ROWS x 16 COLS of a product in registers: each vector of b meets a number of each row of a.
template <int ROWS, int COLS> struct Tile {
    vf sum[ROWS][COLS];
    MEMBER void clear() {
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) sum[r][c] = vf{};
    }
    MEMBER void add(int64_t depth, const float* const* a, int64_t step, const float* b,
                    int64_t width) {
        for (int64_t k = 0; k < depth; k++) {
            vf v[COLS];
            for (int c = 0; c < COLS; c++) v[c] = load(b + k * width + 16 * c);
            for (int r = 0; r < ROWS; r++) {
                const float x = a[r][k * step];
                for (int c = 0; c < COLS; c++) sum[r][c] += x * v[c];
            }
        }
    }
};

static thread_local Room room;
typedef unsigned char vb __attribute__((vector_size(16)));

// [inner, 32] of scaled weights; columns behind the last one are zero.
INLINE void unpack(const unsigned char* packed, const float* scales, float* to, int64_t inner, int64_t outer,
                   int64_t group, int64_t first) {
    const int64_t width = first + 32 < outer ? 32 : outer - first;
    for (int64_t k = 0; k < inner; k += 2)
        for (int c = 0; c < 2; c++) {
            const int64_t left = width - 16 * c, count = left < 0 ? 0 : left < 16 ? left : 16;
            vb bytes = {};
            const unsigned char* from = packed + k / 2 * outer + first + 16 * c;
            const float *even = scales + k / group * outer + first + 16 * c;
            const float *odd = scales + (k + 1) / group * outer + first + 16 * c;
            vf low_scale = {}, high_scale = {};
            if (count == 16) {
                memcpy(&bytes, from, 16);
                low_scale = load(even);
                high_scale = load(odd);
            } else if (count) {
                memcpy(&bytes, from, count);
                low_scale = load(even, Rest{0, count});
                high_scale = load(odd, Rest{0, count});
            }
            const vi both = __builtin_convertvector(bytes, vi);
            store(to + 32 * k + 16 * c, (__builtin_convertvector(both & 15, vf) - 8.0f) * low_scale);
            store(to + 32 * k + 32 + 16 * c, (__builtin_convertvector(both >> 4, vf) - 8.0f) * high_scale);
        }
}

template <int ROWS> INLINE void product(const float* x, const float* panel, float* out, int64_t inner, int64_t outer,
                                        int64_t width) {
    const float* a[ROWS];
    for (int r = 0; r < ROWS; r++) a[r] = x + r * inner;
    Tile<ROWS, 2> tile;
    tile.clear();
    tile.add(inner, a, 1, panel, 32);
    for (int r = 0; r < ROWS; r++) {
        if (width == 32) {
            store(out + r * outer, tile.sum[r][0]);
            store(out + r * outer + 16, tile.sum[r][1]);
        } else {
            float t[32];
            store(t, tile.sum[r][0]);
            store(t + 16, tile.sum[r][1]);
            memcpy(out + r * outer, t, width * sizeof(float));
        }
    }
}

extern "C" void multiply(const float* x, const unsigned char* packed, const float* scales, float* out, int64_t rows,
                         int64_t inner, int64_t outer, int64_t group) {
    #pragma omp parallel if (rows * inner * outer >= 1000000)
    {
        float* panel = room.of(32 * inner);
        #pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < outer; first += 32) {
            const int64_t width = first + 32 < outer ? 32 : outer - first;
            unpack(packed, scales, panel, inner, outer, group, first);
            int64_t r = 0;
            for (; r + 12 <= rows; r += 12)
                product<12>(x + r * inner, panel, out + r * outer + first, inner, outer, width);
            for (; r + 4 <= rows; r += 4)
                product<4>(x + r * inner, panel, out + r * outer + first, inner, outer, width);
            for (; r < rows; r++) product<1>(x + r * inner, panel, out + r * outer + first, inner, outer, width);
        }
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def forward(self, x, packed, scales):
        inner, outer = 2 * packed.shape[0], packed.shape[1]
        if not x.dtype == scales.dtype == torch.float32 or packed.dtype != torch.uint8:
            raise ValueError("expected activations and scales in float32 and packed weights in bytes")
        if x.dim() != 2 or x.shape[1] != inner or scales.shape[1] != outer or inner % max(1, scales.shape[0]):
            raise ValueError("activations, weights and scales do not fit one another")
        x, packed, scales = x.contiguous(), packed.contiguous(), scales.contiguous()
        out = torch.empty(x.shape[0], outer)
        lib.multiply(x, packed, scales, out, x.shape[0], inner, outer, max(1, inner // max(1, scales.shape[0])))
        return out
