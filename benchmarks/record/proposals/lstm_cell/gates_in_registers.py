"""A tile's sums are the four gates of three hidden units for 32 rows of the batch, and become states without being
written.

The batch lies in the lanes: x and h are turned once (0.2 MB), weights are read as they are, once for each 32 rows of
the batch, and 12 x 32 sums sit in 24 vector registers. The reference writes two products, their sum and eight tensors
for the gates.
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

// exp: x = n ln2 + r, |r| <= ln2 / 2, a polynomial for e^r, times 2^n by the exponent's bits (2 ulp). NaN stays NaN.
INLINE vf exp_near(vf x) {
    const vf t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f;
    const vf r = n * 2.12194440e-4f + (n * -0.693359375f + x);
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * (r * r) + r) + 1.0f;
    return x == x ? (vf)((vi)p + ((vi)t << 23)) : x;
}
INLINE vf exp_down(vf x) { return x < -87.0f ? vf{} : exp_near(x); }  // x <= 0; tiny results are zero
INLINE vf exp_all(vf x) { return x > 88.37f ? splat(INF) : exp_down(x); }
INLINE vf sigmoid(vf x) { return 1.0f / (1.0f + exp_all(-x)); }
INLINE vf tanh(vf x) {
    const vf z = x * x, a = (vf)((vi)x & 0x7fffffff), far = 1.0f - 2.0f / (exp_all(a + a) + 1.0f);
    vf p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z + -5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z + -3.33332819422e-1f;
    p = (p * z) * x + x;
    return a < 0.625f ? p : (vf)((vi)far | ((vi)x & (int32_t)0x80000000));
}

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

enum { UNITS = 3, RUN = 48 };

// Panels of 16 COLS rows, each [depth, 16 COLS]; lanes behind the last row are zero.
INLINE void turn(const float* from, float* to, int64_t batch, int64_t depth, int64_t first, int64_t lanes) {
    for (int64_t r = 0; r < lanes; r++)
        for (int64_t k = 0; k < depth; k++)
            to[lanes * k + r] = first + r < batch ? from[(first + r) * depth + k] : 0.0f;
}

template <int COLS> static void cell(const float* x, const float* h, const float* c, const float* w_x, const float* w_h,
                                     const float* bias, float* out, float* out_c, float* turned, int64_t batch,
                                     int64_t inner, int64_t hidden) {
    enum { LANES = 16 * COLS };
    const int64_t panels = (batch + LANES - 1) / LANES, runs = (hidden + RUN - 1) / RUN, depth = inner + hidden;
    #pragma omp parallel if (batch * depth * hidden >= 1500000)
    {
        #pragma omp for schedule(static)
        for (int64_t i = 0; i < 2 * panels; i++) {
            const int64_t p = i / 2;
            if (i % 2) turn(h, turned + LANES * (p * depth + inner), batch, hidden, LANES * p, LANES);
            else turn(x, turned + LANES * p * depth, batch, inner, LANES * p, LANES);
        }
        #pragma omp for schedule(dynamic) collapse(2)
        for (int64_t run = 0; run < runs; run++)
            for (int64_t p = 0; p < panels; p++) {
                const int64_t begin = run * RUN, end = begin + RUN < hidden ? begin + RUN : hidden;
                const int64_t rows = LANES * p + LANES < batch ? LANES : batch - LANES * p;
                const float* panel = turned + LANES * p * depth;
                float made[2][RUN][LANES], held[RUN][LANES];
                for (int64_t r = 0; r < LANES; r++)
                    for (int64_t j = begin; j < end; j++)
                        held[j - begin][r] = r < rows ? c[(LANES * p + r) * hidden + j] : 0.0f;
                for (int64_t j = begin; j < end; j += UNITS) {
                    const float *a[12], *b[12];
                    Tile<12, COLS> tile;
                    for (int u = 0; u < UNITS; u++)
                        for (int gate = 0; gate < 4; gate++) {
                            const int64_t row = gate * hidden + (j + u < end ? j + u : end - 1);
                            a[4 * u + gate] = w_x + row * inner;
                            b[4 * u + gate] = w_h + row * hidden;
                            for (int v = 0; v < COLS; v++) tile.sum[4 * u + gate][v] = splat(bias[row]);
                        }
                    tile.add(inner, a, 1, panel, LANES);
                    tile.add(hidden, b, 1, panel + LANES * inner, LANES);
                    for (int u = 0; u < UNITS && j + u < end; u++)
                        for (int v = 0; v < COLS; v++) {
                            const int g = 4 * u, place = j - begin + u;
                            const vf before = load(held[place] + 16 * v);
                            const vf state = sigmoid(tile.sum[g + 1][v]) * before +
                                             sigmoid(tile.sum[g][v]) * tanh(tile.sum[g + 2][v]);
                            store(made[0][place] + 16 * v, sigmoid(tile.sum[g + 3][v]) * tanh(state));
                            store(made[1][place] + 16 * v, state);
                        }
                }
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t j = begin; j < end; j++) {
                        out[(LANES * p + r) * hidden + j] = made[0][j - begin][r];
                        out_c[(LANES * p + r) * hidden + j] = made[1][j - begin][r];
                    }
            }
    }
}

extern "C" void step(const float* x, const float* h, const float* c, const float* w_x, const float* w_h,
                     const float* bias, float* out, float* out_c, float* turned, int64_t batch, int64_t inner,
                     int64_t hidden) {
    (batch <= 16 ? cell<1> : cell<2>)(x, h, c, w_x, w_h, bias, out, out_c, turned, batch, inner, hidden);
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, inner, hidden, dtype="float32"):
        super().__init__()
        kind, bound = getattr(torch, dtype), hidden**-0.5
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, inner, dtype=kind).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden, dtype=kind).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * hidden, dtype=kind).uniform_(-bound, bound))

    def forward(self, x, h, c):
        given = [each.contiguous() for each in (x, h, c, self.weight_ih, self.weight_hh, self.bias)]
        (batch, inner), hidden = x.shape, h.shape[1]
        if any(each.dtype != torch.float32 for each in given):
            raise ValueError("this kernel is for float32")
        if not h.shape == c.shape == (batch, hidden) or self.weight_ih.shape != (4 * hidden, inner):
            raise ValueError("input, states and weights do not fit one another")
        out, out_c = torch.empty_like(given[2]), torch.empty_like(given[2])
        turned = torch.empty(-(-batch // 32), inner + hidden, 32)
        lib.step(*given, out, out_c, turned, batch, inner, hidden)
        return out, out_c
