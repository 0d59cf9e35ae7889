"""One pass over flat buffers in pieces of 16,384 elements; each finds its first tensor by bisection, walks borders.

Bound by memory: four reads and three streamed writes, 28 bytes an element. The reference makes a decay for each element
and a dozen tensors besides; here a border costs one comparison, and the step's two corrections are made once.
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

// Streaming stores save reading the lines that they overwrite; they want whole cache lines.
#ifdef __AVX512F__
INLINE void stream(float* p, vf v) { __builtin_ia32_movntps512(p, v); }
#define FENCE __builtin_ia32_sfence()
#else
INLINE void stream(float* p, vf v) { store(p, v); }
#define FENCE
#endif
INLINE bool lines(const void* p) { return ((uintptr_t)p & 63) == 0; }

extern "C" void step(const float* params, const float* grads, const float* first, const float* second,
                     const int64_t* steps, const int64_t* ends, const int64_t* decays, float* out, float* out_first,
                     float* out_second, int64_t count, int64_t tensors, double lr, double beta1, double beta2,
                     double eps_, double decay) {
    const double step = (double)*steps + 1.0;
    const float size = (float)(lr / (1.0 - pow(beta1, step))), root = (float)sqrt(1.0 - pow(beta2, step));
    const float keep2 = (float)beta2, add1 = (float)(1.0 - beta1), add2 = (float)(1.0 - beta2), eps = (float)eps_;
    const int64_t piece = 16384;
    #pragma omp parallel if (count >= 49152)
    {
        #pragma omp for schedule(static) nowait
        for (int64_t start = 0; start < count; start += piece) {
            const int64_t stop = start + piece < count ? start + piece : count;
            int64_t low = 0, high = tensors - 1;
            while (low < high) {
                const int64_t middle = (low + high) / 2;
                if (ends[middle] <= start) low = middle + 1;
                else high = middle;
            }
            for (int64_t at = start; at < stop; low++) {
                const int64_t end = low < tensors && ends[low] < stop ? ends[low] : stop;
                const float fade = 1.0f - (float)(lr * decay) * (float)decays[low < tensors ? low : tensors - 1];
                const int64_t here = at;
                auto update = [&](auto k, bool streamed) {
                    const vf g = load(grads + here, k), m_ = load(first + here, k);
                    const vf m = m_ + add1 * (g - m_), v = keep2 * load(second + here, k) + add2 * g * g;
                    vf spread = v;
                    for (int l = 0; l < 16; l++) spread[l] = __builtin_sqrtf(spread[l]);
                    const vf p = load(params + here, k) * fade - size * m / (spread / root + eps);
                    if (streamed) {
                        stream(out + here + k.i, p);
                        stream(out_first + here + k.i, m);
                        stream(out_second + here + k.i, v);
                    } else {
                        store(out + here, k, p);
                        store(out_first + here, k, m);
                        store(out_second + here, k, v);
                    }
                };
                // To the first whole line, whole lines, the rest.
                const int64_t n = end - at, past = (16 - ((uintptr_t)(out + at) >> 2) % 16) % 16;
                int64_t i = past < n ? past : n;
                if (i > 0) update(Rest{0, i}, false);
                if (lines(out + at + i) && lines(out_first + at + i) && lines(out_second + at + i))
                    for (; i + 16 <= n; i += 16) update(Whole{i}, true);
                else
                    for (; i + 16 <= n; i += 16) update(Whole{i}, false);
                if (i < n) update(Rest{i, n - i}, false);
                at = end;
            }
        }
        FENCE;
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, sizes, norm, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, decay=0.1):
        super().__init__()
        self.register_buffer("sizes", torch.tensor(sizes))
        self.register_buffer("decays", torch.tensor([0 if size == norm else 1 for size in sizes]))
        self.register_buffer("ends", torch.tensor(sizes).cumsum(0), persistent=False)
        self.total = sum(sizes)
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, decay

    def forward(self, params, grads, exp_avg, exp_avg_sq, steps):
        given = [each.contiguous() for each in (params, grads, exp_avg, exp_avg_sq)]
        count = params.numel()
        if any(each.dtype != torch.float32 or each.shape != (self.total,) for each in given):
            raise ValueError(f"expected {self.total} elements in float32 in each buffer")
        if steps.dtype != torch.int64 or steps.numel() != 1:
            raise ValueError("expected one count of steps")
        outs = [torch.empty_like(given[place]) for place in (0, 2, 3)]
        lib.step(
            *given, steps, self.ends, self.decays, *outs, count, self.ends.numel(),
            self.lr, *self.betas, self.eps, self.decay,
        )  # fmt: skip
        return tuple(outs)
