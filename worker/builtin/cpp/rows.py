"""C++ that recipes over rows share: reductions along a row, and writing one with streaming stores.

A row is walked by a generic lambda `get(k)`, once for each whole vector (`k` is a `Many`) and, when a row is shorter
than
a vector, once for each element (`One`); `at(x, k)` and `put(x, k, value)` read and write at that place. Whatever
does not
fill the last vector is done by one that overlaps its predecessor, lanes seen before being masked out of sums.
"""

from __future__ import annotations

WALK = """\
template <class F> struct Truth { typedef vi M; };
template <> struct Truth<float> { typedef bool M; };
struct One { int64_t i; typedef float F; };
struct Many { int64_t i; typedef vf F; };
INLINE float at(const float* p, One k) { return p[k.i]; }
INLINE vf at(const float* p, Many k) { return load(p + k.i); }
INLINE float at(const int64_t* p, One k) { return (float)p[k.i]; }
INLINE vf at(const int64_t* p, Many k) { return load(p + k.i); }
INLINE bool at(const unsigned char* p, One k) { return p[k.i] != 0; }
INLINE vi at(const unsigned char* p, Many k) { return load(p + k.i); }
INLINE float put(float* p, One k, float v) { p[k.i] = v; return v; }
INLINE vf put(float* p, Many k, vf v) { store(p + k.i, v); return v; }
INLINE float lanes_sum(vf v) {
    float t[LANES];
    memcpy(t, &v, sizeof t);
    for (int w = LANES / 2; w; w /= 2)
        for (int l = 0; l < w; l++) t[l] += t[l + w];
    return t[0];
}
INLINE float lanes_max(vf v) {
    float t[LANES];
    memcpy(t, &v, sizeof t);
    for (int w = LANES / 2; w; w /= 2)
        for (int l = 0; l < w; l++) t[l] = t[l + w] > t[l] ? t[l + w] : t[l];
    return t[0];
}
// True in the last `count` lanes.
INLINE vi last_lanes(int64_t count) {
    vi lane;
    for (int l = 0; l < LANES; l++) lane[l] = l;
    return lane >= (int32_t)(LANES - count);
}
"""

# Sums are kept in float lanes over CHUNK elements and in double over chunks: the error does not grow with the row. Four
# accumulators hide the latency of an addition.
SUM = """\
template <class Get> INLINE double row_sum(int64_t from, int64_t to, Get get) {
    double total = 0.0;
    if (to - from < LANES) {
        for (int64_t i = from; i < to; i++) total += get(One{i});
        return total;
    }
    const vf zero = {};
    int64_t i = from;
    while (i + LANES <= to) {
        const int64_t stop = i + CHUNK < to ? i + CHUNK : to;
        vf a = zero, b = zero, c = zero, d = zero;
        for (; i + 4 * LANES <= stop; i += 4 * LANES) {
            a += get(Many{i});
            b += get(Many{i + LANES});
            c += get(Many{i + 2 * LANES});
            d += get(Many{i + 3 * LANES});
        }
        for (; i + LANES <= stop; i += LANES) a += get(Many{i});
        total += lanes_sum((a + b) + (c + d));
    }
    if (i < to) {
        const vf rest = get(Many{to - LANES});
        total += lanes_sum(select(last_lanes(to - i), rest, zero));
    }
    return total;
}
"""

# Two sums in one walk: `get(k, a, b)` adds to both.
SUM2 = """\
template <class Get> INLINE void row_sums(int64_t n, double& first, double& second, Get get) {
    first = second = 0.0;
    if (n < LANES) {
        for (int64_t i = 0; i < n; i++) {
            float a = 0.0f, b = 0.0f;
            get(One{i}, a, b);
            first += a;
            second += b;
        }
        return;
    }
    const vf zero = {};
    int64_t i = 0;
    while (i + LANES <= n) {
        const int64_t stop = i + CHUNK < n ? i + CHUNK : n;
        vf a = zero, b = zero, c = zero, d = zero;
        for (; i + 2 * LANES <= stop; i += 2 * LANES) {
            get(Many{i}, a, b);
            get(Many{i + LANES}, c, d);
        }
        for (; i + LANES <= stop; i += LANES) get(Many{i}, a, b);
        first += lanes_sum(a + c);
        second += lanes_sum(b + d);
    }
    if (i < n) {
        vf a = zero, b = zero;
        get(Many{n - LANES}, a, b);
        const vi fresh = last_lanes(n - i);
        first += lanes_sum(select(fresh, a, zero));
        second += lanes_sum(select(fresh, b, zero));
    }
}
"""

MAX = """\
// Skips NaN: for the maximum that a softmax subtracts, where the sum that follows finds it.
template <class Get> INLINE float row_top(int64_t from, int64_t to, Get get) {
    float top = -INF;
    if (to - from < LANES) {
        for (int64_t i = from; i < to; i++) {
            const float v = get(One{i});
            top = v > top ? v : top;
        }
        return top;
    }
    vf a = splat<vf>(-INF), b = a, c = a, d = a;
    int64_t i = from;
    for (; i + 4 * LANES <= to; i += 4 * LANES) {
        const vf p = get(Many{i}), q = get(Many{i + LANES}), r = get(Many{i + 2 * LANES}), s = get(Many{i + 3 * LANES});
        a = select(p > a, p, a);
        b = select(q > b, q, b);
        c = select(r > c, r, c);
        d = select(s > d, s, d);
    }
    for (; i + LANES <= to; i += LANES) {
        const vf p = get(Many{i});
        a = select(p > a, p, a);
    }
    const vf rest = get(Many{to - LANES});
    a = select(rest > a, rest, a);
    a = select(b > a, b, a);
    c = select(d > c, d, c);
    return lanes_max(select(c > a, c, a));
}
"""

# NaN goes through, as it does in torch: a second accumulator notices it.
NAN_MAX = """\
template <class Get> INLINE float row_max(int64_t from, int64_t to, Get get) {
    float top = -INF;
    if (to - from < LANES) {
        for (int64_t i = from; i < to; i++) {
            const float v = get(One{i});
            if (v != v) return v;
            top = v > top ? v : top;
        }
        return top;
    }
    vf a = splat<vf>(-INF), b = a;
    vi lost = {};
    int64_t i = from;
    for (; i + 2 * LANES <= to; i += 2 * LANES) {
        const vf p = get(Many{i}), q = get(Many{i + LANES});
        lost |= (p != p) | (q != q);
        a = select(p > a, p, a);
        b = select(q > b, q, b);
    }
    for (; i < to; i += LANES) {
        const vf p = get(Many{i + LANES <= to ? i : to - LANES});
        lost |= p != p;
        a = select(p > a, p, a);
    }
    for (int l = 0; l < LANES; l++)
        if (lost[l]) return NOT_A_NUMBER;
    return lanes_max(select(b > a, b, a));
}
"""

STREAM = """\
#if STREAM && defined(__AVX512F__) && LANES == 16
INLINE void stream(float* p, vf v) { __builtin_ia32_movntps512(p, v); }
#define FENCE __builtin_ia32_sfence();
#elif STREAM && defined(__AVX__) && LANES == 8
INLINE void stream(float* p, vf v) { __builtin_ia32_movntps256(p, v); }
#define FENCE __builtin_ia32_sfence();
#else
INLINE void stream(float* p, vf v) { store(p, v); }
#define FENCE
#endif
"""

# Streaming stores save reading the lines that they overwrite. Only for rows that are whole cache lines: at 1021 x
# 2039, where
# every row ends inside a line, streaming the middle and storing the ends took 1.5 times as long as plain stores.
WRITE = (
    STREAM
    + """\
template <class Get> INLINE void write_row(float* __restrict out, int64_t n, Get get) {
    if (n < LANES) {
        for (int64_t i = 0; i < n; i++) out[i] = get(One{i});
        return;
    }
    int64_t i = 0;
    if (STREAM && n % LANES == 0 && ((uintptr_t)out & (sizeof(vf) - 1)) == 0) {
        for (; i < n; i += LANES) stream(out + i, get(Many{i}));
        return;
    }
    for (; i + LANES <= n; i += LANES) store(out + i, get(Many{i}));
    if (i < n) store(out + n - LANES, get(Many{n - LANES}));
}
"""
)

# Asks for the same place of the next row while this one is computed, so that memory never waits.
AHEAD = """\
#define NEXT_ROW(p, k) if (AHEAD) __builtin_prefetch((p) + n + (k).i)
"""

# Memory that grows and stays from call to call: fresh pages would cost as much as the work. Starts on a cache line.
ROOM = """\
#include <stdlib.h>
struct Room {
    void* data = nullptr;
    size_t size = 0;
    ~Room() { free(data); }
    template <class T> T* of(int64_t count) {
        const size_t wanted = (count * sizeof(T) + 127) & ~(size_t)63;
        if (size < wanted) {
            free(data);
            data = aligned_alloc(64, wanted);
            size = wanted;
        }
        return (T*)data;
    }
};
"""

# A buffer for each thread.
SCRATCH = (
    ROOM
    + """\
static thread_local Room scratch;
INLINE float* scratch_row(int64_t n) { return scratch.of<float>(n); }
"""
)

TUNABLES = {"CHUNK": [256, 1024, 4096], "GRAIN": [4096, 32768]}
DEFAULTS = {"CHUNK": 1024, "GRAIN": 32768}
STREAM_TUNABLES = {**TUNABLES, "STREAM": [0, 1], "AHEAD": [0, 1]}
STREAM_DEFAULTS = {**DEFAULTS, "STREAM": 1, "AHEAD": 1}


def rows_and_columns(dims: int) -> list[str]:
    """Statements that set `shape`, `rows` and `cols` of `x` for rows of its last `dims` dimensions."""
    cols = "shape[-1]" if dims == 1 else f"math.prod(shape[-{dims}:])"
    return ["shape = x.shape", f"cols = {cols}", "rows = x.numel() // cols if cols else 0"]
