"""The recurrence itself, token by token: the states of a channel are the lanes of a vector, so a token costs one
exponential and a handful of instructions.

The reference scans in a logarithmic number of steps over tensors of batch x channels x states x tokens, 16 times the
size of what goes in or comes out. Forwards nothing of that size is written. Backwards a thread runs a channel forwards
once more, keeps its states in the cache, and walks back. Channels are dealt out in at most 8 blocks an image, each with
sums of its own for the gradients of b and c, which are added in order: the result does not depend on threads.
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

// exp of x <= 88: x = n ln2 + r, |r| <= ln2 / 2, a polynomial for e^r, times 2^n by the exponent's bits (2 ulp). What
// is below 2^-126 is made 2^64 times as large at first: a state of 1e20 makes a gradient of them. NaN stays NaN.
INLINE vf exp_down(vf x) {
    const vf t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f;
    const vf r = n * 2.12194440e-4f + (n * -0.693359375f + x);
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * (r * r) + r) + 1.0f;
    const vi low = x < -87.0f;
    const vf scaled = (vf)((vi)p + (((vi)t + (low & 64)) << 23)) * (low ? splat(0x1p-64f) : splat(1.0f));
    return x >= -104.0f ? scaled : x == x ? vf{} : x;
}
INLINE vf exp_all(vf x) { return x > 88.37f ? splat(INF) : exp_down(x); }

// log of 1 + x for x >= 0: 1 + x = 2^n m with m in [sqrt(1/2), sqrt(2)), and what the sum rounded away is added back.
INLINE vf log1p(vf x) {
    const vf u = 1.0f + x;
    const vi k = ((vi)u - 0x3f3504f3) >> 23;
    const vf m = (vf)((vi)u - (k << 23)) - 1.0f, n = __builtin_convertvector(k, vf), z = m * m;
    vf p = m * 7.0376836292e-2f + -1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m + -1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m + -1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m + -2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    vf r = n * -2.12194440e-4f + p * m * z;
    r = n * 0.693359375f + (m + (z * -0.5f + r));
    r = u == 1.0f ? x : r + (x - (u - 1.0f)) / u;
    return x <= 3.4028235e38f ? r : x;
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

static thread_local Room room, shared;  // a thread's own, and what the calling thread lends to all of them

INLINE vf softplus(vf x, vf e) { return x > 20.0f ? x : log1p(e); }

// [states, length] to [length, 16 VECTORS], zeros behind the last state.
INLINE void token_major(const float* from, float* to, int64_t states, int64_t length, int64_t wide) {
    for (int64_t t = 0; t < length; t++) {
        for (int64_t s = 0; s < states; s++) to[t * wide + s] = from[s * length + t];
        for (int64_t s = states; s < wide; s++) to[t * wide + s] = 0.0f;
    }
}

// Rates of a channel, and which lanes have a state: what the others hold is left out of all sums.
template <int V> INLINE void rates(const float* a_log, vf* a, vi* real, int64_t states) {
    for (int v = 0; v < V; v++) {
        const int64_t left = states - 16 * v, count = left < 0 ? 0 : left < 16 ? left : 16;
        real[v] = first_lanes(count);
        a[v] = -exp_all(load(a_log + 16 * v, Rest{0, count}));
    }
}

template <int V> static void run(const float* u, const float* delta, const float* b, const float* c,
                                 const float* a_log, const float* skip, float* y, int64_t batch, int64_t dim,
                                 int64_t length, int64_t states) {
    const int64_t wide = 16 * V, half = batch * length * wide;
    float* const turned = shared.of(2 * half);
    #pragma omp parallel if (batch * dim * length >= 4096)
    {
        float* steps = room.of(length);
        #pragma omp for schedule(static)
        for (int64_t i = 0; i < 2 * batch; i++) {
            const int64_t image = i / 2;
            token_major((i % 2 ? c : b) + image * states * length, turned + i % 2 * half + image * length * wide,
                        states, length, wide);
        }
        #pragma omp for schedule(static)
        for (int64_t row = 0; row < batch * dim; row++) {
            const float *bs = turned + row / dim * length * wide, *cs = bs + half;
            const float *us = u + row * length, *ds = delta + row * length, through = skip[row % dim];
            vf a[V], state[V] = {};
            vi real[V];
            rates<V>(a_log + row % dim * states, a, real, states);
            walk(length, [&](auto k) { const vf d = load(ds, k); store(steps, k, softplus(d, exp_all(d))); });
            for (int64_t t = 0; t < length; t++) {
                const float step = steps[t], in = step * us[t];
                vf sum = {};
                for (int v = 0; v < V; v++) {
                    state[v] = exp_all(step * a[v]) * state[v] + in * load(bs + t * wide + 16 * v);
                    sum += real[v] ? state[v] * load(cs + t * wide + 16 * v) : vf{};
                }
                y[row * length + t] = lanes_sum(sum) + through * us[t];
            }
        }
    }
}

// sums: for each image and block of channels, the gradients of b and c, [length, 16 V] each. drates, dskips: for each
// image, those of the rates and of the skip.
template <int V> static void back(const float* dy, const float* u, const float* delta, const float* b, const float* c,
                                  const float* a_log, const float* skip, float* du, float* ddelta, float* db, float* dc,
                                  float* da_log, float* dskip, int64_t batch, int64_t dim, int64_t length,
                                  int64_t states, int64_t blocks) {
    const int64_t wide = 16 * V, half = batch * length * wide;
    float* const turned = shared.of(2 * half * (1 + blocks) + batch * dim * (states + 1));
    float *const sums = turned + 2 * half, *const drates = sums + 2 * half * blocks;
    float* const dskips = drates + batch * dim * states;
    #pragma omp parallel if (batch * dim * length >= 4096)
    {
        float* kept = room.of((2 * wide + 2) * length);
        float *decays = kept + length * wide, *steps = decays + length * wide, *slopes = steps + length;
        #pragma omp for schedule(static)
        for (int64_t i = 0; i < 2 * batch; i++) {
            const int64_t image = i / 2;
            token_major((i % 2 ? c : b) + image * states * length, turned + i % 2 * half + image * length * wide,
                        states, length, wide);
        }
        #pragma omp for schedule(static)
        for (int64_t task = 0; task < batch * blocks; task++) {
            const int64_t image = task / blocks, block = task % blocks;
            const float *bs = turned + image * length * wide, *cs = bs + half;
            float *to_b = sums + task * 2 * length * wide, *to_c = to_b + length * wide;
            memset(to_b, 0, 2 * length * wide * sizeof(float));
            for (int64_t d = dim * block / blocks; d < dim * (block + 1) / blocks; d++) {
                const int64_t row = image * dim + d, start = row * length;
                vf a[V], state[V] = {}, da[V] = {}, g[V] = {};
                vi real[V];
                rates<V>(a_log + d * states, a, real, states);
                walk(length, [&](auto k) {
                    const vf x = load(delta + start, k), e = exp_all(x);
                    store(steps, k, softplus(x, e));
                    store(slopes, k, x > 20.0f ? splat(1.0f) : e / (e + 1.0f));
                });
                for (int64_t t = 0; t < length; t++) {
                    const float step = steps[t];
                    for (int v = 0; v < V; v++) {
                        const vf decay = exp_all(step * a[v]);
                        store(decays + t * wide + 16 * v, decay);
                        state[v] = decay * state[v] + step * u[start + t] * load(bs + t * wide + 16 * v);
                        store(kept + t * wide + 16 * v, state[v]);
                    }
                }
                float through = 0.0f;
                for (int64_t t = length - 1; t >= 0; t--) {
                    const float out = dy[start + t], in = u[start + t], step = steps[t];
                    vf along_rate = {}, along_b = {};
                    for (int v = 0; v < V; v++) {
                        const int64_t at = t * wide + 16 * v;
                        const vf token = load(bs + at), decay = load(decays + at);
                        const vf before = t ? load(kept + at - wide) : vf{};
                        store(to_c + at, load(to_c + at) + out * load(kept + at));
                        g[v] += out * load(cs + at);
                        store(to_b + at, load(to_b + at) + (step * in) * g[v]);
                        const vf pull = g[v] * before * decay;
                        da[v] += pull * step;
                        along_rate += real[v] ? pull * a[v] : vf{};
                        along_b += real[v] ? g[v] * token : vf{};
                        g[v] *= decay;
                    }
                    const float level = lanes_sum(along_b);
                    du[start + t] = level * step + out * skip[d];
                    ddelta[start + t] = (lanes_sum(along_rate) + level * in) * slopes[t];
                    through += out * in;
                }
                dskips[row] = through;
                for (int64_t s = 0; s < states; s++) drates[row * states + s] = da[s / 16][s % 16] * a[s / 16][s % 16];
            }
        }
        #pragma omp for schedule(static) collapse(2)
        for (int64_t image = 0; image < batch; image++)
            for (int64_t t = 0; t < length; t++)
                for (int64_t s = 0; s < states; s++) {
                    float from_b = 0.0f, from_c = 0.0f;
                    for (int64_t block = 0; block < blocks; block++) {
                        const float* from = sums + (image * blocks + block) * 2 * length * wide + t * wide + s;
                        from_b += from[0];
                        from_c += from[length * wide];
                    }
                    db[(image * states + s) * length + t] = from_b;
                    dc[(image * states + s) * length + t] = from_c;
                }
        #pragma omp for schedule(static)
        for (int64_t d = 0; d < dim; d++) {
            float through = 0.0f;
            for (int64_t image = 0; image < batch; image++) through += dskips[image * dim + d];
            dskip[d] = through;
            for (int64_t s = 0; s < states; s++) {
                float rate = 0.0f;
                for (int64_t image = 0; image < batch; image++) rate += drates[(image * dim + d) * states + s];
                da_log[d * states + s] = rate;
            }
        }
    }
}

extern "C" void scan(const float* u, const float* delta, const float* b, const float* c, const float* a_log,
                     const float* skip, float* y, int64_t batch, int64_t dim, int64_t length, int64_t states) {
    auto chosen = states <= 16 ? run<1> : states <= 32 ? run<2> : run<4>;
    chosen(u, delta, b, c, a_log, skip, y, batch, dim, length, states);
}
extern "C" void scan_back(const float* dy, const float* u, const float* delta, const float* b, const float* c,
                          const float* a_log, const float* skip, float* du, float* ddelta, float* db, float* dc,
                          float* da_log, float* dskip, int64_t batch, int64_t dim, int64_t length, int64_t states,
                          int64_t blocks) {
    auto chosen = states <= 16 ? back<1> : states <= 32 ? back<2> : back<4>;
    chosen(dy, u, delta, b, c, a_log, skip, du, ddelta, db, dc, da_log, dskip, batch, dim, length, states, blocks);
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])
BLOCKS = 8


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, delta, b, c, a_log, skip):
        given = [each.contiguous() for each in (u, delta, b, c, a_log, skip)]
        (batch, dim, length), states = u.shape, a_log.shape[1]
        y = torch.empty(batch, dim, length)
        lib.scan(*given, y, batch, dim, length, states)
        ctx.save_for_backward(*given)
        return y

    @staticmethod
    def backward(ctx, dy):
        given = ctx.saved_tensors
        u, a_log = given[0], given[4]
        (batch, dim, length), states = u.shape, a_log.shape[1]
        grads = [torch.empty_like(each) for each in given]
        lib.scan_back(dy.contiguous(), *given, *grads, batch, dim, length, states, max(1, min(BLOCKS, dim)))
        return tuple(grads)


class ModelNew(nn.Module):
    def __init__(self, dim, states, dtype="float32"):
        super().__init__()
        kind = getattr(torch, dtype)
        self.a_log = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(dim, 1).to(kind))
        self.skip = nn.Parameter(torch.ones(dim, dtype=kind))

    def forward(self, u, delta, b, c):
        (batch, dim, length), states = u.shape, self.a_log.shape[1]
        if not u.dtype == delta.dtype == b.dtype == c.dtype == self.a_log.dtype == torch.float32 or states > 64:
            raise ValueError("this kernel is for float32 and at most 64 states")
        if delta.shape != u.shape or not b.shape == c.shape == (batch, states, length) or dim != self.skip.numel():
            raise ValueError("u, delta, b and c do not fit one another")
        return Scan.apply(u, delta, b, c, self.a_log, self.skip)
