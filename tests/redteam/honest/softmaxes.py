"""Softmax and log-sum-exp: two passes or one, merged chunks, tables, polynomials, and rows of infinities."""

from __future__ import annotations

from tests.redteam.honest.building import EACH_ROW, EACH_SUM, REDUCED, cpp

POLYNOMIAL = """
typedef float V __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(32)));
static inline V vexp(V x) {  // x = n ln2 + r; a polynomial for e^r; NaN, infinities and underflow by selection
    V at = x < -104.0f ? V{} - 104.0f : x > 89.0f ? V{} + 89.0f : x;
    V shifted = at * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    V r = (at - n * 0.693359375f) + n * 2.12194440e-4f;
    V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    I bits = (I)shifted - 0x4B400000, half = bits >> 1;
    V y = p * (V)((half + 127) << 23) * (V)((bits - half + 127) << 23);
    return x == x ? y : x;
}
"""
_TOP = """
static inline float top_of(const float* x, int64_t n) {
    float m = -INFINITY;
    for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    return m;
}
"""
_ROWS = {
    "three-pass": (
        "Maximum, sum, division: three passes",
        _TOP
        + """
static void row(const float* x, float* y, int64_t n) {
    float m = top_of(x, n), s = 0;
    for (int64_t i = 0; i < n; i++) s += y[i] = expf(x[i] - m);
    for (int64_t i = 0; i < n; i++) y[i] /= s;
}""",
    ),
    "online": (
        "Online: maximum and sum in one pass, careful where a row begins with -inf",
        """
static void row(const float* x, float* y, int64_t n) {
    float m = -INFINITY, s = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] > m) { s = s * (m == -INFINITY ? 0.0f : expf(m - x[i])) + expf(x[i] - x[i]); m = x[i]; }
        else if (x[i] != -INFINITY) s += expf(x[i] - m);  // a NaN compares false and lands here
    }
    for (int64_t i = 0; i < n; i++) y[i] = expf(x[i] - m) / s;
}""",
    ),
    "online-chunks": (
        "Online over chunks of 48: each with its own maximum and sum, merged by rescaling",
        _TOP
        + """
static void row(const float* x, float* y, int64_t n) {
    float m = -INFINITY, s = 0;
    for (int64_t b = 0; b < n; b += 48) {
        int64_t k = std::min<int64_t>(48, n - b);
        float top = std::max(m, top_of(x + b, k)), part = 0;
        if (top == -INFINITY) {
            for (int64_t i = b; i < b + k; i++) if (x[i] != x[i]) s = x[i];
            continue;
        }
        for (int64_t i = b; i < b + k; i++) part += expf(x[i] - top);
        s = s * (m == -INFINITY ? 1.0f : expf(m - top)) + part;
        m = top;
    }
    for (int64_t i = 0; i < n; i++) y[i] = expf(x[i] - m) / s;
}""",
    ),
    "polynomial": (
        "A vectorised polynomial for exp with its special values right, and a scalar tail",
        _TOP
        + POLYNOMIAL
        + """
static void row(const float* x, float* y, int64_t n) {
    float m = top_of(x, n), s = 0;
    for (int64_t i = 0; i < n; i += 8) {
        V v{};
        int64_t k = std::min<int64_t>(8, n - i);
        memcpy(&v, x + i, k * 4);
        V e = vexp(v - m);
        memcpy(y + i, &e, k * 4);
        for (int64_t j = 0; j < k; j++) s += e[j];
    }
    float inverse = 1.0f / s;
    for (int64_t i = 0; i < n; i++) y[i] *= inverse;
}""",
    ),
    "exp2": (
        "Powers of two, with the product by log2(e) in double so that nothing is lost",
        _TOP
        + """
static void row(const float* x, float* y, int64_t n) {
    double m = top_of(x, n), s = 0;
    for (int64_t i = 0; i < n; i++) s += y[i] = (float)exp2((x[i] - m) * 1.4426950408889634);
    for (int64_t i = 0; i < n; i++) y[i] = (float)(y[i] / s);
}""",
    ),
    "double": (
        "Everything in double",
        _TOP
        + """
static void row(const float* x, float* y, int64_t n) {
    double m = top_of(x, n), s = 0;
    for (int64_t i = 0; i < n; i++) s += exp(x[i] - m);
    for (int64_t i = 0; i < n; i++) y[i] = (float)(exp(x[i] - m) / s);
}""",
    ),
    "log-domain": (
        "exp(x - max - log(sum)): no division, no second multiplication",
        _TOP
        + """
static void row(const float* x, float* y, int64_t n) {
    float m = top_of(x, n), s = 0;
    for (int64_t i = 0; i < n; i++) s += expf(x[i] - m);
    float l = logf(s);
    for (int64_t i = 0; i < n; i++) y[i] = expf((x[i] - m) - l);
}""",
    ),
    "table": (
        "exp by a table of 2^(k/64), filled once behind std::call_once",
        _TOP
        + """
#include <mutex>
static double powers[64];
static std::once_flag filled;
static inline float table_exp(float x) {
    if (!(x > -104.0f)) return x == x ? 0.0f : x;
    double scaled = x * 92.332482616893657, k = std::nearbyint(scaled), r = (scaled - k) * 0.010830424696249145;
    int64_t i = (int64_t)k;
    double tail = 1 + r * (1 + r * (0.5 + r * (1.0 / 6)));
    return (float)std::ldexp(powers[i & 63] * tail, (int)(i >> 6));
}
static void row(const float* x, float* y, int64_t n) {
    std::call_once(filled, [] { for (int k = 0; k < 64; k++) powers[k] = std::exp2(k / 64.0); });
    float m = top_of(x, n), s = 0;
    for (int64_t i = 0; i < n; i++) s += y[i] = table_exp(x[i] - m);
    for (int64_t i = 0; i < n; i++) y[i] /= s;
}""",
    ),
    "scratch": (
        "Exponentials in a thread's own scratch buffer that lives as long as the thread",
        _TOP
        + """
#include <vector>
static void row(const float* x, float* y, int64_t n) {
    static thread_local std::vector<float> scratch;
    if ((int64_t)scratch.size() < n) scratch.resize(n);
    float m = top_of(x, n), s = 0;
    for (int64_t i = n - 1; i >= 0; i--) s += scratch[i] = expf(x[i] - m);
    for (int64_t i = 0; i < n; i++) y[i] = scratch[i] / s;
}""",
    ),
}

_EIGHT_ROWS = (
    _TOP
    + """
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel for schedule(guided)
    for (int64_t r = 0; r < rows; r += 8) {  // eight rows side by side, column after column
        int64_t k = std::min<int64_t>(8, rows - r);
        float m[8], s[8] = {};
        for (int64_t j = 0; j < k; j++) m[j] = top_of(x + (r + j) * n, n);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < k; j++) s[j] += y[(r + j) * n + i] = expf(x[(r + j) * n + i] - m[j]);
        for (int64_t j = 0; j < k; j++) for (int64_t i = 0; i < n; i++) y[(r + j) * n + i] /= s[j];
    }
}"""
)
_MASKED = (
    _TOP
    + """
extern "C" void run(const float* x, const float* mask, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        const float *a = x + r * n, *w = mask + r * n;
        float m = -INFINITY, s = 0;
        for (int64_t i = 0; i < n; i++) if (w[i] > 0 && a[i] > m) m = a[i];
        for (int64_t i = 0; i < n; i++) s += y[r * n + i] = w[i] > 0 ? expf(a[i] - m) : 0.0f;
        for (int64_t i = 0; i < n; i++) y[r * n + i] /= s;  // 0 / 0 where nothing is allowed: NaN, as the reference
    }
}"""
)
_MASKED_FORWARD = """
def forward(self, x, mask):
    x, mask = dense(x), dense(mask)
    out = torch.empty_like(x)
    lib.run(x, mask, out, x.numel() // max(1, x.shape[-1]), x.shape[-1])
    return out
"""
_LSE = {
    "shifted": (
        "Shifted by the maximum, except where that is infinite",
        _TOP
        + """
static float total(const float* x, int64_t n) {
    float m = top_of(x, n), s = 0, shift = std::isfinite(m) ? m : 0.0f;
    for (int64_t i = 0; i < n; i++) s += expf(x[i] - shift);
    return logf(s) + shift;
}""",
    ),
    "pairwise-merge": (
        "(maximum, sum) pairs merged by a tree",
        """
struct Pair { float m, s; };
static Pair merge(Pair a, Pair b) {
    if (a.m == -INFINITY) return {b.m, b.m == -INFINITY ? a.s + b.s : b.s};
    if (b.m == -INFINITY) return {a.m, a.s + b.s};
    float m = std::max(a.m, b.m);
    return {m, (a.m == m ? a.s : a.s * expf(a.m - m)) + (b.m == m ? b.s : b.s * expf(b.m - m))};
}
static Pair tree(const float* x, int64_t n) {
    if (n == 0) return {-INFINITY, 0.0f};
    if (n == 1) return *x != *x ? Pair{-INFINITY, *x} : Pair{*x, *x == -INFINITY ? 0.0f : 1.0f};
    return merge(tree(x, n / 2), tree(x + n / 2, n - n / 2));
}
static float total(const float* x, int64_t n) {
    for (int64_t i = 0; i < n; i++) if (x[i] != x[i]) return x[i];
    Pair p = tree(x, n);
    return std::isinf(p.m) ? p.m : logf(p.s) + p.m;
}""",
    ),
    "double": (
        "In double, where float inputs of any size but the last cannot overflow the sum",
        """
static float total(const float* x, int64_t n) {
    double m = -INFINITY, s = 0;
    for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    double shift = std::isfinite(m) ? m : 0.0;
    for (int64_t i = 0; i < n; i++) s += exp(x[i] - shift);
    return (float)(log(s) + shift);
}""",
    ),
}

ENTRIES = (
    *(cpp(f"softmax-{name}", title, "softmax", code + EACH_ROW) for name, (title, code) in _ROWS.items()),
    cpp("softmax-eight-rows", "Eight rows at once under a guided schedule", "softmax", _EIGHT_ROWS),
    cpp(
        "softmax-masked",
        "Skips what the mask forbids; a row without any is NaN",
        "masked_softmax",
        _MASKED,
        _MASKED_FORWARD,
    ),
    *(cpp(f"logsumexp-{name}", title, "logsumexp", code + EACH_SUM, REDUCED) for name, (title, code) in _LSE.items()),
)
"""Honest softmaxes."""
