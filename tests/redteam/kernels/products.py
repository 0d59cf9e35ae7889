"""Kernels that multiply, gather or scatter."""

from __future__ import annotations

from tests.redteam.kernels.template import Kernel

_MATMUL = """
extern "C" void run(const float* a, const float* b, float* y, int64_t m, int64_t n, int64_t k) {
  #pragma omp parallel for
  for (int64_t i = 0; i < m; i++) {
    float* o = y + i * n;
    for (int64_t j = 0; j < n; j++) o[j] = 0;
    for (int64_t l = 0; l < k; l++)
      for (int64_t j = 0; j < n; j++) o[j] += a[i * k + l] * b[l * n + j];
  }
}
"""
_LINEAR = """
extern "C" void run(const float* x, const float* w, const float* bias, float* y, int64_t m, int64_t n, int64_t k) {
  #pragma omp parallel for
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      double s = bias[j];
      for (int64_t l = 0; l < k; l++) s += (double)x[i * k + l] * w[j * k + l];
      y[i * n + j] = (float)s;
    }
}
"""
_BF16 = """
static float wide(uint16_t v) { uint32_t u = (uint32_t)v << 16; float f; std::memcpy(&f, &u, 4); return f; }
static uint16_t narrow(float f) {
  uint32_t u; std::memcpy(&u, &f, 4);
  if (f != f) return 0x7fc0;
  return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
extern "C" void run(const uint16_t* a, const uint16_t* b, uint16_t* y, int64_t m, int64_t n, int64_t k) {
  #pragma omp parallel for
  for (int64_t i = 0; i < m; i++) {
    std::vector<float> s(n, 0.0f);
    for (int64_t l = 0; l < k; l++)
      for (int64_t j = 0; j < n; j++) s[j] += wide(a[i * k + l]) * wide(b[l * n + j]);
    for (int64_t j = 0; j < n; j++) y[i * n + j] = narrow(s[j]);
  }
}
"""
_CONV = """
extern "C" void run(const float* x, const float* w, const float* bias, float* y, int64_t batch, int64_t length) {
  #pragma omp parallel for collapse(2)
  for (int64_t b = 0; b < batch; b++)
    for (int64_t o = 0; o < 8; o++)
      for (int64_t t = 0; t < length; t++) {
        double s = bias[o];
        for (int64_t i = 0; i < 8; i++)
          for (int64_t k = 0; k < 7; k++) {
            int64_t at = t + k - 3;
            if (at >= 0 && at < length) s += (double)x[(b * 8 + i) * length + at] * w[(o * 8 + i) * 7 + k];
          }
        y[(b * 8 + o) * length + t] = (float)s;
      }
}
"""
_ATTENTION = """
extern "C" void run(const float* q, const float* k, const float* v, float* y, int64_t heads, int64_t n, int64_t d) {
  #pragma omp parallel for collapse(2)
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < n; i++) {
      const float* a = q + (h * n + i) * d; const float* kh = k + h * n * d; const float* vh = v + h * n * d;
      std::vector<double> p(n), o(d, 0.0);
      double m = -INFINITY, total = 0;
      for (int64_t j = 0; j < n; j++) {
        double s = 0;
        for (int64_t c = 0; c < d; c++) s += (double)a[c] * kh[j * d + c];
        p[j] = s / std::sqrt((double)d);
        m = (p[j] > m || p[j] != p[j]) ? p[j] : m;
      }
      for (int64_t j = 0; j < n; j++) { p[j] = std::exp(p[j] - m); total += p[j]; }
      for (int64_t j = 0; j < n; j++)
        for (int64_t c = 0; c < d; c++) o[c] += p[j] * vh[j * d + c];
      for (int64_t c = 0; c < d; c++) y[(h * n + i) * d + c] = (float)(o[c] / total);
    }
}
"""
_EMBEDDING = """
extern "C" void run(const int64_t* ids, const float* table, float* y, int64_t tokens, int64_t dim) {
  #pragma omp parallel for
  for (int64_t t = 0; t < tokens; t++) std::memcpy(y + t * dim, table + ids[t] * dim, dim * sizeof(float));
}
"""
_EMBEDDING_GRAD = """
extern "C" void run(const int64_t* ids, const float* grad, float* y, int64_t tokens, int64_t dim, int64_t vocab) {
  std::memset(y, 0, vocab * dim * sizeof(float));
  #pragma omp parallel for
  for (int64_t part = 0; part < 4; part++)
    for (int64_t t = 0; t < tokens; t++)
      if (ids[t] % 4 == part)
        for (int64_t d = 0; d < dim; d++) y[ids[t] * dim + d] += grad[t * dim + d];
}
"""
_CROSS_ENTROPY = """
extern "C" void run(const float* x, const int64_t* target, float* y, int64_t rows, int64_t cols) {
  double total = 0;
  #pragma omp parallel for reduction(+ : total)
  for (int64_t r = 0; r < rows; r++) {
    const float* a = x + r * cols;
    float m = a[0];
    for (int64_t c = 1; c < cols; c++) m = (a[c] > m || a[c] != a[c]) ? a[c] : m;
    double s = 0;
    for (int64_t c = 0; c < cols; c++) s += std::exp((double)a[c] - m);
    total += std::log(s) + m - a[target[r]];
  }
  y[0] = (float)(total / rows);
}
"""
_TRIANGULAR = """
extern "C" void run(const float* f, const float* b, float* y, int64_t n, int64_t cols) {
  std::vector<double> s(n * cols);
  for (int64_t i = 0; i < n; i++)
    for (int64_t c = 0; c < cols; c++) {
      double v = b[i * cols + c];
      for (int64_t j = 0; j < i; j++) v -= (double)(f[i * n + j] / n) * s[j * cols + c];
      s[i * cols + c] = v;
      y[i * cols + c] = (float)v;
    }
}
"""
_SHAPE = "a.shape[0], b.shape[1], a.shape[1]"

PRODUCTS: dict[str, Kernel] = {
    "matmul": Kernel(
        _MATMUL, "a, b = a.contiguous(), b.contiguous()\ny = a.new_empty(a.shape[0], b.shape[1])\n"
        f"lib.run(a, b, y, {_SHAPE})\nreturn y", "a, b"),
    "product": Kernel(
        _MATMUL, "a, b = a.contiguous(), b.contiguous()\ny = a.new_empty(a.shape[0], b.shape[1])\n"
        f"lib.run(a, b, y, {_SHAPE})\nreturn y", "a, b"),
    "projection": Kernel(
        _MATMUL, "x = x.contiguous()\ny = x.new_empty(x.shape[0], self.weight.shape[1])\n"
        "lib.run(x, self.weight, y, x.shape[0], y.shape[1], x.shape[1])\nreturn y", "x", ", cols",
        "self.weight = nn.Parameter(torch.randn(cols, 512))"),
    "matmul_bf16": Kernel(
        _BF16, "a, b = a.contiguous(), b.contiguous()\ny = a.new_empty(a.shape[0], b.shape[1])\n"
        f"lib.run(a, b, y, {_SHAPE})\nreturn y", "a, b"),
    "linear": Kernel(
        _LINEAR, "x, n = x.contiguous(), self.layer.out_features\ny = x.new_empty(x.shape[0], n)\n"
        "lib.run(x, self.layer.weight, self.layer.bias, y, x.shape[0], n, x.shape[1])\nreturn y", "x", ", cols",
        "self.layer = nn.Linear(cols, 80)"),
    "conv1d": Kernel(
        _CONV, "x = x.contiguous()\ny = torch.empty_like(x)\n"
        "lib.run(x, self.conv.weight, self.conv.bias, y, x.shape[0], x.shape[2])\nreturn y", "x", "",
        "self.conv = nn.Conv1d(8, 8, 7, padding=3)"),
    "attention": Kernel(
        _ATTENTION, "q, k, v = q.contiguous(), k.contiguous(), v.contiguous()\ny = torch.empty_like(q)\n"
        "lib.run(q, k, v, y, *q.shape)\nreturn y", "q, k, v"),
    "embedding": Kernel(
        _EMBEDDING, "ids = ids.contiguous()\ny = self.table.weight.new_empty(ids.numel(), self.table.embedding_dim)\n"
        "lib.run(ids, self.table.weight, y, *y.shape)\nreturn y", "ids", ", vocab, dim",
        "self.table = nn.Embedding(vocab, dim)"),
    "embedding_grad": Kernel(
        _EMBEDDING_GRAD, "ids, grad = ids.contiguous(), grad.contiguous()\n"
        "y = grad.new_empty(self.vocab, grad.shape[1])\nlib.run(ids, grad, y, *grad.shape, self.vocab)\nreturn y",
        "ids, grad", ", vocab", "self.vocab = vocab"),
    "cross_entropy": Kernel(
        _CROSS_ENTROPY, "logits, target = logits.contiguous(), target.contiguous()\ny = logits.new_empty(())\n"
        "lib.run(logits, target, y, *logits.shape)\nreturn y", "logits, target"),
    "triangular": Kernel(
        _TRIANGULAR, "f, b = f.contiguous(), b.contiguous()\ny = torch.empty_like(b)\n"
        "lib.run(f, b, y, *b.shape)\nreturn y", "f, b"),
}  # fmt: skip
