"""The k-th largest of some groups' maxima is a bound that few more than k elements reach; only those are sorted.

A row is read twice by vectors: once for the maxima of at least four times k groups (15 % more than k elements reach the
bound, where values are in no order), once for whoever reaches it. The reference sorts the whole row. Numbers become
integers in the same order (NaN above all, 0 and -0 equal), and a pair with the place decides ties.
"""

import torch
from kernelwright import load_cpp
from torch import nn

SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <algorithm>
#include <functional>

static const int32_t LOWEST = INT32_MIN;

// Integers in the order of the numbers. `inf`: the bits of infinity, in the upper bits where numbers have 16.
static inline int32_t key_of(int32_t bits, int32_t inf) {
    const int32_t size = bits & 0x7fffffff, key = bits < 0 ? bits ^ 0x7fffffff : bits;
    return size > inf ? 0x7fffffff : size == 0 ? 0 : key;
}
static inline int32_t bits_of(uint32_t x) { return (int32_t)x; }
static inline int32_t bits_of(uint16_t x) { return (int32_t)((uint32_t)x << 16); }

// Larger for larger keys, and of equal keys for the smaller place.
static inline uint64_t pair(int32_t key, int64_t place) {
    return (uint64_t)((uint32_t)key ^ 0x80000000u) << 32 | (uint32_t)~(uint32_t)place;
}

// A key that at least k of the row reach; fills `keys`.
template <class T> static int32_t bound(const T* x, int32_t* __restrict keys, int64_t n, int64_t k, int32_t inf) {
    const int64_t groups = (4 * k + 63) / 64 * 64;
    if (groups > 4096 || n < 2 * groups) {
        #pragma omp simd
        for (int64_t i = 0; i < n; i++) keys[i] = key_of(bits_of(x[i]), inf);
        return LOWEST;
    }
    int32_t most[4096];
    for (int64_t g = 0; g < groups; g++) most[g] = LOWEST;
    for (int64_t i = 0; i < n; i += groups) {
        const int64_t some = n - i < groups ? n - i : groups;
        #pragma omp simd
        for (int64_t g = 0; g < some; g++) {
            const int32_t key = key_of(bits_of(x[i + g]), inf);
            keys[i + g] = key;
            most[g] = key > most[g] ? key : most[g];
        }
    }
    std::nth_element(most, most + k - 1, most + groups, std::greater<int32_t>());
    return most[k - 1];
}

template <class T> static void row(const T* x, T* values, int64_t* places, int64_t n, int64_t k, int32_t inf,
                                   int32_t* keys, uint64_t* found) {
    const int32_t least = bound(x, keys, n, k, inf);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += 32) {
        const int64_t end = i + 32 < n ? i + 32 : n;
        int32_t any = least == LOWEST;
        if (end - i == 32) {
            #pragma omp simd reduction(| : any)
            for (int64_t l = 0; l < 32; l++) any |= keys[i + l] >= least;
        } else any = 1;
        if (!any) continue;
        for (int64_t l = i; l < end; l++) {
            found[count] = pair(keys[l], l);
            count += keys[l] >= least;
        }
    }
    if (count > k) std::nth_element(found, found + k - 1, found + count, std::greater<uint64_t>());
    std::sort(found, found + k, std::greater<uint64_t>());
    for (int64_t j = 0; j < k; j++) {
        places[j] = (uint32_t)~(uint32_t)found[j];
        values[j] = x[places[j]];
    }
}

template <class T> static void all(const T* x, T* values, int64_t* places, int64_t rows, int64_t n, int64_t k,
                                   int32_t inf) {
    #pragma omp parallel if (rows * n >= 32768)
    {
        int32_t* keys = (int32_t*)malloc(n * sizeof(int32_t));
        uint64_t* found = (uint64_t*)malloc((n + 1) * sizeof(uint64_t));
        #pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) row(x + r * n, values + r * k, places + r * k, n, k, inf, keys, found);
        free(found);
        free(keys);
    }
}

extern "C" void topk(const void* x, void* values, int64_t* places, int64_t rows, int64_t n, int64_t k, int64_t size,
                     int64_t inf) {
    if (size == 2) all((const uint16_t*)x, (uint16_t*)values, places, rows, n, k, (int32_t)inf);
    else all((const uint32_t*)x, (uint32_t*)values, places, rows, n, k, (int32_t)inf);
}
"""
lib = load_cpp(SOURCE)
_INFINITY = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F800000, torch.float16: 0x7C000000}


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        if x.dtype not in _INFINITY or x.dim() != 2 or x.shape[1] >= 2**31 or self.k < 0:
            raise NotImplementedError("rows of fewer than 2^31 floats of 16 or 32 bits")
        x = x.contiguous()
        rows, cols = x.shape
        k = min(self.k, cols)
        values, places = x.new_empty((rows, k)), torch.empty((rows, k), dtype=torch.int64)
        if values.numel():
            lib.topk(x, values, places, rows, cols, k, x.element_size(), _INFINITY[x.dtype])
        return values, places
