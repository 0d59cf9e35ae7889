"""One pass, with erf by a table that sits in registers: sixteen polynomials of degree 5, picked by one permutation a
coefficient.

GELU by erf costs more than the twelve bytes an element that move. An exponential's worth of work is saved: erf(x) / x
in sixteen pieces of width 33/128 takes six permutations and as many multiply-adds for sixteen elements. Whole lines of
the result are streamed past the caches.
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

static const float ERF[6][16] = {
    {-0.0102917729f, -0.0365069695f, -0.0496691689f, -0.0355149917f, -0.00934038311f, 0.010715208f, 0.0172234848f,
    0.0137588661f,
     0.00733321859f, 0.00239593303f, -7.05160201e-05f, -0.000832795748f, -0.000835000421f, -0.000632349285f,
     -0.000437536801f, -0.000296655722f},
    {0.114323281f, 0.0871710777f, 0.0284773335f, -0.0288015474f, -0.057989113f, -0.0558612272f, -0.0364779271f,
    -0.0158225987f,
     -0.00220436556f, 0.0038159804f, 0.00508436467f, 0.00437851297f, 0.00326053053f, 0.00230870862f, 0.00162384065f,
     0.0011561478f},
    {-9.89906839e-05f, 0.107479587f, 0.168797165f, 0.166803196f, 0.118683845f, 0.0574084297f, 0.00897175074f,
    -0.0175430365f,
     -0.0260115284f, -0.0245494936f, -0.0196471475f, -0.014672244f, -0.0107339639f, -0.00788847264f, -0.00588564062f,
     -0.00447014673f},
    {-0.376123399f, -0.332861602f, -0.222045094f, -0.0883997157f, 0.0239490103f, 0.091875881f, 0.116225459f,
    0.111521974f,
     0.093773149f, 0.0738261268f, 0.0566556156f, 0.0434334874f, 0.0336837396f, 0.0265454948f, 0.0212641936f,
     0.0172903724f},
    {-3.29251186e-08f, -0.186386243f, -0.331496447f, -0.411455214f, -0.426451117f, -0.394537568f, -0.339271665f,
    -0.279677242f,
     -0.226473317f, -0.183316648f, -0.149841666f, -0.124203362f, -0.104452446f, -0.0890189931f, -0.076759465f,
     -0.0668665469f},
    {1.12837923f, 1.1038698f, 1.03587496f, 0.938614726f, 0.829354465f, 0.722771823f, 0.627912462f, 0.548181295f,
     0.483133942f, 0.430531293f, 0.387775481f, 0.352595717f, 0.323228389f, 0.298367649f, 0.277056187f, 0.25858584f},
};
INLINE vf erf(vf x) {
    vf t = (vf)((vi)x & 0x7fffffff);
    t = t > 3.99f ? splat(3.99f) : t;
    const vf place = t * 3.87878788f + 12582912.0f, h = (place - 12582912.0f) * -0.2578125f + t;
    vf p = __builtin_shuffle(load(ERF[0]), (vi)place);
    for (int d = 1; d < 6; d++) p = p * h + __builtin_shuffle(load(ERF[d]), (vi)place);
    p = p * x;
    p = p > 1.0f ? splat(1.0f) : p;
    return p < -1.0f ? splat(-1.0f) : p;
}

extern "C" void tail(const float* x, const float* bias, const float* scale, const float* residual, float* out,
                     int64_t rows, int64_t n) {
    #pragma omp parallel if (rows * n >= 65536)
    {
        const bool whole = n % 16 == 0 && lines(out);
        #pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < rows; row++) {
            const float *in = x + row * n, *rest = residual + row * n;
            auto made = [&](auto k) {
                const vf v = load(in, k) + load(bias, k), half = v * 0.5f;
                return (half + half * erf(v * 0.70710678f)) * load(scale, k) + load(rest, k);
            };
            if (whole)
                for (int64_t i = 0; i < n; i += 16) stream(out + row * n + i, made(Whole{i}));
            else
                walk(n, [&](auto k) { store(out + row * n, k, made(k)); });
        }
        FENCE;
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, hidden, dtype="float32"):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(hidden, dtype=getattr(torch, dtype)))
        self.scale = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))

    def forward(self, x, residual):
        n = x.shape[-1]
        if not x.dtype == residual.dtype == self.bias.dtype == torch.float32 or x.shape != residual.shape:
            raise ValueError("expected x and the residual of one shape in float32")
        if self.bias.shape != (n,):
            raise ValueError(f"bias and scale do not fit rows of {n}")
        x, residual = x.contiguous(), residual.contiguous()
        out = torch.empty_like(x)
        bias, scale = self.bias.contiguous(), self.scale.contiguous()
        lib.tail(x, bias, scale, residual, out, x.numel() // max(n, 1), n)
        return out
