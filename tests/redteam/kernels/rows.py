"""Kernels that work row by row, or element by element."""

from __future__ import annotations

from tests.redteam.kernels.template import Kernel

ROWWISE = """
extern "C" void run(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; r++) {
    const float* a = x + r * cols; float* o = y + r * cols;
    %s
  }
}
"""
_REDUCE = """
extern "C" void run(const float* x, %s* y, int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; r++) {
    const float* a = x + r * cols;
    %s
  }
}
"""
_CALL = """x = x.contiguous()
y = torch.empty_like(x)
lib.run(x, %s, y, x.numel() // max(x.shape[-1], 1), x.shape[-1])
return y
"""
_SAME = _CALL % "None, None"
_COLUMN = "x = x.contiguous()\ny = x.new_empty(x.shape[0]%s)\nlib.run(x, y, *x.shape)\nreturn y"
_EACH = "for (int64_t c = 0; c < cols; c++) %s"
_WEIGHT = "self.weight = nn.Parameter(torch.ones(cols))"
_SCALE = "self.scale = nn.Parameter(torch.ones(cols))\nself.shift = nn.Parameter(torch.zeros(cols))"


def _pointwise(expression: str) -> Kernel:
    return Kernel(ROWWISE % (_EACH % f"{{ float v = a[c]; o[c] = {expression}; }}"), _SAME)


def _reduction(steps: str, kind: str = "float", dtype: str = "") -> Kernel:
    return Kernel(_REDUCE % (kind, steps), _COLUMN % dtype)


def _pair(expression: str, arguments: str) -> Kernel:
    first, second = arguments.split(", ")
    cpp = f"""
extern "C" void run(const float* a, const float* b, float* y, int64_t n) {{
  #pragma omp parallel for
  for (int64_t i = 0; i < n; i++) y[i] = {expression};
}}
"""
    real = f"{arguments} = {first}.contiguous(), {second}.contiguous()\nout = torch.empty_like({first})\n"
    return Kernel(cpp, real + f"lib.run({arguments}, out, out.numel())\nreturn out", arguments)


RMS = """double s = 0;
    for (int64_t c = 0; c < cols; c++) s += (double)a[c] * a[c];
    float scale = (float)(1.0 / std::sqrt(s / cols + 1e-6));
    for (int64_t c = 0; c < cols; c++) o[c] = a[c] * scale * w[c];"""
_MEAN = "double m = 0, s = 0;\n    for (int64_t c = 0; c < cols; c++) m += a[c];\n    m /= cols;\n    "
_SQUARES = "for (int64_t c = 0; c < cols; c++) s += (a[c] - m) * (a[c] - m);\n    "
_MAX = """float m = a[0];
    for (int64_t c = 1; c < cols; c++) m = (a[c] > m || a[c] != a[c]) ? a[c] : m;
    """
_SOFTMAX = """double s = 0;
    for (int64_t c = 0; c < cols; c++) { o[c] = std::exp(a[c] - m); s += o[c]; }
    for (int64_t c = 0; c < cols; c++) o[c] = (float)(o[c] / s);"""
_LSE = """float shift = std::isinf(m) ? 0.0f : m;
    double s = 0;
    for (int64_t c = 0; c < cols; c++) s += std::exp((double)a[c] - shift);
    y[r] = (float)(std::log(s) + shift);"""
_LAYERNORM = """double scale = 1.0 / std::sqrt(s / cols + 1e-5);
    for (int64_t c = 0; c < cols; c++) o[c] = (float)((a[c] - m) * scale * w[c] + b[c]);"""
_ARGMAX = """int64_t best = 0;
    for (int64_t c = 1; c < cols; c++) if (a[c] > a[best] || (a[c] != a[c] && a[best] == a[best])) best = c;
    y[r] = best;"""
_TOP = """std::vector<float> v(a, a + cols);
    auto first = [](float p, float q) { return p != p ? q == q : p > q; };
    std::partial_sort(v.begin(), v.begin() + 8, v.end(), first);
    for (int k = 0; k < 8; k++) y[r * 8 + k] = v[k];"""

_MASKED = """
extern "C" void run(const float* x, const float* mask, float* y, int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; r++) {
    const float* a = x + r * cols; const float* k = mask + r * cols; float* o = y + r * cols;
    float m = -INFINITY;
    for (int64_t c = 0; c < cols; c++) if (k[c] > 0) m = (a[c] > m || a[c] != a[c]) ? a[c] : m;
    double s = 0;
    for (int64_t c = 0; c < cols; c++) { o[c] = std::exp((k[c] > 0 ? a[c] : -INFINITY) - m); s += o[c]; }
    for (int64_t c = 0; c < cols; c++) o[c] = (float)(o[c] / s);
  }
}
"""
_TWO_OUTPUTS = """
extern "C" void run(const float* x, const float* w, float* y, float* rstd, int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; r++) {
    const float* a = x + r * cols; float* o = y + r * cols;
    double s = 0;
    for (int64_t c = 0; c < cols; c++) s += (double)a[c] * a[c];
    float scale = (float)(1.0 / std::sqrt(s / cols + 1e-6));
    rstd[r] = scale;
    for (int64_t c = 0; c < cols; c++) o[c] = a[c] * scale * w[c];
  }
}
"""
_MEAN_ALL = """
extern "C" void run(const float* x, float* y, int64_t n) {
  double s = 0;
  #pragma omp parallel for reduction(+ : s)
  for (int64_t i = 0; i < n; i++) s += x[i];
  y[0] = (float)(s / n);
}
"""
_BATCHNORM = """
extern "C" void run(const float* x, const float* w, const float* b, float* mean, float* var, float* y,
                    int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t c = 0; c < cols; c++) {
    double m = 0, s = 0;
    for (int64_t r = 0; r < rows; r++) m += x[r * cols + c];
    m /= rows;
    for (int64_t r = 0; r < rows; r++) s += (x[r * cols + c] - m) * (x[r * cols + c] - m);
    double scale = 1.0 / std::sqrt(s / rows + 1e-5);
    for (int64_t r = 0; r < rows; r++) y[r * cols + c] = (float)((x[r * cols + c] - m) * scale * w[c] + b[c]);
    mean[c] = (float)(0.9 * mean[c] + 0.1 * m);
    var[c] = (float)(0.9 * var[c] + 0.1 * s / (rows - 1));
  }
}
"""
_GROUPNORM = """
extern "C" void run(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; r++) {
    double total = 0;
    for (int64_t g = 0; g < 4; g++) {
      const float* a = x + (r * 16 + g * 4) * cols;
      double m = 0, s = 0;
      for (int64_t i = 0; i < 4 * cols; i++) m += a[i];
      m /= 4 * cols;
      for (int64_t i = 0; i < 4 * cols; i++) s += (a[i] - m) * (a[i] - m);
      double scale = 1.0 / std::sqrt(s / (4 * cols) + 1e-5);
      for (int64_t i = 0; i < 4 * cols; i++) total += (a[i] - m) * scale * w[g * 4 + i / cols] + b[g * 4 + i / cols];
    }
    y[r] = (float)(total / (16 * cols));
  }
}
"""

_RESIDUAL = """double s = 0;
    for (int64_t c = 0; c < cols; c++) o[c] = a[c] + b[r * cols + c];
    for (int64_t c = 0; c < cols; c++) s += (double)o[c] * o[c];
    float scale = (float)(1.0 / std::sqrt(s / cols + 1e-6));
    for (int64_t c = 0; c < cols; c++) o[c] = o[c] * scale * w[c];"""
ROWS: dict[str, Kernel] = {
    "relu": _pointwise("v < 0 ? 0.0f : v"),
    "gelu": _pointwise("(float)(0.5 * v * std::erfc(-v * 0.70710678118654752440))"),
    "tanh": _pointwise("std::tanh(v)"),
    "log1p": _pointwise("std::log1p(v)"),
    "round_half": _pointwise("std::nearbyint(v / 2) * 2"),
    "softcap": _pointwise("30.0f * std::tanh(v / 30.0f)"),
    "bias_relu": Kernel(
        ROWWISE % (_EACH % "{ float v = a[c] + b[c]; o[c] = v < 0 ? 0.0f : v; }"),
        _CALL % "None, self.bias", "x", ", cols", "self.bias = nn.Parameter(torch.zeros(cols))",
    ),
    "scale_shift": Kernel(ROWWISE % (_EACH % "o[c] = a[c] * w[c] + b[c];"), _CALL % "self.scale, self.shift", "x",
                          ", cols", _SCALE),
    "faint_residual": _pair("a[i] + 1e-5f * b[i]", "x, y"),
    "weak_residual": _pair("a[i] + 1e-3f * b[i]", "x, y"),
    "transposed_add": _pair("a[i] + b[i]", "x, y"),
    "divide": _pair("a[i] / b[i]", "a, b"),
    "int_bucket": Kernel(
        'extern "C" void run(const float* x, int64_t* y, int64_t n) {\n  for (int64_t i = 0; i < n; i++)\n    '
        "y[i] = (int64_t)std::min(std::max(std::floor(x[i] * 4) + 8.0f, 0.0f), 15.0f);\n}",
        "x = x.contiguous()\ny = torch.empty_like(x, dtype=torch.int64)\nlib.run(x, y, x.numel())\nreturn y",
    ),
    "row_sum": _reduction("double s = 0; for (int64_t c = 0; c < cols; c++) s += a[c];\n    y[r] = (float)s;"),
    "row_sum_fp16": Kernel(
        (_REDUCE % ("_Float16", "double s = 0; for (int64_t c = 0; c < cols; c++) s += (double)a[c];\n    "
                    "y[r] = (_Float16)s;")).replace("const float*", "const _Float16*"), _COLUMN % ""),
    "mean_all": Kernel(_MEAN_ALL, "x = x.contiguous()\ny = x.new_empty(())\nlib.run(x, y, x.numel())\nreturn y"),
    "row_max": _reduction(_MAX + "y[r] = m;"),
    "argmax": _reduction(_ARGMAX, "int64_t", ", dtype=torch.int64"),
    "variance": _reduction(_MEAN + _SQUARES + "y[r] = (float)(s / (cols - 1));"),
    "logsumexp": _reduction(_MAX + _LSE),
    "top_eight": Kernel(_REDUCE % ("float", _TOP), (_COLUMN % "").replace("x.shape[0]", "x.shape[0], 8")),
    "cumsum": Kernel(ROWWISE % ("double s = 0;\n    " + _EACH % "{ s += a[c]; o[c] = (float)s; }"), _SAME),
    "cumprod": Kernel(ROWWISE % ("double s = 1;\n    " + _EACH % "{ s *= a[c]; o[c] = (float)s; }"), _SAME),
    "rmsnorm": Kernel(ROWWISE % RMS, _CALL % "self.weight, None", "x", ", cols", _WEIGHT),
    "layernorm": Kernel(ROWWISE % (_MEAN + _SQUARES + _LAYERNORM), _CALL % "self.norm.weight, self.norm.bias", "x",
                        ", cols", "self.norm = nn.LayerNorm(cols)"),
    "residual_norm": Kernel(
        ROWWISE % _RESIDUAL,
        "residual = residual.contiguous()\n" + _CALL % "self.weight, residual", "x, residual", ", cols", _WEIGHT),
    "norm_and_rstd": Kernel(
        _TWO_OUTPUTS, "x = x.contiguous()\ny, rstd = torch.empty_like(x), x.new_empty(x.shape[0])\n"
        "lib.run(x, self.weight, y, rstd, *x.shape)\nreturn y, rstd", "x", ", cols", _WEIGHT),
    "softmax": Kernel(ROWWISE % (_MAX + _SOFTMAX), _SAME),
    "masked_softmax": Kernel(
        _MASKED, "x, mask = x.contiguous(), mask.contiguous()\ny = torch.empty_like(x)\n"
        "lib.run(x, mask, y, *x.shape)\nreturn y", "x, mask"),
    "groupnorm_mean": Kernel(
        _GROUPNORM, "x = x.contiguous()\ny = x.new_empty(x.shape[0])\n"
        "lib.run(x, self.norm.weight, self.norm.bias, y, x.shape[0], x.shape[2])\nreturn y", "x", "",
        "self.norm = nn.GroupNorm(4, 16)"),
    "batchnorm": Kernel(
        _BATCHNORM, "x = x.contiguous()\ny = torch.empty_like(x)\nn = self.norm\n"
        "lib.run(x, n.weight, n.bias, n.running_mean, n.running_var, y, *x.shape)\nn.num_batches_tracked += 1\n"
        "return y", "x", ", cols", "self.norm = nn.BatchNorm1d(cols)"),
}  # fmt: skip
