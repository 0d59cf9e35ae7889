"""Unusual contracts: buffers, several outputs, mixed types, double, in place, strides, plain numbers."""

from __future__ import annotations

from tests.redteam.honest.building import EACH_ROW, cpp

_MASKED = """
extern "C" void run(const float* x, const bool* keep, const int32_t* weight, float* y, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        double s = 0;
        int64_t c = 0;
        for (int64_t i = 0; i < n; i++) if (keep[r * n + i]) { s += x[r * n + i]; c++; }
        y[r] = (float)(s / std::max<int64_t>(c, 1)) * weight[r];
    }
}"""
_MASKED_FORWARD = """
def forward(self, x, keep, weight):
    x, keep, weight = dense(x), dense(keep, torch.bool), dense(weight, torch.int32)
    if x.shape != keep.shape or weight.shape != x.shape[:-1]:
        raise ValueError("one mask value for each number and one weight for each row are needed")
    out = torch.empty(x.shape[:-1])
    lib.run(x, keep, weight, out, out.numel(), x.shape[-1])
    return out
"""
_BATCHNORM = """
extern "C" void run(const float* x, const float* w, const float* b, const float* mean, const float* var, float* y,
                    int64_t batch, int64_t channels, int64_t size) {
    #pragma omp parallel for collapse(2)
    for (int64_t z = 0; z < batch; z++)
        for (int64_t c = 0; c < channels; c++) {
            float scale = w[c] / std::sqrt(var[c] + 1e-5f);  // from the buffers of this very call
            for (int64_t i = 0, at = (z * channels + c) * size; i < size;
                i++) y[at + i] = (x[at + i] - mean[c]) * scale + b[c];
        }
}"""
_BATCHNORM_INIT = """
def __init__(self, channels):
    super().__init__()
    self.norm = nn.BatchNorm2d(channels)
    self.eval()
"""
_BATCHNORM_FORWARD = """
def forward(self, x):
    x, norm = dense(x), self.norm
    if x.dim() != 4 or x.shape[1] != norm.num_features:
        raise ValueError(f"images with {norm.num_features} channels are needed")
    out = torch.empty_like(x)
    lib.run(x, norm.weight, norm.bias, norm.running_mean, norm.running_var, out, *x.shape[:2], x.shape[2] * x.shape[3])
    return out
"""
_GROUPNORM = """
extern "C" void run(const float* x, const float* w, const float* b, float* y, int64_t groups_in_all, int64_t groups,
                    int64_t channels, int64_t size) {
    #pragma omp parallel for
    for (int64_t g = 0; g < groups_in_all; g++) {
        const float* a = x + g * channels * size;
        float mean = 0, m2 = 0;
        for (int64_t i = 0; i < channels * size; i++) { float d = a[i] - mean; mean += d / (i + 1);
            m2 += d * (a[i] - mean); }
        float rstd = 1 / std::sqrt(m2 / (channels * size) + 1e-5f);
        for (int64_t c = 0; c < channels; c++) {
            int64_t at = (g % groups) * channels + c;
            for (int64_t i = c * size; i < (c + 1) * size;
                i++) y[g * channels * size + i] = (a[i] - mean) * rstd * w[at] + b[at];
        }
    }
}"""
_GROUPNORM_INIT = """
def __init__(self, groups):
    super().__init__()
    self.norm = nn.GroupNorm(groups, groups * 4)
"""
_GROUPNORM_FORWARD = """
def forward(self, x):
    x, norm = dense(x), self.norm
    if x.dim() != 4 or x.shape[1] != norm.num_channels:
        raise ValueError(f"images with {norm.num_channels} channels are needed")
    out, groups = torch.empty_like(x), norm.num_groups
    lib.run(x, norm.weight, norm.bias, out, x.shape[0] * groups, groups, x.shape[1] // groups, x.shape[2] * x.shape[3])
    return out
"""
_DEQUANT = """
extern "C" void run(const float* x, const int8_t* w, const float* scale, float* y, int64_t m, int64_t n, int64_t k) {
    #pragma omp parallel for collapse(2)
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float s = 0;
            for (int64_t p = 0; p < k; p++) s += x[i * k + p] * w[j * k + p];  // the scale comes last, once
            y[i * n + j] = s * scale[j];
        }
}"""
_DEQUANT_INIT = """
def __init__(self, cols):
    super().__init__()
    self.register_buffer("packed", torch.zeros(48, cols, dtype=torch.int8))
    self.scale = nn.Parameter(torch.full((48,), 0.01))
"""
_DEQUANT_FORWARD = """
def forward(self, x):
    x = dense(x)
    if x.shape[-1] != self.packed.shape[1]:
        raise ValueError(f"rows of {self.packed.shape[1]} are needed")
    out = torch.empty(*x.shape[:-1], 48)
    lib.run(x, self.packed, self.scale, out, x.numel() // max(1, x.shape[-1]), 48, x.shape[-1])
    return out
"""
_COLUMNS = """
extern "C" void run(const float* x, float* mean, float* var, int64_t rows, int64_t cols, int64_t down, int64_t right) {
    #pragma omp parallel for
    for (int64_t c = 0; c < cols; c++) {
        const float* a = x + c * right;
        double s = 0, q = 0;
        for (int64_t r = 0; r < rows; r++) s += a[r * down];
        s /= rows;
        for (int64_t r = 0; r < rows; r++) q += (a[r * down] - s) * (a[r * down] - s);
        mean[c] = (float)s;
        var[c] = (float)(q / (rows - 1));
    }
}"""
_COLUMNS_FORWARD = """
def forward(self, x):
    if x.dim() != 2 or x.dtype != torch.float32:
        raise ValueError("a float32 matrix is needed")
    mean, var = torch.empty(x.shape[1]), torch.empty(x.shape[1])
    lib.run(x, mean, var, *x.shape, *x.stride())  # as it lies
    return [mean, var]
"""
_INPLACE = """
extern "C" void run(float* x, const float* y, int64_t n) { for (int64_t i = 0; i < n; i++) x[i] += y[i]; }"""
_INPLACE_FORWARD = """
def forward(self, x, y):
    if not x.is_contiguous() or x.shape != y.shape or x.dtype != y.dtype or x.dtype != torch.float32:
        raise ValueError("two dense float32 tensors of one shape are needed")
    lib.run(x, y.contiguous(), x.numel())
    return x
"""
_ROPE = """
extern "C" void run(const float* q, const float* cos, const float* sin, float* y, int64_t heads,
    int64_t length, int64_t half) {
    for (int64_t h = 0; h < heads * length; h++)
        for (int64_t i = 0; i < half; i++) {
            float a = q[h * 2 * half + i], b = q[h * 2 * half + half + i];
            float c = cos[h % length * half + i], s = sin[h % length * half + i];
            y[h * 2 * half + i] = a * c - b * s;
            y[h * 2 * half + half + i] = a * s + b * c;
        }
}"""
_ROPE_FORWARD = """
def forward(self, q, cos, sin):
    q, cos, sin = dense(q), dense(cos), dense(sin)
    if q.dim() != 3 or cos.shape != sin.shape or cos.shape != (q.shape[1], q.shape[2] // 2) or q.shape[2] % 2:
        raise ValueError("angles for each position and half of an even dimension are needed")
    out = torch.empty_like(q)
    lib.run(q, cos, sin, out, *q.shape[:2], q.shape[2] // 2)
    return out
"""
_DOUBLE = """
extern "C" void run(const double* x, double* y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = ONE; }"""
_DOUBLE_FORWARD = """
def forward(self, x):
    x = dense(x, torch.float64)
    out = torch.empty_like(x)
    lib.run(x, out, x.numel())
    return out
"""
_SCALED = """
extern "C" void run(const float* x, const float* y, float* out, int64_t rows, int64_t n, double alpha, int64_t shift) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            out[r * n + i] = x[r * n + i] + (float)alpha * y[r * n + ((i - shift) % n + n) % n];
}"""
_SCALED_FORWARD = """
def forward(self, x, y, alpha, shift):
    x, y = dense(x), dense(y)
    if x.shape != y.shape:
        raise ValueError("two tensors of one shape are needed")
    out = torch.empty_like(x)
    lib.run(x, y, out, x.numel() // max(1, x.shape[-1]), x.shape[-1], float(alpha), int(shift))
    return out
"""
_SOFTMAX = """
static void row(const float* x, float* y, int64_t n) {
    float m = -INFINITY, s = 0;
    for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    for (int64_t i = 0; i < n; i++) s += y[i] = expf(x[i] - m);
    for (int64_t i = 0; i < n; i++) y[i] /= s;
}"""

ENTRIES = (
    cpp("masked-mean", "Float, bool and int32 inputs", "masked_mean", _MASKED, _MASKED_FORWARD),
    cpp(
        "batchnorm-buffers",
        "Running statistics are read from their buffers in every call",
        "batchnorm_eval",
        _BATCHNORM,
        _BATCHNORM_FORWARD,
        init=_BATCHNORM_INIT,
    ),
    cpp("groupnorm-welford", "Welford over a group", "groupnorm", _GROUPNORM, _GROUPNORM_FORWARD, init=_GROUPNORM_INIT),
    cpp(
        "int8-scale-last",
        "int8 weights, the scale after the sum",
        "dequantised_linear",
        _DEQUANT,
        _DEQUANT_FORWARD,
        init=_DEQUANT_INIT,
    ),
    cpp(
        "columns-by-stride",
        "Column statistics of a transposed view as it lies",
        "column_statistics",
        _COLUMNS,
        _COLUMNS_FORWARD,
    ),
    cpp("inplace-add", "Writes into its argument, as the reference does", "inplace_add", _INPLACE, _INPLACE_FORWARD),
    cpp("rope-halves", "Both halves of a query at once", "rope", _ROPE, _ROPE_FORWARD),
    cpp("double-tanh", "float64 in and out", "double_tanh", _DOUBLE.replace("ONE", "std::tanh(x[i])"), _DOUBLE_FORWARD),
    cpp(
        "double-tanh-expm1",
        "float64 through expm1",
        "double_tanh",
        _DOUBLE.replace(
            "ONE",
            "std::fabs(x[i]) < 22 ? std::expm1(2 * x[i]) / (std::expm1(2 * x[i]) + 2) "
            ": x[i] != x[i] ? x[i] : std::copysign(1.0, x[i])",
        ),
        _DOUBLE_FORWARD,
    ),
    cpp("plain-numbers", "A float and an int among the arguments", "scaled_add", _SCALED, _SCALED_FORWARD),
    cpp("one-column", "Rows of one value, and one row of many", "column_softmax", _SOFTMAX + EACH_ROW),
)
"""Honest candidates with unusual contracts."""
