"""Forward and backward: gradients by autograd.Function, accumulated in float32 or wider, in many orders."""

from __future__ import annotations

from tests.redteam.entry import Entry
from tests.redteam.honest.building import entry
from tests.redteam.honest.scatters import SCATTER, SCATTER_HEAD

_TRAIN = '''import torch
from torch import nn

from kernelwright import load_cpp

SOURCE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>
CODE
"""
lib = load_cpp(SOURCE)


def dense(t):
    if t.dtype != torch.float32:
        raise TypeError(f"this kernel takes float32, not {t.dtype}")
    return t.contiguous()


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, FORWARD

    @staticmethod
    def backward(ctx, BACKWARD


class ModelNew(nn.Module):
    MODEL
'''


def _train(id: str, title: str, problem: str, code: str, forward: str, backward: str, model: str) -> Entry:
    def body(text: str) -> str:
        return "\n    ".join(text.strip().splitlines())

    source = _TRAIN
    for hole, text in {
        "CODE": code,
        "FORWARD": body(forward),
        "BACKWARD": body(backward),
        "MODEL": body(model),
    }.items():
        source = source.replace(hole, text, 1)
    return entry(f"train-{id}", title, problem, source)


_EMBEDDING_CODE = """
extern "C" void gather(const int64_t* ids, const float* w, float* out, int64_t tokens, int64_t dim) {
    #pragma omp parallel for
    for (int64_t t = 0; t < tokens; t++) std::copy(w + ids[t] * dim, w + (ids[t] + 1) * dim, out + t * dim);
}
"""
_EMBEDDING = (
    """ids, weight):
    out = torch.empty(*ids.shape, weight.shape[1])
    lib.gather(ids, weight, out, ids.numel(), weight.shape[1])
    ctx.save_for_backward(ids)
    ctx.vocab = weight.shape[0]
    return out""",
    """grad):
    (ids,) = ctx.saved_tensors
    grad = grad.contiguous()
    out = torch.empty(ctx.vocab, grad.shape[-1])
    lib.scatter(ids, grad, out, ids.numel(), *out.shape)
    return None, out""",
    """def __init__(self, vocab, dim):
    super().__init__()
    self.weight = nn.Parameter(torch.randn(vocab, dim))

def forward(self, ids):
    return Kernel.apply(ids.contiguous(), dense(self.weight))""",
)
_RMS_CODE = """
extern "C" void forward(const float* x, const float* w, float* y, float* rstd, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        float q = 0;
        for (int64_t i = 0; i < n; i++) q += x[r * n + i] * x[r * n + i];
        rstd[r] = 1 / std::sqrt(q / n + 1e-6f);
        for (int64_t i = 0; i < n; i++) y[r * n + i] = x[r * n + i] * rstd[r] * w[i];
    }
}
extern "C" void backward(const float* g, const float* x, const float* w, const float* rstd, float* dx,
    float* dw, int64_t rows,
                         int64_t n) {
    std::vector<ACC> sum(n, 0);
    for (int64_t k = 0; k < rows; k++) {
        int64_t r = ROW;
        float dot = 0, s = rstd[r];
        for (int64_t i = 0; i < n; i++) dot += g[r * n + i] * w[i] * x[r * n + i];
        for (int64_t i = 0; i < n; i++) {
            dx[r * n + i] = s * (g[r * n + i] * w[i] - x[r * n + i] * (dot / n * s * s));
            sum[i] += g[r * n + i] * x[r * n + i] * s;
        }
    }
    for (int64_t i = 0; i < n; i++) dw[i] = (float)sum[i];
}
"""
_RMS = (
    """x, weight):
    n = weight.numel()
    out, rstd = torch.empty_like(x), torch.empty(x.numel() // n)
    lib.forward(x, weight, out, rstd, rstd.numel(), n)
    ctx.save_for_backward(x, weight, rstd)
    return out""",
    """grad):
    x, weight, rstd = ctx.saved_tensors
    dx, dw = torch.empty_like(x), torch.empty_like(weight)
    lib.backward(grad.contiguous(), x, weight, rstd, dx, dw, rstd.numel(), weight.numel())
    return dx, dw""",
    """def __init__(self, cols):
    super().__init__()
    self.weight = nn.Parameter(torch.ones(cols))

def forward(self, x):
    if x.shape[-1] != self.weight.numel():
        raise ValueError(f"rows of {self.weight.numel()} are needed")
    return Kernel.apply(dense(x), dense(self.weight))""",
)
_GELU_CODE = """
extern "C" void forward(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = 0.5f * x[i] * erfcf(-x[i] * 0.70710678f);
}
extern "C" void backward(const float* g, const float* x, float* dx, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        dx[i] = g[i] * (0.5f * erfcf(-x[i] * 0.70710678f) + x[i] * 0.39894228f * expf(-0.5f * x[i] * x[i]));
}
"""
_ONE_INPUT = (
    """x):
    out = torch.empty_like(x)
    lib.forward(x, out, SIZES)
    ctx.save_for_backward(SAVED)
    return out""",
    """grad):
    (saved,) = ctx.saved_tensors
    out = torch.empty_like(saved)
    x = saved
    lib.backward(grad.contiguous(), saved, out, SIZES)
    return out""",
    """def forward(self, x):
    return Kernel.apply(dense(x))""",
)


def _one(sizes: str, saved: str) -> tuple[str, str, str]:
    forward, backward, model = (part.replace("SIZES", sizes).replace("SAVED", saved) for part in _ONE_INPUT)
    return forward, backward, model


_SOFTMAX_CODE = """
extern "C" void forward(const float* x, float* y, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        const float* a = x + r * n;
        float m = -INFINITY, s = 0;
        for (int64_t i = 0; i < n; i++) m = a[i] > m ? a[i] : m;
        for (int64_t i = 0; i < n; i++) s += y[r * n + i] = expf(a[i] - m);
        for (int64_t i = 0; i < n; i++) y[r * n + i] /= s;
    }
}
extern "C" void backward(const float* g, const float* y, float* dx, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        double dot = 0;
        for (int64_t i = 0; i < n; i++) dot += (double)g[r * n + i] * y[r * n + i];
        for (int64_t i = 0; i < n; i++) dx[r * n + i] = y[r * n + i] * (g[r * n + i] - (float)dot);
    }
}
"""
_LINEAR_CODE = """
extern "C" void product(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, int64_t ai,
    int64_t ap,
                        int64_t bp, int64_t bj, const float* bias) {
    #pragma omp parallel for collapse(2)
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float s = 0;
            for (int64_t p = 0; p < k; p++) s += a[i * ai + p * ap] * b[p * bp + j * bj];
            c[i * n + j] = bias ? s + bias[j] : s;
        }
}
"""
_LINEAR = (
    """x, weight, bias):
    m, (n, k) = x.numel() // x.shape[-1], weight.shape
    out = torch.empty(*x.shape[:-1], n)
    lib.product(x, weight, out, m, n, k, k, 1, 1, k, bias)
    ctx.save_for_backward(x, weight)
    return out""",
    """grad):
    x, weight = ctx.saved_tensors
    grad, m, (n, k) = grad.contiguous(), x.numel() // x.shape[-1], weight.shape
    dx, dw, db = torch.empty_like(x), torch.empty_like(weight), torch.empty(1, n)
    lib.product(grad, weight, dx, m, k, n, n, 1, k, 1, None)
    lib.product(grad, x, dw, n, k, m, 1, n, k, 1, None)
    lib.product(torch.ones(m), grad, db, 1, n, m, m, 1, n, 1, None)
    return dx, dw, db.view(n)""",
    """def __init__(self, cols):
    super().__init__()
    self.weight = nn.Parameter(torch.randn(48, cols) / 8)
    self.bias = nn.Parameter(torch.randn(48))

def forward(self, x):
    if x.shape[-1] != self.weight.shape[1]:
        raise ValueError(f"rows of {self.weight.shape[1]} are needed")
    return Kernel.apply(dense(x), dense(self.weight), dense(self.bias))""",
)

ENTRIES = (
    *(
        _train(f"embedding-{name}", title, "embedding_train", _EMBEDDING_CODE + SCATTER_HEAD + code, *_EMBEDDING)
        for name, (title, code) in SCATTER.items()
        if name != "by-dimension"
    ),
    _train(
        "rmsnorm-float",
        "Weight gradients in float, row after row",
        "rmsnorm_train",
        _RMS_CODE.replace("ACC", "float").replace("ROW", "k"),
        *_RMS,
    ),
    _train(
        "rmsnorm-double-backwards",
        "Weight gradients in double, last row first",
        "rmsnorm_train",
        _RMS_CODE.replace("ACC", "double").replace("ROW", "rows - 1 - k"),
        *_RMS,
    ),
    _train("gelu-recomputed", "The derivative from the saved input", "gelu_train", _GELU_CODE, *_one("x.numel()", "x")),
    _train(
        "softmax-from-output",
        "The derivative from the saved output",
        "softmax_train",
        _SOFTMAX_CODE,
        *_one("x.numel() // max(1, x.shape[-1]), x.shape[-1]", "out"),
    ),
    _train(
        "linear-three-products",
        "Three products for three gradients, by strides",
        "linear_train",
        _LINEAR_CODE,
        *_LINEAR,
    ),
)
"""Honest gradients."""
