"""Keys and values are read where they lie in their pages, and only as far as a sequence goes; each serves all the query
heads of its group while it is in the first cache.

The reference gathers whole caches, newest tokens or not, into two more tensors, and multiplies what it masks
afterwards. Here one task is a sequence and a key head, in pieces of 128 tokens with a running maximum.
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
INLINE vf exp_all(vf x) { return x > 88.37f ? splat(INF) : exp_down(x); }
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
enum { PIECE = 128 };

extern "C" void attend(const float* q, const float* keys, const float* values, const int64_t* table,
                       const int64_t* last, float* out, int64_t* bad, int64_t batch, int64_t heads, int64_t kv_heads,
                       int64_t dim, int64_t held, int64_t page, int64_t pages, double scale) {
    const int64_t group = heads / kv_heads, stride = kv_heads * dim;
    int64_t wrong = 0;
    for (int64_t i = 0; i < batch * held; i++) wrong += table[i] < -pages || table[i] >= pages;
    *bad = wrong;
    if (wrong) return;
    #pragma omp parallel if (batch * heads * held * page * dim >= 262144)
    {
        float* scores = room.of(group * PIECE);
        #pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < batch * kv_heads; task++) {
            const int64_t b = task / kv_heads, kv = task % kv_heads;
            const int64_t whole = held * page, count = last[b] + 1 < whole ? last[b] + 1 : whole;
            const float* query = q + (b * heads + kv * group) * dim;
            float* to = out + (b * heads + kv * group) * dim;
            float top[64], sum[64];
            for (int64_t g = 0; g < group; g++) top[g] = -INF, sum[g] = 0.0f;
            memset(to, 0, group * dim * sizeof(float));
            if (count <= 0)
                for (int64_t i = 0; i < group * dim; i++) to[i] = NOT_A_NUMBER;
            for (int64_t start = 0; start < count; start += PIECE) {
                const int64_t n = start + PIECE < count ? PIECE : count - start;
                const float* at[PIECE];
                for (int64_t t = 0; t < n; t++) {
                    int64_t p = table[b * held + (start + t) / page];
                    p = p < 0 ? p + pages : p;
                    const int64_t place = (p * page + (start + t) % page) * stride + kv * dim;
                    at[t] = values + place;
                    const float* key = keys + place;
                    for (int64_t g = 0; g < group; g++) {
                        vf s = {};
                        walk(dim, [&](auto k) { s += load(key, k) * load(query + g * dim, k); });
                        scores[g * PIECE + t] = lanes_sum(s) * (float)scale;
                    }
                }
                for (int64_t g = 0; g < group; g++) {
                    float *score = scores + g * PIECE, *result = to + g * dim, most = top[g], more = 0.0f;
                    for (int64_t t = 0; t < n; t++) most = score[t] > most ? score[t] : most;
                    if (most > top[g] && sum[g] != 0.0f) {
                        const float shrink = expf(top[g] - most);
                        sum[g] *= shrink;
                        walk(dim, [&](auto k) { store(result, k, load(result, k) * shrink); });
                    }
                    top[g] = most;
                    vf total = {};
                    walk(n, [&](auto k) {
                        const vf e = exp_all(load(score, k) - most);
                        store(score, k, e);
                        total += keep(e, k);
                    });
                    more = lanes_sum(total);
                    sum[g] += more;
                }
                for (int64_t g = 0; g < group; g++)
                    walk(dim, [&](auto k) {
                        vf r = load(to + g * dim, k), s = {};
                        int64_t t = 0;
                        for (; t + 2 <= n; t += 2) {
                            r += scores[g * PIECE + t] * load(at[t], k);
                            s += scores[g * PIECE + t + 1] * load(at[t + 1], k);
                        }
                        if (t < n) r += scores[g * PIECE + t] * load(at[t], k);
                        store(to + g * dim, k, r + s);
                    });
            }
            for (int64_t g = 0; g < group; g++)
                walk(dim, [&](auto k) { store(to + g * dim, k, load(to + g * dim, k) / sum[g]); });
        }
    }
}
"""
lib = load_cpp(SOURCE, flags=["-fno-math-errno", "-fno-trapping-math"])


class ModelNew(nn.Module):
    def forward(self, q, keys, values, table, last):
        (batch, heads, dim), (pages, page, kv_heads, _) = q.shape, keys.shape
        q, keys, values = q.contiguous(), keys.contiguous(), values.contiguous()
        table, last = table.to(torch.int64).contiguous(), last.to(torch.int64).contiguous()
        if any(each.dtype != torch.float32 for each in (q, keys, values)) or keys.shape != values.shape:
            raise ValueError("expected q, and keys and values of one shape, in float32")
        if heads % max(1, kv_heads) or heads > 64 * kv_heads or keys.shape[3] != dim:
            raise ValueError(f"{heads} heads over {kv_heads} are not what this kernel is for")
        if table.dim() != 2 or table.shape[0] != batch or last.shape != (batch,):
            raise ValueError("expected a row of pages and a last token for each sequence")
        out, bad = torch.empty_like(q), torch.empty((), dtype=torch.int64)
        lib.attend(
            q, keys, values, table, last, out, bad, batch, heads, kv_heads, dim, table.shape[1], page, pages, dim**-0.5
        )
        if int(bad):
            raise IndexError("a page is out of range")
        return out
