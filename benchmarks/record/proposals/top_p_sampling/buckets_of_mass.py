"""Logits fall into 1,024 buckets by their distance from the largest, and only one or two of the buckets are sorted.

Masses are added up by bucket, in float64. Walking down the buckets finds the one in which p is reached, and the one in
which the random number falls; only their tokens (some dozens of 8,000) are put in order. The reference sorts each
row stably and makes five more passes over it in float64. Bound by the exponential, a polynomial on eight doubles at a
time.
"""

import torch
from kernelwright import load_cpp
from torch import nn

SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>

static const int64_t BUCKETS = 1024;
static const double A_UNIT = 32.0;  // buckets; the last one has all that is 32 and more below the largest

// x <= 0: 2^n in two factors, e^r by its series on [-ln2/2, ln2/2] (the first term left out is 4e-18).
static inline double exp_lane(double x) {
    x = x < -1100.0 ? -1100.0 : x;
    const double magic = 6755399441055744.0, t = x * 1.4426950408889634 + magic, n = t - magic;
    double r = __builtin_fma(n, -6.93147180369123816490e-01, x);
    r = __builtin_fma(n, -1.90821492927058770002e-10, r);
    double p = 1.6059043836821613e-10;
    p = __builtin_fma(p, r, 2.08767569878681e-09);
    p = __builtin_fma(p, r, 2.505210838544172e-08);
    p = __builtin_fma(p, r, 2.755731922398589e-07);
    p = __builtin_fma(p, r, 2.7557319223985893e-06);
    p = __builtin_fma(p, r, 2.48015873015873e-05);
    p = __builtin_fma(p, r, 1.984126984126984e-04);
    p = __builtin_fma(p, r, 1.388888888888889e-03);
    p = __builtin_fma(p, r, 8.333333333333333e-03);
    p = __builtin_fma(p, r, 4.1666666666666664e-02);
    p = __builtin_fma(p, r, 1.6666666666666666e-01);
    p = __builtin_fma(p, r, 0.5);
    p = __builtin_fma(p, r, 1.0);
    p = __builtin_fma(p, r, 1.0);
    union { double f; int64_t i; } bits = {t}, zero = {magic};
    const int64_t whole = bits.i - zero.i, half = whole >> 1;
    union { int64_t i; double f; } a = {(half + 1023) << 52}, b = {(whole - half + 1023) << 52};
    return p * a.f * b.f;
}

static inline double widened(float x) {
    const double inf = __builtin_inf(), v = x;
    return x != x ? -inf : v == inf ? 1e30 : v;
}

struct token { double logit; int64_t place; };

struct row {
    int64_t n;
    const float* logits;
    double *e, *mass;
    int64_t* count;
    uint16_t* bucket;
    token* sorted;
    int64_t held;  // the bucket that `sorted` has

    int64_t sort(int64_t b) {
        if (b == held) return count[b];
        held = b;
        int64_t found = 0;
        for (int64_t first = 0; first < n; first += 64) {
            const int64_t end = first + 64 < n ? first + 64 : n;
            uint16_t any = 0;
            for (int64_t i = first; i < end; i++) any |= bucket[i] == b;
            for (int64_t i = first; any && i < end; i++)
                if (bucket[i] == b) sorted[found++] = {widened(logits[i]), i};
        }
        std::sort(sorted, sorted + found, [](const token& a, const token& b) {
            return a.logit > b.logit || (a.logit == b.logit && a.place < b.place);
        });
        return found;
    }

    void sample(double p, double number, int64_t* token_, int64_t* kept, float* mass_) {
        double top = -__builtin_inf();
        #pragma omp simd reduction(max : top)
        for (int64_t i = 0; i < n; i++) {
            const double v = widened(logits[i]);
            top = v > top ? v : top;
        }
        if (top == -__builtin_inf()) {  // nothing to draw from: as the reference has it
            *token_ = 0;
            *kept = 1;
            *mass_ = __builtin_nanf("");
            return;
        }
        double all = 0.0;
        #pragma omp simd reduction(+ : all)
        for (int64_t i = 0; i < n; i++) {
            const double down = top - widened(logits[i]), power = exp_lane(-down);
            const double place = down * A_UNIT;
            e[i] = power;
            bucket[i] = (uint16_t)(int32_t)(place < BUCKETS - 1 ? place : BUCKETS - 1);
            all += power;
        }
        memset(mass, 0, BUCKETS * sizeof *mass);
        memset(count, 0, BUCKETS * sizeof *count);
        for (int64_t i = 0; i < n; i++) {
            mass[bucket[i]] += e[i];
            count[bucket[i]]++;
        }
        held = -1;
        const double limit = p - 1e-9;
        int64_t some = 0;
        const double total = keep(limit, all, &some);
        *kept = some;
        *mass_ = (float)(total / all);
        *token_ = draw(number * total, some);
    }

    // How many tokens have mass p together, the last of them included: their mass.
    double keep(double limit, double all, int64_t* some) {
        double upto = 0.0;
        for (int64_t b = 0; b < BUCKETS; b++) {
            if (!count[b]) continue;
            if (b < BUCKETS - 1 && (upto + mass[b]) / all < limit) {
                upto += mass[b];
                *some += count[b];
                continue;
            }
            const int64_t found = sort(b);
            for (int64_t i = 0; i < found; i++) {
                const double power = e[sorted[i].place];
                if (*some && !(upto / all < limit && power / all > 0.0)) return upto;
                upto += power;
                ++*some;
            }
        }
        return upto;
    }

    // The first of `some` tokens up to which there is more than the wanted mass.
    int64_t draw(double wanted, int64_t some) {
        double upto = 0.0;
        int64_t passed = 0;
        for (int64_t b = 0; b < BUCKETS; b++) {
            if (!count[b]) continue;
            if (passed + count[b] < some && upto + mass[b] <= wanted) {
                upto += mass[b];
                passed += count[b];
                continue;
            }
            const int64_t found = sort(b);
            for (int64_t i = 0; i < found; i++, passed++) {
                upto += e[sorted[i].place];
                if (upto > wanted || passed == some - 1 || i == found - 1) return sorted[i].place;
            }
        }
        return 0;
    }
};

extern "C" void sample(const float* logits, const float* p, const int64_t* number, int64_t* tokens, int64_t* kept,
                       float* mass, int64_t rows, int64_t n) {
    #pragma omp parallel if (rows * n >= 16384)
    {
        row r = {n, nullptr,
                 (double*)malloc(n * sizeof(double)), (double*)malloc(BUCKETS * sizeof(double)),
                 (int64_t*)malloc(BUCKETS * sizeof(int64_t)), (uint16_t*)malloc(n * sizeof(uint16_t)),
                 (token*)malloc(n * sizeof(token)), -1};
        #pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            r.logits = logits + i * n;
            r.sample(p[i], (number[i] + 0.5) / 2147483648.0, tokens + i, kept + i, mass + i);
        }
        free(r.e);
        free(r.mass);
        free(r.count);
        free(r.bucket);
        free(r.sorted);
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def forward(self, logits, p, number):
        if {logits.dtype, p.dtype} != {torch.float32} or number.dtype != torch.int64 or logits.dim() != 2:
            raise NotImplementedError("float32 logits and p, int64 numbers")
        rows, vocab = logits.shape
        if not vocab or p.shape != (rows,) or number.shape != (rows,):
            raise IndexError("a token to draw, and a p and a number for each row")
        logits, p, number = logits.contiguous(), p.contiguous(), number.contiguous()
        tokens, kept, mass = torch.empty_like(number), torch.empty_like(number), torch.empty_like(p)
        lib.sample(logits, p, number, tokens, kept, mass, rows, vocab)
        return tokens, kept, mass
