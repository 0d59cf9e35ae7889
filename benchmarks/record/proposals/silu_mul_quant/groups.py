"""Each group of a row is made, measured and quantised while it lies in the first cache: one read, an eighth of a write.

The operations one by one write eight tensors of the size of the gate; here nothing but bytes and scales is written. The
exponential is a polynomial on sixteen lanes, and the cast to e4m3 is arithmetic on bits without a branch.
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
INLINE float lanes_max(vf v) {
    float t[16];
    memcpy(t, &v, sizeof t);
    for (int w = 8; w; w /= 2)
        for (int l = 0; l < w; l++) t[l] = t[l + w] > t[l] ? t[l + w] : t[l];
    return t[0];
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

// e4m3 of values within [-448, 448] or NaN, to the nearest, ties to even: what torch's cast does, without a branch.
INLINE vi to_e4m3(vf v) {
    const vi sign = ((vi)v >> 24) & 0x80, bits = (vi)v & 0x7fffffff;
    const vi tiny = (vi)((vf)bits + 16384.0f) - 0x46800000;  // steps of 2^-9
    const vi usual = (bits + (int32_t)(0xc4000000u + 0x7ffffu) + ((bits >> 20) & 1)) >> 20;
    const vi near = bits < 0x3c800000 ? tiny : usual;
    return (bits > 0x7f800000 ? vi{} + 0x7f : near) | sign;
}
typedef unsigned char vb __attribute__((vector_size(16)));
INLINE void store(unsigned char* p, Whole k, vi v) {
    const vb b = __builtin_convertvector(v, vb);
    memcpy(p + k.i, &b, sizeof b);
}
INLINE void store(unsigned char* p, Rest k, vi v) {
    const vb b = __builtin_convertvector(v, vb);
    memcpy(p + k.i, &b, k.count);
}

extern "C" void gate(const float* x, unsigned char* out, float* scales, int64_t rows, int64_t hidden, int64_t group) {
    const int64_t groups = hidden / group;
    #pragma omp parallel for schedule(static) if (rows * hidden >= 65536)
    for (int64_t row = 0; row < rows; row++) {
        float made[1024];
        for (int64_t g = 0; g < groups; g++) {
            const float *a = x + row * 2 * hidden + g * group, *b = a + hidden;
            vf top = {};
            vi lost = {};
            walk(group, [&](auto k) {
                const vf gate = load(a, k), y = gate * sigmoid(gate) * load(b, k), size = (vf)((vi)y & 0x7fffffff);
                store(made, k, y);
                lost |= (vi)(keep(y, k) != keep(y, k));
                const vf held = keep(size, k);
                top = held > top ? held : top;
            });
            float most = lanes_max(top);
            for (int l = 0; l < 16; l++) most = lost[l] ? NOT_A_NUMBER : most;
            const float scale = (most < 1e-10f ? 1e-10f : most) / 448.0f;
            scales[row * groups + g] = scale;
            walk(group, [&](auto k) {
                vf v = load(made, k) / scale;
                v = v > 448.0f ? splat(448.0f) : v;
                store(out + row * hidden + g * group, k, to_e4m3(v < -448.0f ? splat(-448.0f) : v));
            });
        }
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, group=128):
        super().__init__()
        self.group = group

    def forward(self, x):
        hidden, group = x.shape[-1] // 2, self.group
        if x.dtype != torch.float32 or x.shape[-1] % 2 or hidden % group or not 1 <= group <= 1024:
            raise ValueError(f"{x.dtype} rows of {x.shape[-1]} in groups of {group} are not what this kernel is for")
        x = x.contiguous()
        out = torch.empty(*x.shape[:-1], hidden, dtype=torch.float8_e4m3fn)
        scales = torch.empty(*x.shape[:-1], hidden // group)
        lib.gate(x, out, scales, x.numel() // max(1, 2 * hidden), hidden, group)
        return out, scales
