"""For each token k times the largest of those below the last: 64 experts are eight vectors of (logit, number) pairs.

A pair is one 64-bit integer in the logits' order, of equal logits the lower expert first, and no two are alike: so the
next one is a maximum under a mask, without a sort, a branch or a store. Softmax and loads take the chosen ones while
they are in the first cache. The reference sorts all experts stably, with their numbers, and counts by a scatter.
"""

import torch
from kernelwright import load_cpp
from torch import nn

SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t line __attribute__((vector_size(64), may_alias));

// 2^n by the exponent's bits, e^r by a polynomial on [-ln2/2, ln2/2] (error 2 ulp). x is at most zero, or NaN.
static inline float exp_lane(float x) {
    x = x < -104.0f ? -104.0f : x;
    float n = __builtin_rintf(x * 1.44269504088896341f);
    float r = __builtin_fmaf(n, -0.693145751953125f, x);
    r = __builtin_fmaf(n, -1.42860682030941723e-6f, r);
    float p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, r, 1.3981999507e-3f);
    p = __builtin_fmaf(p, r, 8.3334519073e-3f);
    p = __builtin_fmaf(p, r, 4.1665795894e-2f);
    p = __builtin_fmaf(p, r, 1.6666665459e-1f);
    p = __builtin_fmaf(p, r, 5.0000001201e-1f);
    p = __builtin_fmaf(p * r, r, r + 1.0f);
    int32_t whole = (int32_t)n, half = whole >> 1;
    union { int32_t i; float f; } a = {(half + 127) << 23}, b = {(whole - half + 127) << 23};
    return p * a.f * b.f;
}

// NaN above all, 0 and -0 equal, of equal logits the lower expert above.
static inline int64_t pair(int32_t bits, int32_t expert) {
    const int32_t size = bits & 0x7fffffff, key = bits < 0 ? bits ^ 0x7fffffff : bits;
    const int32_t order = size > 0x7f800000 ? 0x7fffffff : size == 0 ? 0 : key;
    return (int64_t)order * 4294967296 + (0x7fffffff - expert);
}

static inline line larger(line a, line b) { return a > b ? a : b; }
static inline line everywhere(line v) {  // the largest lane, in all lanes
    v = larger(v, __builtin_shuffle(v, line{4, 5, 6, 7, 0, 1, 2, 3}));
    v = larger(v, __builtin_shuffle(v, line{2, 3, 0, 1, 6, 7, 4, 5}));
    return larger(v, __builtin_shuffle(v, line{1, 0, 3, 2, 5, 4, 7, 6}));
}

// The k largest of COUNT tokens: their numbers, and how far their logits are below the largest. Each maximum waits for
// the one before, so several tokens take turns.
template <int COUNT> static void choose(const float* x, line* pairs, float* down, int64_t* chosen, int64_t experts,
                                        int64_t k) {
    const int64_t lines = (experts + 7) / 8;
    const line low = line{} + INT64_MIN;
    line last[COUNT];
    for (int m = 0; m < COUNT; m++) {
        int64_t* to = (int64_t*)(pairs + m * lines);
        pairs[(m + 1) * lines - 1] = low;
        #pragma omp simd
        for (int64_t i = 0; i < experts; i++) {
            int32_t bits;
            memcpy(&bits, x + m * experts + i, 4);
            to[i] = pair(bits, (int32_t)i);
        }
        last[m] = line{} + INT64_MAX;
    }
    for (int64_t j = 0; j < k; j++) {
        line top[COUNT];
        for (int m = 0; m < COUNT; m++) top[m] = low;
        for (int64_t i = 0; i < lines; i++)
            for (int m = 0; m < COUNT; m++) {
                const line each = pairs[m * lines + i];
                top[m] = larger(top[m], each < last[m] ? each : low);
            }
        for (int m = 0; m < COUNT; m++) {
            last[m] = everywhere(top[m]);
            const int64_t* mine = chosen + m * k;
            chosen[m * k + j] = 0x7fffffff - (int32_t)(uint32_t)last[m][0];
            down[m * k + j] = x[m * experts + mine[j]] - x[m * experts + mine[0]];
        }
    }
}

extern "C" void route(const float* logits, float* weights, int64_t* chosen, int64_t* loads, int64_t tokens,
                      int64_t experts, int64_t k) {
    for (int64_t e = 0; e < experts; e++) loads[e] = 0;
    if (!k) return;
    #pragma omp parallel if (tokens * experts >= 16384)
    {
        line* pairs = (line*)aligned_alloc(64, (experts + 8) / 8 * 4 * 64);
        int64_t* mine = (int64_t*)calloc(experts, sizeof(int64_t));
        #pragma omp for schedule(static)
        for (int64_t first = 0; first < tokens; first += 32) {
            const int64_t end = first + 32 < tokens ? first + 32 : tokens;
            int64_t t = first;
            for (; t + 4 <= end; t += 4)
                choose<4>(logits + t * experts, pairs, weights + t * k, chosen + t * k, experts, k);
            for (; t < end; t++)
                choose<1>(logits + t * experts, pairs, weights + t * k, chosen + t * k, experts, k);
            for (int64_t i = first * k; i < end * k; i++) mine[chosen[i]]++;
            #pragma omp simd
            for (int64_t i = first * k; i < end * k; i++) weights[i] = exp_lane(weights[i]);
            for (t = first; t < end; t++) {
                float sum = 0.0f;
                for (int64_t j = 0; j < k; j++) sum += weights[t * k + j];
                for (int64_t j = 0; j < k; j++) weights[t * k + j] /= sum;
            }
        }
        #pragma omp critical
        for (int64_t e = 0; e < experts; e++) loads[e] += mine[e];
        free(mine);
        free(pairs);
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, logits):
        if logits.dtype != torch.float32 or logits.dim() != 2 or self.k < 0:
            raise NotImplementedError("a matrix of float32 logits")
        logits = logits.contiguous()
        tokens, experts = logits.shape
        k = min(self.k, experts)
        weights = logits.new_empty((tokens, k))
        chosen, loads = torch.empty((tokens, k), dtype=torch.int64), torch.empty(experts, dtype=torch.int64)
        lib.route(logits, weights, chosen, loads, tokens, experts, k)
        return weights, chosen, loads
