"""Pointwise kernels: polynomials, tables and identities with their special values right; strides, rounding."""

from __future__ import annotations

from tests.redteam.honest.building import cpp
from tests.redteam.honest.softmaxes import POLYNOMIAL

FLAT = """
def forward(self, x):
    x = dense(x)
    out = torch.empty_like(x)
    lib.run(x, out, x.numel())
    return out
"""
_FLAT_HEAD = """
extern "C" void run(const float* x, float* y, int64_t n) {
    #pragma omp parallel for
    for (int64_t i = 0; i < n; i++) y[i] = one(x[i]);
}"""
_FUNCTIONS = {
    "gelu-erfc": ("gelu", "GELU through erfc, which is sharper in the left tail than the reference",
                  "static inline float one(float v) { return 0.5f * v * erfcf(-v * 0.70710678f); }"),
    "gelu-double": ("gelu", "GELU in double",
                    "static inline float one(float v) { return 0.5 * v * (1 + erf(v * 0.7071067811865476)); }"),
    "gelu-table": (
        "gelu", "The normal distribution from a table of 4,097 cubics, made at load time from erfc",
        """
struct Table {
    double at[4097], slope[4097];
    Table() { for (int i = 0; i < 4097; i++) { double t = -8 + i / 256.0; at[i] = 0.5 * erfc(-t * 0.7071067811865476);
                                               slope[i] = 0.3989422804014327 * exp(-t * t / 2) / 256; } }
};
static const Table table;
static inline float one(float v) {
    if (!(v > -7.99f)) return 0.5f * v * erfcf(-v * 0.70710678f);
    if (!(v < 7.99f)) return v;
    double t = (v + 8.0) * 256; int i = (int)t; double f = t - i;
    double p = table.at[i], q = table.at[i + 1], d = table.slope[i], e = table.slope[i + 1];
    return (float)(v * (p + f * (d + f * (3 * (q - p) - 2 * d - e + f * (2 * (p - q) + d + e)))));
}"""),
    "tanh-expm1": ("tanh", "tanh through expm1, saturated before it can overflow",
                   """static inline float one(float v) {
    float a = std::fabs(v);
    if (!(a < 20.0f)) return a != a ? v : std::copysign(1.0f, v);
    float e = expm1f(2 * a);
    return std::copysign(e / (e + 2), v);
}"""),
    "tanh-series": ("tanh", "A series near zero, exponentials elsewhere",
                    """static inline float one(float v) {
    double a = std::fabs((double)v);
    if (a < 0.02) { double q = a * a; return (float)(v * (1 - q / 3 + 2 * q * q / 15 - 17 * q * q * q / 315)); }
    double r = 1 - 2 / (exp(2 * a) + 1);
    return v != v ? v : (float)std::copysign(r, v);
}"""),
    "softcap-rational": ("softcap", "30 tanh(x / 30) by way of a reciprocal",
                         """static inline float one(float v) {
    double e = exp(-std::fabs((double)v) / 15);
    return v != v ? v : (float)std::copysign(30 * (1 - e) / (1 + e), v);
}"""),
    "log1p-double": ("log1p", "log in double instead of log1p in float",
                     "static inline float one(float v) { return std::fabs(v) < 1e-8f ? v : (float)log1p((double)v); }"),
    "log1p-corrected": ("log1p", "Kahan's log(1 + x): log(u) x / (u - 1)",
                        """static inline float one(float v) {
    double u = 1.0 + v, d = u - 1.0;
    if (d == 0.0 || std::isinf(u)) return d == 0.0 ? v : (float)log(u);
    return (float)(log(u) * (v / d));
}"""),
    "round-magic": ("round_half", "Rounds to even by adding and taking away 1.5 * 2^23",
                    """static inline float one(float v) {
    float h = v / 2, a = std::fabs(h);
    if (!(a < 4194304.0f)) return std::nearbyintf(h) * 2;
    volatile float t = h + 12582912.0f;
    return std::copysign((t - 12582912.0f) * 2, v);
}"""),
    "relu-bits": ("relu", "ReLU by the sign bit; a negative NaN stays NaN",
                  """static inline float one(float v) {
    int32_t b; memcpy(&b, &v, 4);
    b &= v != v ? -1 : ~(b >> 31);
    memcpy(&v, &b, 4);
    return v;
}"""),
}  # fmt: skip
_BUCKET = """
extern "C" void run(const float* x, int64_t* y, int64_t n) {
    #pragma omp parallel for
    for (int64_t i = 0; i < n; i++) {
        float f = std::floor(x[i] * 4) + 8;
        y[i] = f != f ? INT64_MIN : f <= 0 ? 0 : f >= 15 ? 15 : (int64_t)f;
    }
}"""
_BUCKET_FORWARD = """
def forward(self, x):
    x = dense(x)
    out = torch.empty(x.shape, dtype=torch.int64)
    lib.run(x, out, x.numel())
    return out
"""
_STRIDED = """
extern "C" void run(const float* x, const float* y, float* out, int64_t rows, int64_t cols, int64_t xr,
    int64_t xc, int64_t yr,
                    int64_t yc) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) out[r * cols + c] = x[r * xr + c * xc] + y[r * yr + c * yc];
}"""
_STRIDED_FORWARD = """
def forward(self, x, y):
    if x.dim() != 2 or x.shape != y.shape or x.dtype != torch.float32 or y.dtype != torch.float32:
        raise ValueError("two float32 matrices of one shape are needed")
    out = torch.empty(x.shape)
    lib.run(x, y, out, *x.shape, *x.stride(), *y.stride())  # any strides, nothing is copied
    return out
"""
_TRANSPOSED_OUT = """
extern "C" void run(const float* x, const float* yt, float* outt, int64_t rows, int64_t cols) {
    for (int64_t c = 0; c < cols; c++)
        for (int64_t r = 0; r < rows; r++) outt[c * rows + r] = x[r * cols + c] + yt[c * rows + r];
}"""
_TRANSPOSED_FORWARD = """
def forward(self, x, y):
    x, turned = dense(x), dense(y.t())
    out = torch.empty_strided(x.shape, (1, x.shape[0]))  # column by column, as y lies in memory
    lib.run(x, turned, out, *x.shape)
    return out.contiguous()
"""
SWIGLU_FORWARD = """
def forward(self, a, b):
    a, b = dense(a), dense(b)
    if a.shape != b.shape:
        raise ValueError("two tensors of one shape are needed")
    out = torch.empty_like(a)
    lib.run(a, b, out, a.numel())
    return out
"""
_SWIGLU = """
extern "C" void run(const float* a, const float* b, float* y, int64_t n) {
    #pragma omp parallel for
    for (int64_t i = 0; i < n; i++) y[i] = ONE;
}"""
_SWIGLU_VECTOR = (
    POLYNOMIAL
    + """
extern "C" void run(const float* a, const float* b, float* y, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) {
        V u{}, v{};
        int64_t k = std::min<int64_t>(8, n - i);
        memcpy(&u, a + i, k * 4);
        memcpy(&v, b + i, k * 4);
        V r = u / (1.0f + vexp(-u)) * v;
        memcpy(y + i, &r, k * 4);
    }
}"""
)
_SWIGLU_SLEEF = """
#ifdef __AVX2__
#include <immintrin.h>
#include <torch/headeronly/macros/Macros.h>  // any header of torch: then torch is linked, which has Sleef
extern "C" __m256 Sleef_expf8_u10(__m256);
#endif
static inline float one(float a, float b) { return a / (1.0f + expf(-a)) * b; }
extern "C" void run(const float* a, const float* b, float* y, int64_t n) {
    const int64_t vectors = n / 8 * 8;
    #pragma omp parallel for
    for (int64_t i = 0; i < vectors; i += 8) {
#ifdef __AVX2__
        __m256 u = _mm256_loadu_ps(a + i), v = _mm256_loadu_ps(b + i), zero = _mm256_setzero_ps();
        __m256 below = _mm256_add_ps(_mm256_set1_ps(1.0f), Sleef_expf8_u10(_mm256_sub_ps(zero, u)));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_div_ps(u, below), v));
#else
        for (int64_t j = i; j < i + 8; j++) y[j] = one(a[j], b[j]);
#endif
    }
    for (int64_t i = vectors; i < n; i++) y[i] = one(a[i], b[i]);
}"""
_GATE_FORWARD = SWIGLU_FORWARD.replace("self, a, b", "self, b, a")
BIAS_INIT = """
def __init__(self, cols):
    super().__init__()
    self.bias = nn.Parameter(torch.zeros(cols))
"""
_GELU_INIT = """
def __init__(self, hidden, dtype="float32"):
    super().__init__()
    self.bias = nn.Parameter(torch.zeros(hidden, dtype=getattr(torch, dtype)))
    self.scale = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
"""
_GELU_FORWARD = """
def forward(self, x, residual):
    x, residual, n = dense(x), dense(residual), self.bias.numel()
    if x.shape != residual.shape or x.shape[-1] != n:
        raise ValueError(f"two tensors with rows of {n} are needed")
    out = torch.empty_like(x)
    lib.run(x, residual, self.bias, self.scale, out, x.numel() // max(1, n), n)
    return out
"""
_GELU_ROWS = """
extern "C" void run(const float* x, const float* res, const float* b, const float* s, float* y, int64_t rows,
    int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        #pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float v = x[r * n + i] + b[i];
            y[r * n + i] = 0.5f * v * erfcf(-v * 0.70710678f) * s[i] + res[r * n + i];
        }
    }
}"""
_GELU_COLUMNS = """
extern "C" void run(const float* x, const float* res, const float* b, const float* s, float* y, int64_t rows,
    int64_t n) {
    for (int64_t i0 = 0; i0 < n; i0 += 24)  // strips of columns, so that bias and scale stay in registers
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = i0; i < std::min(n, i0 + 24); i++) {
                float v = x[r * n + i] + b[i], phi = 0.5f * (1.0f + erff(v * 0.70710678f));
                y[r * n + i] = std::fma(v * phi, s[i], res[r * n + i]);
            }
}"""

ENTRIES = (
    *(cpp(name, title, problem, code + _FLAT_HEAD, FLAT) for name, (problem, title, code) in _FUNCTIONS.items()),
    cpp("bucket-int64", "Integer outputs", "int_bucket", _BUCKET, _BUCKET_FORWARD),
    cpp("add-any-strides", "Reads both operands through their strides", "transposed_add", _STRIDED, _STRIDED_FORWARD),
    cpp(
        "add-column-major",
        "Works column by column, then makes the result contiguous",
        "transposed_add",
        _TRANSPOSED_OUT,
        _TRANSPOSED_FORWARD,
        share=0.3,  # torch's transposing copy moves as many bytes
    ),
    cpp(
        "swiglu-sigmoid",
        "a / (1 + exp(-a)) * b",
        "swiglu",
        _SWIGLU.replace("ONE", "a[i] / (1.0f + expf(-a[i])) * b[i]"),
        SWIGLU_FORWARD,
    ),
    cpp(
        "swiglu-tanh",
        "The sigmoid by tanh, in double",
        "swiglu",
        _SWIGLU.replace("ONE", "(float)(0.5 * a[i] * (1 + tanh(0.5 * a[i])) * b[i])"),
        SWIGLU_FORWARD,
    ),
    cpp(
        "swiglu-vector",
        "A polynomial exp in vectors of eight and a padded tail",
        "swiglu",
        _SWIGLU_VECTOR,
        SWIGLU_FORWARD,
    ),
    cpp(
        "large-gate",
        "Results of 16 MB: what allocating and freeing them takes is nobody's work",
        "large_gate",
        _SWIGLU.replace("ONE", "a[i] / (1.0f + expf(-a[i])) * b[i]"),
        _GATE_FORWARD,
    ),
    cpp(
        "large-gate-sleef",
        "Calls the vector exponential that torch has inside",
        "large_gate",
        _SWIGLU_SLEEF,
        _GATE_FORWARD,
    ),
    cpp("bias-gelu-rows", "Row by row, erfc", "small_bias_gelu", _GELU_ROWS, _GELU_FORWARD, init=_GELU_INIT),
    cpp(
        "bias-gelu-strips",
        "Strips of columns, a fused multiply-add at the end",
        "small_bias_gelu",
        _GELU_COLUMNS,
        _GELU_FORWARD,
        init=_GELU_INIT,
    ),
)
"""Honest pointwise kernels."""
