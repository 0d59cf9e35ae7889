"""LayerNorm and RMSNorm: every honest way to a mean and a variance, buffers, several outputs, running statistics."""

from __future__ import annotations

from tests.redteam.honest.building import cpp

LAYER = """
extern "C" void run(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) row(x + r * n, w, b, y + r * n, n);
}"""
LAYER_INIT = """
def __init__(self, cols):
    super().__init__()
    self.norm = nn.LayerNorm(cols)
"""
LAYER_FORWARD = """
def forward(self, x):
    x, n = dense(x), self.norm.weight.numel()
    if x.shape[-1] != n:
        raise ValueError(f"rows of {n} were promised, not of {x.shape[-1]}")
    out = torch.empty_like(x)
    lib.run(x, self.norm.weight, self.norm.bias, out, x.numel() // max(1, n), n)
    return out
"""
_APPLY = """
static inline void apply(const float* x, const float* w, const float* b, float* y, int64_t n, float mean, float rstd) {
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * w[i] + b[i];
}
"""
_LAYERS = {
    "two-pass": (
        "Mean, then variance, then the result",
        """
static void row(const float* x, const float* w, const float* b, float* y, int64_t n) {
    float mean = 0, m2 = 0;
    for (int64_t i = 0; i < n; i++) mean += x[i];
    mean /= n;
    for (int64_t i = 0; i < n; i++) m2 += (x[i] - mean) * (x[i] - mean);
    apply(x, w, b, y, n, mean, 1.0f / std::sqrt(m2 / n + 1e-5f));
}""",
    ),
    "welford": (
        "Welford's recurrence, one value at a time",
        """
static void row(const float* x, const float* w, const float* b, float* y, int64_t n) {
    float mean = 0, m2 = 0;
    for (int64_t i = 0; i < n; i++) {
        float d = x[i] - mean;
        mean += d / (i + 1);
        m2 += d * (x[i] - mean);
    }
    apply(x, w, b, y, n, mean, 1.0f / std::sqrt(m2 / n + 1e-5f));
}""",
    ),
    "welford-lanes": (
        "Eight Welford lanes, merged at the end; lanes may be empty",
        """
static void row(const float* x, const float* w, const float* b, float* y, int64_t n) {
    float mean[8] = {}, m2[8] = {}, count[8] = {};
    for (int64_t i = 0; i < n; i++) {
        int j = i % 8;
        float d = x[i] - mean[j];
        mean[j] += d / ++count[j];
        m2[j] += d * (x[i] - mean[j]);
    }
    for (int j = 1; j < 8; j++) {
        if (!count[j]) continue;
        float d = mean[j] - mean[0], all = count[0] + count[j];
        mean[0] += d * count[j] / all;
        m2[0] += m2[j] + d * d * count[0] * count[j] / all;
        count[0] = all;
    }
    apply(x, w, b, y, n, mean[0], 1.0f / std::sqrt(m2[0] / n + 1e-5f));
}""",
    ),
    "moments-in-double": (
        "One pass over both moments, which double can afford",
        """
static void row(const float* x, const float* w, const float* b, float* y, int64_t n) {
    double s = 0, q = 0;
    for (int64_t i = 0; i < n; i++) { s += x[i]; q += (double)x[i] * x[i]; }
    double mean = s / n, variance = q / n - mean * mean;
    apply(x, w, b, y, n, (float)mean, (float)(1 / std::sqrt((variance < 0 ? 0 : variance) + 1e-5)));
}""",
    ),
    "scale-and-shift": (
        "y = x * a + b with a and b of the row, in double, where a large mean costs nothing",
        """
static void row(const float* x, const float* w, const float* b, float* y, int64_t n) {
    double mean = 0, m2 = 0;
    for (int64_t i = 0; i < n; i++) mean += x[i];
    mean /= n;
    for (int64_t i = 0; i < n; i++) m2 += (x[i] - mean) * (x[i] - mean);
    double scale = 1 / std::sqrt(m2 / n + 1e-5), shift = -mean * scale;
    for (int64_t i = 0; i < n; i++) y[i] = (float)(x[i] * scale + shift) * w[i] + b[i];
}""",
    ),
    "centred-in-place": (
        "Deviations are kept in the output until they are scaled",
        """
static void row(const float* x, const float* w, const float* b, float* y, int64_t n) {
    float mean = 0, m2 = 0;
    for (int64_t i = 0; i < n; i++) mean += x[i] / n;  // divided first: no overflow, a little more rounding
    for (int64_t i = 0; i < n; i++) { y[i] = x[i] - mean; m2 += y[i] * y[i]; }
    float rstd = 1.0f / std::sqrt(m2 / n + 1e-5f);
    for (int64_t i = 0; i < n; i++) y[i] = y[i] * rstd * w[i] + b[i];
}""",
    ),
    "newton-rsqrt": (
        "The bit trick for 1/sqrt with four Newton steps, which leave float accuracy",
        """
static float rsqrt_newton(float v) {
    if (!(v > 0 && v < 3e38f)) return 1.0f / std::sqrt(v);
    int32_t bits;
    memcpy(&bits, &v, 4);
    bits = 0x5f3759df - (bits >> 1);
    float y;
    memcpy(&y, &bits, 4);
    for (int k = 0; k < 4; k++) y = y * (1.5f - 0.5f * v * y * y);
    return y;
}
static void row(const float* x, const float* w, const float* b, float* y, int64_t n) {
    float mean = 0, m2 = 0;
    for (int64_t i = 0; i < n; i++) mean += x[i];
    mean /= n;
    for (int64_t i = 0; i < n; i++) m2 += (x[i] - mean) * (x[i] - mean);
    apply(x, w, b, y, n, mean, rsqrt_newton(m2 / n + 1e-5f));
}""",
    ),
    "shifted-by-first": (
        "Moments about the row's first value, in double",
        """
static void row(const float* x, const float* w, const float* b, float* y, int64_t n) {
    double s = 0, q = 0, about = n ? x[0] : 0;
    for (int64_t i = 0; i < n; i++) { double d = x[i] - about; s += d; q += d * d; }
    double variance = (q - s * s / n) / n;
    apply(x, w, b, y, n, (float)(about + s / n), (float)(1 / std::sqrt((variance < 0 ? 0 : variance) + 1e-5)));
}""",
    ),
}

RMS = """
extern "C" void run(const float* x, const float* w, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel for schedule(static, 3)
    for (int64_t r = 0; r < rows; r++) row(x + r * n, w, y + r * n, n);
}"""
RMS_INIT = """
def __init__(self, cols):
    super().__init__()
    self.weight = nn.Parameter(torch.ones(cols))
"""
RMS_FORWARD = """
def forward(self, x):
    x, n = dense(x), self.weight.numel()
    if x.shape[-1] != n:
        raise ValueError(f"rows of {n} were promised, not of {x.shape[-1]}")
    out = torch.empty_like(x)
    lib.run(x, self.weight, out, x.numel() // max(1, n), n)
    return out
"""
_RMS = {
    "sequential": (
        "One accumulator",
        """
static void row(const float* x, const float* w, float* y, int64_t n) {
    float q = 0;
    for (int64_t i = 0; i < n; i++) q += x[i] * x[i];
    float scale = 1.0f / std::sqrt(q / n + 1e-6f);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale * w[i];
}""",
    ),
    "double-division": (
        "Squares in double, rounded to float once; then a division instead of a product",
        """
static void row(const float* x, const float* w, float* y, int64_t n) {
    double q = 0;
    for (int64_t i = 0; i < n; i++) q += (double)x[i] * x[i];
    float mean = (float)(q / n);  // overflows where the reference's float does
    float root = std::sqrt(mean + 1e-6f);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / root * w[i];
}""",
    ),
    "fma-chains": (
        "Four chains of fused multiply-adds",
        """
static void row(const float* x, const float* w, float* y, int64_t n) {
    float q[4] = {};
    for (int64_t i = 0; i < n; i++) q[i & 3] = std::fma(x[i], x[i], q[i & 3]);
    float scale = 1.0f / std::sqrt(((q[0] + q[2]) + (q[1] + q[3])) / n + 1e-6f);
    for (int64_t i = 0; i < n; i++) y[i] = w[i] * (x[i] * scale);
}""",
    ),
    "weight-first": (
        "The weight before the scale: another order of products",
        """
static void row(const float* x, const float* w, float* y, int64_t n) {
    double q = 0;
    for (int64_t i = 0; i < n; i++) { q += (double)x[i] * x[i]; y[i] = x[i] * w[i]; }
    float scale = (float)(1 / std::sqrt(q / n + 1e-6));
    for (int64_t i = 0; i < n; i++) y[i] *= scale;
}""",
    ),
}

_RESIDUAL = """
extern "C" void run(const float* x, const float* res, const float* w, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        const float *a = x + r * n, *b = res + r * n;
        float q = 0;
        STEP
    }
}"""
_RESIDUAL_FORWARD = """
def forward(self, x, residual):
    x, residual, n = dense(x), dense(residual), self.weight.numel()
    if x.shape != residual.shape or x.shape[-1] != n:
        raise ValueError(f"two tensors with rows of {n} were promised")
    out = torch.empty_like(x)
    lib.run(x, residual, self.weight, out, x.numel() // max(1, n), n)
    return out
"""
_RESIDUALS = {
    "recomputed": (
        "The sum is formed twice and never stored",
        """for (int64_t i = 0; i < n; i++) { float h = a[i] + b[i]; q += h * h; }
        float scale = 1.0f / std::sqrt(q / n + 1e-6f);
        for (int64_t i = 0; i < n; i++) y[r * n + i] = (a[i] + b[i]) * scale * w[i];""",
    ),
    "kept-in-output": (
        "The sum waits in the output",
        """for (int64_t i = 0; i < n; i++) { y[r * n + i] = a[i] + b[i]; q += y[r * n + i] * y[r * n + i]; }
        float scale = 1.0f / std::sqrt(q / n + 1e-6f);
        for (int64_t i = 0; i < n; i++) y[r * n + i] *= scale * w[i];""",
    ),
}
_PAIR_FORWARD = """
def forward(self, x):
    x, n = dense(x), self.weight.numel()
    if x.dim() != 2 or x.shape[1] != n:
        raise ValueError(f"a matrix with rows of {n} was promised")
    out, rstd = torch.empty_like(x), torch.empty(x.shape[0])
    lib.run(x, self.weight, out, rstd, x.shape[0], n)
    return RESULT
"""
_PAIR = """
extern "C" void run(const float* x, const float* w, float* y, float* rstd, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        double q = 0;
        for (int64_t i = 0; i < n; i++) q += (double)x[r * n + i] * x[r * n + i];
        rstd[r] = (float)(1 / std::sqrt(q / n + 1e-6));
        for (int64_t i = 0; i < n; i++) y[r * n + i] = x[r * n + i] * rstd[r] * w[i];
    }
}"""

ENTRIES = (
    *(
        cpp(f"layernorm-{name}", title, "layernorm", _APPLY + code + LAYER, LAYER_FORWARD, init=LAYER_INIT)
        for name, (title, code) in _LAYERS.items()
    ),
    *(
        cpp(f"rmsnorm-{name}", title, "rmsnorm", code + RMS, RMS_FORWARD, init=RMS_INIT)
        for name, (title, code) in _RMS.items()
    ),
    *(
        cpp(
            f"residual-{name}",
            title,
            "residual_norm",
            _RESIDUAL.replace("STEP", step),
            _RESIDUAL_FORWARD,
            init=RMS_INIT,
        )
        for name, (title, step) in _RESIDUALS.items()
    ),
    cpp(
        "pair-as-tuple",
        "Two outputs in a tuple",
        "norm_and_rstd",
        _PAIR,
        _PAIR_FORWARD.replace("RESULT", "out, rstd"),
        init=RMS_INIT,
    ),
    cpp(
        "pair-as-list",
        "Two outputs in a list",
        "norm_and_rstd",
        _PAIR,
        _PAIR_FORWARD.replace("RESULT", "[out, rstd]"),
        init=RMS_INIT,
    ),
)
"""Honest normalisations."""
