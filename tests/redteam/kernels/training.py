"""Kernels with a backward: torch.autograd.Function around C++ for both directions."""

from __future__ import annotations

from tests.redteam.kernels.template import Kernel

_SCALE_SHIFT = """
extern "C" void forward(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++) y[r * cols + c] = x[r * cols + c] * w[c] + b[c];
}
extern "C" void backward(const float* g, const float* x, const float* w, float* dx, float* dw, float* db,
                         int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t c = 0; c < cols; c++) {
    double sw = 0, sb = 0;
    for (int64_t r = 0; r < rows; r++) {
      int64_t i = r * cols + c;
      dx[i] = g[i] * w[c]; sw += (double)g[i] * x[i]; sb += g[i];
    }
    dw[c] = (float)sw; db[c] = (float)sb;
  }
}
"""
_SCALE_SHIFT_TOP = """
class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        x = x.contiguous()
        ctx.save_for_backward(x, w)
        y = torch.empty_like(x)
        lib.forward(x, w, b, y, *x.shape)
        return y

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = g.contiguous()
        dx, dw, db = torch.empty_like(x), torch.empty_like(w), torch.empty_like(w)
        lib.backward(g, x, w, dx, dw, db, *x.shape)
        return dx, dw, db
"""
_RMS = """
extern "C" void forward(const float* x, const float* w, float* y, float* rstd, int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t r = 0; r < rows; r++) {
    const float* a = x + r * cols;
    double s = 0;
    for (int64_t c = 0; c < cols; c++) s += (double)a[c] * a[c];
    rstd[r] = (float)(1.0 / std::sqrt(s / cols + 1e-6));
    for (int64_t c = 0; c < cols; c++) y[r * cols + c] = a[c] * rstd[r] * w[c];
  }
}
extern "C" void backward(const float* g, const float* x, const float* w, const float* rstd, float* dx, float* dw,
                         int64_t rows, int64_t cols) {
  std::vector<double> sw(cols, 0.0);
  for (int64_t r = 0; r < rows; r++) {
    double dot = 0, k = rstd[r];
    for (int64_t c = 0; c < cols; c++) dot += (double)g[r * cols + c] * w[c] * x[r * cols + c];
    for (int64_t c = 0; c < cols; c++) {
      int64_t i = r * cols + c;
      dx[i] = (float)(k * (g[i] * w[c] - x[i] * k * k * dot / cols));
      sw[c] += (double)g[i] * x[i] * k;
    }
  }
  for (int64_t c = 0; c < cols; c++) dw[c] = (float)sw[c];
}
"""
_RMS_TOP = """
class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        x = x.contiguous()
        y, rstd = torch.empty_like(x), x.new_empty(x.shape[0])
        lib.forward(x, w, y, rstd, *x.shape)
        ctx.save_for_backward(x, w, rstd)
        return y

    @staticmethod
    def backward(ctx, g):
        x, w, rstd = ctx.saved_tensors
        g = g.contiguous()
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        lib.backward(g, x, w, rstd, dx, dw, *x.shape)
        return dx, dw
"""
_GELU = """
extern "C" void forward(const float* x, float* y, int64_t n) {
  #pragma omp parallel for
  for (int64_t i = 0; i < n; i++) { double v = x[i]; y[i] = (float)(0.5 * v * std::erfc(-v * 0.70710678118654752440)); }
}
extern "C" void backward(const float* g, const float* x, float* dx, int64_t n) {
  #pragma omp parallel for
  for (int64_t i = 0; i < n; i++) {
    double v = x[i];
    double cdf = 0.5 * std::erfc(-v * 0.70710678118654752440), pdf = 0.39894228040143267794 * std::exp(-0.5 * v * v);
    dx[i] = (float)(g[i] * (cdf + v * pdf));
  }
}
"""
_GELU_TOP = """
class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.forward(x, y, x.numel())
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g = g.contiguous()
        dx = torch.empty_like(x)
        lib.backward(g, x, dx, x.numel())
        return dx
"""
_EMBEDDING = """
extern "C" void forward(const int64_t* ids, const float* w, float* y, int64_t tokens, int64_t dim) {
  #pragma omp parallel for
  for (int64_t t = 0; t < tokens; t++) std::memcpy(y + t * dim, w + ids[t] * dim, dim * sizeof(float));
}
extern "C" void backward(const int64_t* ids, const float* g, float* dw, int64_t tokens, int64_t dim, int64_t vocab) {
  std::vector<double> acc(vocab * dim, 0.0);
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t d = 0; d < dim; d++) acc[ids[t] * dim + d] += g[t * dim + d];
  for (int64_t i = 0; i < vocab * dim; i++) dw[i] = (float)acc[i];
}
"""
_EMBEDDING_TOP = """
class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ids, w):
        ids = ids.contiguous()
        y = w.new_empty(ids.numel(), w.shape[1])
        lib.forward(ids, w, y, *y.shape)
        ctx.save_for_backward(ids)
        ctx.vocab = w.shape[0]
        return y

    @staticmethod
    def backward(ctx, g):
        (ids,) = ctx.saved_tensors
        g = g.contiguous()
        dw = g.new_empty(ctx.vocab, g.shape[1])
        lib.backward(ids, g, dw, *g.shape, ctx.vocab)
        return None, dw
"""
_PRODUCT = """
extern "C" void multiply(const float* a, const float* b, float* y, int64_t n) {
  #pragma omp parallel for
  for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i];
}
"""
_PRODUCT_TOP = """
def product(a, b):
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    lib.multiply(a, b, y, a.numel())
    return y

class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return product(a, b)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        da = product(g, b)
        db = product(g, a)
        return da, db
"""
_SCALE = "self.scale = nn.Parameter(torch.ones(cols))\nself.shift = nn.Parameter(torch.zeros(cols))"

TRAINING: dict[str, Kernel] = {
    "scale_shift_train": Kernel(
        _SCALE_SHIFT, "return Op.apply(x, self.scale, self.shift)", "x", ", cols", _SCALE, _SCALE_SHIFT_TOP),
    "rmsnorm_train": Kernel(
        _RMS, "return Op.apply(x, self.weight)", "x", ", cols", "self.weight = nn.Parameter(torch.ones(cols))",
        _RMS_TOP),
    "gelu_train": Kernel(_GELU, "return Op.apply(x)", top=_GELU_TOP),
    "embedding_train": Kernel(
        _EMBEDDING, "return Op.apply(ids, self.weight)", "ids", ", vocab, dim",
        "self.weight = nn.Parameter(torch.randn(vocab, dim))", _EMBEDDING_TOP),
    "product_train": Kernel(_PRODUCT, "return Op.apply(a, b)", "a, b", top=_PRODUCT_TOP),
}  # fmt: skip
