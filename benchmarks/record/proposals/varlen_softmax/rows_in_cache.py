"""Each row is read into the first cache once: maximum, exponentials and their sum, scale. Threads share out elements.

Rows are from none to three times the mean, so a thread has the rows that begin in its share of the scores. The
reference makes each score's row number, then gathers and scatters over it four times. exp is a polynomial: bound by it.
"""

import torch
from kernelwright import load_cpp
from torch import nn

SOURCE = r"""
#include <omp.h>
#include <stdint.h>

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
    // In two factors, so that results below 2^-126 come out as subnormal numbers and not as zero.
    int32_t whole = (int32_t)n, half = whole >> 1;
    union { int32_t i; float f; } a = {(half + 127) << 23}, b = {(whole - half + 127) << 23};
    return p * a.f * b.f;
}

static void softmax(const float* __restrict x, float* __restrict out, int64_t n) {
    const float inf = __builtin_inff();
    float top = -inf;
    int32_t nans = 0;
    #pragma omp simd reduction(max : top) reduction(| : nans)
    for (int64_t i = 0; i < n; i++) {
        nans |= x[i] != x[i];
        top = x[i] > top ? x[i] : top;
    }
    if (nans || top == inf || top == -inf) {
        for (int64_t i = 0; i < n; i++) out[i] = __builtin_nanf("");
        return;
    }
    float sum = 0.0f;
    #pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        const float e = exp_lane(x[i] - top);
        out[i] = e;
        sum += e;
    }
    const float scale = 1.0f / sum;
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] *= scale;
}

static int64_t row_at(const int64_t* offsets, int64_t rows, int64_t place) {
    int64_t low = 0, high = rows;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (offsets[middle] < place) low = middle + 1;
        else high = middle;
    }
    return low;
}

extern "C" void jagged_softmax(const float* x, const int64_t* offsets, float* out, int64_t* refused, int64_t rows,
                               int64_t total) {
    int64_t wrong = offsets[0] != 0 || offsets[rows] != total;
    for (int64_t r = 0; r < rows; r++) wrong |= offsets[r] > offsets[r + 1];
    *refused = wrong;
    if (wrong) return;
    #pragma omp parallel if (total >= 32768)
    {
        const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
        const int64_t first = row_at(offsets, rows, total * part / parts);
        const int64_t last = part + 1 == parts ? rows : row_at(offsets, rows, total * (part + 1) / parts);
        for (int64_t r = first; r < last; r++)
            softmax(x + offsets[r], out + offsets[r], offsets[r + 1] - offsets[r]);
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def forward(self, scores, offsets):
        if scores.dtype != torch.float32 or offsets.dtype != torch.int64 or scores.dim() != 1 or not offsets.numel():
            raise NotImplementedError("a list of float32 scores and int64 offsets")
        scores, offsets = scores.contiguous(), offsets.contiguous()
        out, refused = torch.empty_like(scores), torch.empty(1, dtype=torch.int64)
        lib.jagged_softmax(scores, offsets, out, refused, offsets.numel() - 1, scores.numel())
        if refused.item():
            raise RuntimeError("offsets do not ascend from zero to the number of scores")
        return out
