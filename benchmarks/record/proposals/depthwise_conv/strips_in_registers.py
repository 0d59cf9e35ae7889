"""A plane is copied once into the first cache with its border of zeros; then strips of 8 rows x 32 columns are summed
in registers.

For each column of the filter a vector of an input row is loaded once and added to all output rows that it belongs to,
so a 7 x 7 filter loads one vector for four multiply-adds; the column's taps and 16 sums stay in registers.
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

static thread_local Room room;
enum { ROWS = 8 };

// ROWS x 16 COLS outputs from a bordered plane; `in` is the corner of their window.
template <int K, int COLS> INLINE void strip(const float* in, int64_t width, const float* taps, float bias,
                                             int64_t rows, float* out, int64_t out_width, int64_t count) {
    vf sum[ROWS][COLS];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) sum[r][c] = splat(bias);
    for (int kx = 0; kx < K; kx++) {
        vf tap[K];
        for (int ky = 0; ky < K; ky++) tap[ky] = splat(taps[ky * K + kx]);
#pragma GCC unroll 16
        for (int y = 0; y < ROWS + K - 1; y++) {
            vf v[COLS];
            for (int c = 0; c < COLS; c++) v[c] = load(in + y * width + kx + 16 * c);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
                if (y - r >= 0 && y - r < K)
                    for (int c = 0; c < COLS; c++) sum[r][c] += tap[y - r] * v[c];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < COLS; c++) {
            const int64_t left = count - 16 * c;
            if (left >= 16) store(out + r * out_width + 16 * c, sum[r][c]);
            else if (left > 0) store(out + r * out_width + 16 * c, Rest{0, left}, sum[r][c]);
        }
}

template <int K> static void convolve_planes(const float* x, const float* weight, const float* bias, float* out,
                                             int64_t batch, int64_t channels, int64_t height, int64_t width) {
    const int64_t around = K / 2, wide = (width + 31) / 32 * 32 + K + 16, tall = height + K - 1 + ROWS;
    #pragma omp parallel if (batch * channels * height * width * K * K >= 1500000)
    {
        float* bordered = room.of(tall * wide);
        memset(bordered, 0, tall * wide * sizeof(float));
        #pragma omp for schedule(static)
        for (int64_t plane = 0; plane < batch * channels; plane++) {
            const int64_t channel = plane % channels;
            const float *from = x + plane * height * width, *taps = weight + channel * K * K;
            for (int64_t y = 0; y < height; y++)
                memcpy(bordered + (y + around) * wide + around, from + y * width, width * sizeof(float));
            float* to = out + plane * height * width;
            for (int64_t y = 0; y < height; y += ROWS) {
                const int64_t rows = y + ROWS < height ? ROWS : height - y;
                int64_t at = 0;
                for (; width - at > 16; at += 32)
                    strip<K, 2>(bordered + y * wide + at, wide, taps, bias[channel], rows, to + y * width + at, width,
                                width - at);
                if (at < width)
                    strip<K, 1>(bordered + y * wide + at, wide, taps, bias[channel], rows, to + y * width + at, width,
                                width - at);
            }
        }
    }
}

extern "C" void convolve(const float* x, const float* weight, const float* bias, float* out, int64_t batch,
                         int64_t channels, int64_t height, int64_t width, int64_t size) {
    auto chosen = size == 1 ? convolve_planes<1> : size == 3 ? convolve_planes<3>
                : size == 5 ? convolve_planes<5> : size == 7 ? convolve_planes<7> : convolve_planes<9>;
    chosen(x, weight, bias, out, batch, channels, height, width);
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, channels, kernel, dtype="float32"):
        super().__init__()
        self.conv = nn.Conv2d(
            channels, channels, kernel, padding=kernel // 2, groups=channels, dtype=getattr(torch, dtype)
        )

    def forward(self, x):
        conv, size = self.conv, self.conv.kernel_size[0]
        if x.dtype != torch.float32 or conv.weight.dtype != torch.float32 or size not in (1, 3, 5, 7, 9):
            raise ValueError(f"{x.dtype} and filters of {size} are not what this kernel is for")
        if x.dim() != 4 or x.shape[1] != conv.in_channels:
            raise ValueError(f"expected images of {conv.in_channels} channels")
        x = x.contiguous()
        out = torch.empty_like(x)
        lib.convolve(x, conv.weight.contiguous(), conv.bias, out, *x.shape, size)
        return out
