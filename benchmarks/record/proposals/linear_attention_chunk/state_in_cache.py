"""A head is walked in the reference's chunks with its state, dim x dim, in the first cache: nothing but the result is
written.

The reference pads three tensors, and writes the scores, the states of all chunks and their running sum. The products of
a chunk run from registers in tiles of 24 vectors of sums, and of what the mask hides only the diagonal's blocks are
computed. The chunks are those of the reference since what an infinite value does depends on them: through the state it
meets all of a key's numbers, inside of a chunk only their sum.
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

#define MEMBER inline __attribute__((always_inline))
// ROWS x 16 COLS of a product in registers: each vector of b meets a number of each row of a.
template <int ROWS, int COLS> struct Tile {
    vf sum[ROWS][COLS];
    MEMBER void clear() {
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) sum[r][c] = vf{};
    }
    MEMBER void add(int64_t depth, const float* const* a, int64_t step, const float* b,
                    int64_t width) {
        for (int64_t k = 0; k < depth; k++) {
            vf v[COLS];
            for (int c = 0; c < COLS; c++) v[c] = load(b + k * width + 16 * c);
            for (int r = 0; r < ROWS; r++) {
                const float x = a[r][k * step];
                for (int c = 0; c < COLS; c++) sum[r][c] += x * v[c];
            }
        }
    }
};

static thread_local Room room;

// c[rows, 16 COLS] += a[rows, depth] b[depth, 16 COLS]; a's rows are `down` apart and its columns `across`.
template <int COLS> INLINE void add_product(const float* a, int64_t down, int64_t across, const float* b, float* c,
                                            int64_t width, int64_t rows, int64_t depth, int64_t to_width) {
    enum { ROWS = COLS == 4 ? 6 : COLS == 3 ? 8 : COLS == 2 ? 12 : 16 };
    for (int64_t r = 0; r < rows; r += ROWS) {
        const float* from[ROWS];
        for (int i = 0; i < ROWS; i++) from[i] = a + (r + i < rows ? r + i : rows - 1) * down;
        Tile<ROWS, COLS> tile;
        tile.clear();
        tile.add(depth, from, across, b, width);
        for (int i = 0; i < ROWS && r + i < rows; i++)
            for (int v = 0; v < COLS; v++) {
                float* to = c + (r + i) * to_width + 16 * v;
                store(to, load(to) + tile.sum[i][v]);
            }
    }
}

INLINE void add(const float* a, int64_t down, int64_t across, const float* b, float* c, int64_t width, int64_t rows,
                int64_t depth, int64_t wide) {
    for (int64_t v = 0; v < wide; v += 64) {
        const int64_t left = (wide - v) / 16;
        if (left >= 4) add_product<4>(a, down, across, b + v, c + v, width, rows, depth, width);
        else if (left == 3) add_product<3>(a, down, across, b + v, c + v, width, rows, depth, width);
        else if (left == 2) add_product<2>(a, down, across, b + v, c + v, width, rows, depth, width);
        else add_product<1>(a, down, across, b + v, c + v, width, rows, depth, width);
    }
}

extern "C" void attend(const float* q, const float* k, const float* v, float* out, int64_t heads, int64_t length,
                       int64_t dim, int64_t chunk, double scale_) {
    const int64_t wide = (dim + 15) / 16 * 16, across = (chunk + 31) / 32 * 32;
    const float scale = (float)scale_;
    #pragma omp parallel if (heads * length * dim >= 32768)
    {
        float* state = room.of((dim + 2 * chunk) * wide + (dim + chunk) * across);
        float *values = state + dim * wide, *result = values + chunk * wide;
        float *turned = result + chunk * wide, *scores = turned + dim * across;
        #pragma omp for schedule(static)
        for (int64_t head = 0; head < heads; head++) {
            memset(state, 0, dim * wide * sizeof(float));
            memset(values, 0, chunk * wide * sizeof(float));
            for (int64_t start = 0; start < length; start += chunk) {
                const int64_t n = start + chunk < length ? chunk : length - start, at = (head * length + start) * dim;
                for (int64_t t = 0; t < n; t++) memcpy(values + t * wide, v + at + t * dim, dim * sizeof(float));
                for (int64_t d = 0; d < dim; d++)
                    for (int64_t t = 0; t < across; t++) turned[d * across + t] = t < n ? k[at + t * dim + d] : 0.0f;
                memset(scores, 0, n * across * sizeof(float));
                for (int64_t s = 0; s < n; s += 32)
                    add_product<2>(q + at + s * dim, dim, 1, turned + s, scores + s * across + s, across, n - s, dim,
                                   across);
                for (int64_t t = 0; t < n; t++)
                    for (int64_t s = t + 1; s < across; s++) scores[t * across + s] = 0.0f;
                memset(result, 0, n * wide * sizeof(float));
                if (start) add(q + at, dim, 1, state, result, wide, n, dim, wide);
                for (int64_t t = 0; t < n; t += 24) {
                    const int64_t rows = t + 24 < n ? 24 : n - t;
                    add(scores + t * across, across, 1, values, result + t * wide, wide, rows, t + rows, wide);
                }
                if (start + n < length) add(turned, across, 1, values, state, wide, dim, n, wide);
                for (int64_t t = 0; t < n; t++)
                    walk(dim, [&](auto i) { store(out + at + t * dim, i, load(result + t * wide, i) * scale); });
            }
        }
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def __init__(self, chunk=64):
        super().__init__()
        self.chunk = chunk

    def forward(self, q, k, v):
        if not q.dtype == k.dtype == v.dtype == torch.float32 or not q.shape == k.shape == v.shape or q.dim() != 4:
            raise ValueError("expected q, k and v of one shape in float32")
        if not 1 <= self.chunk <= 1024:
            raise ValueError(f"chunks of {self.chunk} are not what this kernel is for")
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        batch, heads, length, dim = q.shape
        out = torch.empty_like(q)
        lib.attend(q, k, v, out, batch * heads, length, dim, min(self.chunk, max(1, length)), max(1, dim) ** -0.5)
        return out
