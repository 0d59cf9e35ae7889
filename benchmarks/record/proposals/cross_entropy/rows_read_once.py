"""Each row of logits is read once from memory, in pieces of 2,048 with a running maximum; the log-softmax is never
written.

The reference writes log-softmax, as many bytes as the logits have, and reads it again for one number a row. A piece's
maximum and its exponentials come out of the first cache, so a row of 32,000 classes costs four bytes an element. Losses
are added up in the order of rows, in double.
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

INLINE float row_top(const float* x, int64_t n) {
    vf a = splat(-INF), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const vf p = load(x + i), q = load(x + i + 16), r = load(x + i + 32), s = load(x + i + 48);
        a = p > a ? p : a;
        b = q > b ? q : b;
        c = r > c ? r : c;
        d = s > d ? s : d;
    }
    a = b > a ? b : a;
    c = d > c ? d : c;
    float top = lanes_max(c > a ? c : a);
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

// losses[row] is the row's share; bad counts targets that are out of range.
extern "C" void loss(const float* logits, const int64_t* targets, float* losses, float* mean, int64_t* bad,
                     int64_t rows, int64_t n, double smoothing) {
    int64_t wrong = 0, kept = 0;
    #pragma omp parallel for schedule(static) if (rows * n >= 65536) reduction(+ : wrong, kept)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t target = targets[row];
        losses[row] = 0.0f;
        if (target == -100) continue;
        if (target < 0 || target >= n) {
            wrong++;
            continue;
        }
        kept++;
        const float* x = logits + row * n;
        float top = -INF;
        double total = 0.0, level = 0.0;
        for (int64_t at = 0; at < n; at += 2048) {
            const int64_t width = at + 2048 < n ? 2048 : n - at;
            const float here = row_top(x + at, width);
            if (here > top) {
                if (total != 0.0) total *= exp((double)top - (double)here);
                top = here;
            }
            if (top == -INF) {  // nothing but -inf and NaN so far
                for (int64_t i = at; i < at + width; i++) total += x[i] != x[i] ? x[i] : 0.0f;
            } else {
                const float base = top;
                total += row_sum(width, [&](auto k) { return exp_down(load(x + at, k) - base); });
            }
            if (smoothing != 0.0) level += row_sum(width, [&](auto k) { return load(x + at, k); });
        }
        const double log_total = (top == -INF ? NOT_A_NUMBER : log(total)) + (double)top;
        double own = log_total - (double)x[target];
        if (smoothing != 0.0) own = (1.0 - smoothing) * own + smoothing * (log_total - level / (double)n);
        losses[row] = (float)own;
    }
    double sum = 0.0;
    for (int64_t row = 0; row < rows; row++) sum += losses[row];
    *mean = (float)(sum / (double)kept);
    *bad = wrong;
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, smoothing=0.0):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        if logits.dtype != torch.float32 or logits.dim() != 2 or target.shape != logits.shape[:1]:
            raise ValueError("expected a matrix of logits in float32 and a class for each of its rows")
        if logits.requires_grad and torch.is_grad_enabled():
            raise ValueError("this kernel has no backward")
        logits, target = logits.contiguous(), target.to(torch.int64).contiguous()
        rows, classes = logits.shape
        losses, mean, bad = torch.empty(rows), torch.empty(()), torch.empty((), dtype=torch.int64)
        lib.loss(logits, target, losses, mean, bad, rows, classes, self.smoothing)
        if int(bad):
            raise IndexError("a target is out of bounds")
        return mean
