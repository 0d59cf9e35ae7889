"""Small references for the tests of the built-in proposer: one or more of each family, in the problem convention.

Each comes with workloads of several shapes, odd ones among them, so that a candidate that only suits one shape fails.
"""

from __future__ import annotations

from dataclasses import dataclass

_HEADER = """
import math
import torch
from torch import nn
from torch.nn import functional as F

SPEC = {{"workloads": {workloads}}}

class Model(nn.Module):
{body}

def get_inputs({shapes}):
    return [{inputs}]

def get_init_inputs({shapes}):
    return [{init}]
"""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference's source and the family that must come first among its matches."""

    name: str
    family: str
    source: str


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.strip().splitlines())


def make(
    name: str, family: str, body: str, inputs: str, shapes: str, *sizes: tuple[int, ...], init: str = ""
) -> Reference:
    """A reference with one workload per tuple of sizes; `shapes` names the sizes (`"b, n"`)."""
    names = [part.strip() for part in shapes.split(",")]
    workloads = [
        {"name": f"w{i}", "for": "any", "params": dict(zip(names, values, strict=True))}
        for i, values in enumerate(sizes)
    ]
    source = _HEADER.format(workloads=workloads, body=_indent(body), inputs=inputs, shapes=shapes, init=init)
    return Reference(name, family, source)


def forward(text: str, args: str = "x") -> str:
    return f"def forward(self, {args}):\n    " + "\n    ".join(text.strip().splitlines())


def module(init: str, text: str, args: str = "x", names: str = "n") -> str:
    lines = "\n    ".join(init.strip().splitlines())
    return f"def __init__(self, {names}):\n    super().__init__()\n    {lines}\n" + forward(text, args)


_X = "torch.randn(b, n)"
_ROWS = ((4, 64), (3, 37), (1, 130), (5, 1))
_WIDE = ((4, 64), (3, 38), (2, 130))
_SPACE = ((2, 4, 6, 8), (3, 6, 5, 7), (1, 2, 3, 3))
_HEADS = ((1, 2, 16, 8), (2, 3, 33, 16), (1, 1, 70, 32))

REFERENCES: tuple[Reference, ...] = (
    # pointwise
    make(
        "bias_gelu",
        "pointwise",
        module(
            "self.bias = nn.Parameter(torch.randn(n)); self.scale = nn.Parameter(torch.randn(n))",
            "return F.gelu(x + self.bias) * self.scale + r",
            "x, r",
        ),
        f"{_X}, {_X}",
        "b, n",
        *_WIDE,
        init="n",
    ),
    make("swiglu", "pointwise", forward("return F.silu(x) * y", "x, y"), f"{_X}, {_X}", "b, n", *_ROWS),
    make("geglu_packed", "pointwise", forward("a, g = x.chunk(2, dim=-1)\nreturn a * F.gelu(g)"), _X, "b, n", *_WIDE),
    make(
        "activations",
        "pointwise",
        forward(
            "y = F.softplus(x) + F.mish(x) + F.leaky_relu(x, 0.1) + F.elu(x) + F.hardswish(x) + torch.tanh(x)\n"
            "return y * torch.where(x > 0.5, x.abs().sqrt(), torch.exp(-x.square())) + F.gelu(x, approximate='tanh')"
        ),
        _X,
        "b, n",
        *_ROWS,
    ),
    make(
        "more_math",
        "pointwise",
        forward(
            "y = torch.sigmoid(x) + torch.log1p(x.abs()) + torch.expm1(x) + torch.sin(x) * torch.cos(x)\n"
            "return y.clamp(-3, 3) + F.relu(x) + torch.log(x.abs() + 1) / (1 + x * x) + x.abs().pow(1.3) + torch.erf(x)"
        ),
        _X,
        "b, n",
        *_ROWS,
    ),
    make("inplace", "pointwise", forward("y = x * 2\ny += 1\nreturn y.relu_()"), _X, "b, n", *_ROWS),
    make(
        "column_scale",
        "pointwise",
        forward("return x * s + x.tanh()", "x, s"),
        f"{_X}, torch.randn(b, 1)",
        "b, n",
        *_WIDE,
    ),
    make(
        "outer_sum",
        "pointwise",
        forward("return (a[:, None, :] + c[None, :, :]).sigmoid()", "a, c"),
        "torch.randn(b, n), torch.randn(m, n)",
        "b, m, n",
        (3, 4, 16),
        (2, 5, 7),
    ),
    make(
        "masked",
        "pointwise",
        forward("return x.masked_fill(m, -1.5) * 2", "x, m"),
        f"{_X}, torch.randn(b, n) > 0",
        "b, n",
        *_WIDE,
    ),
    make(
        "batch_norm",
        "pointwise",
        module("self.bn = nn.BatchNorm2d(c).eval()", "return F.relu(self.bn(x))", names="c"),
        "torch.randn(b, c, h, w)",
        "b, c, h, w",
        *_SPACE,
        init="c",
    ),
    make("shift_shape", "pointwise", forward("return x / math.sqrt(x.shape[-1]) + 1"), _X, "b, n", *_WIDE),
    make("two_outputs", "pointwise", forward("y = x.exp()\nreturn y, y * x"), _X, "b, n", *_ROWS),
    # softmax
    make("softmax", "softmax", forward("return torch.softmax(x, -1)"), _X, "b, n", *_ROWS),
    make("softmax_scaled", "softmax", forward("return F.softmax(x * 0.125, dim=1)"), _X, "b, n", *_ROWS),
    make("log_softmax", "softmax", forward("return F.log_softmax(x, -1)"), _X, "b, n", *_ROWS),
    make(
        "softmax_by_hand",
        "softmax",
        forward("e = torch.exp(x - x.max(dim=-1, keepdim=True).values)\nreturn e / e.sum(-1, keepdim=True)"),
        _X,
        "b, n",
        *_ROWS,
    ),
    # norms
    make(
        "layer_norm",
        "layer_norm",
        module("self.norm = nn.LayerNorm(n)", "return self.norm(x)"),
        "torch.randn(2, b, n)",
        "b, n",
        *_WIDE,
        init="n",
    ),
    make(
        "layer_norm_2d",
        "layer_norm",
        module("self.norm = nn.LayerNorm((c, n))", "return self.norm(x)", names="c, n"),
        "torch.randn(b, c, n)",
        "b, c, n",
        (2, 3, 16),
        (3, 5, 7),
        init="c, n",
    ),
    make(
        "layer_norm_plain",
        "layer_norm",
        forward("return F.layer_norm(x + r, (x.shape[-1],))", "x, r"),
        f"{_X}, {_X}",
        "b, n",
        *_WIDE,
    ),
    make(
        "rms_norm",
        "rms_norm",
        module("self.norm = nn.RMSNorm(n, eps=1e-6)", "return self.norm(x)"),
        _X,
        "b, n",
        *_WIDE,
        init="n",
    ),
    make(
        "residual_rms_norm",
        "rms_norm",
        module(
            "self.w = nn.Parameter(torch.randn(n))",
            "h = x + r\nreturn self.w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)), h",
            "x, r",
        ),
        f"{_X}, {_X}",
        "b, n",
        *_WIDE,
        init="n",
    ),
    make(
        "gemma_rms_norm",
        "rms_norm",
        module(
            "self.w = nn.Parameter(torch.randn(n))",
            "y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)\n"
            "return (y * (1.0 + self.w.float())).type_as(x)",
        ),
        _X,
        "b, n",
        *_WIDE,
        init="n",
    ),
    make(
        "rms_divided",
        "rms_norm",
        forward("return x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)"),
        _X,
        "b, n",
        *_WIDE,
    ),
    make(
        "group_norm",
        "group_norm",
        module("self.norm = nn.GroupNorm(2, c)", "return F.silu(self.norm(x))", names="c"),
        "torch.randn(b, c, h, w)",
        "b, c, h, w",
        *_SPACE,
        init="c",
    ),
    make(
        "instance_norm",
        "group_norm",
        module("self.norm = nn.InstanceNorm2d(c)", "return self.norm(x)", names="c"),
        "torch.randn(b, c, h, w)",
        "b, c, h, w",
        *_SPACE,
        init="c",
    ),
    # other rows
    make(
        "l2_normalize",
        "rowwise",
        forward("return x / (x.square().sum(-1, keepdim=True).sqrt() + 1e-6)"),
        _X,
        "b, n",
        *_WIDE,
    ),
    make(
        "softmax_gate",
        "rowwise",
        forward("return torch.softmax(x + m, -1) * torch.sigmoid(x)", "x, m"),
        "torch.randn(b, n), torch.randn(n)",
        "b, n",
        *_WIDE,
    ),
    make("row_std", "rowwise", forward("return x.std(dim=-1), x.mean(-1, keepdim=True)"), _X, "b, n", *_WIDE),
    # reductions
    make("row_sum", "row_reduction", forward("return x.sum(dim=-1)"), _X, "b, n", *_ROWS),
    make(
        "row_mean_2",
        "row_reduction",
        forward("return x.mean(dim=(1, 2), keepdim=True)"),
        "torch.randn(b, 3, n)",
        "b, n",
        *_ROWS,
    ),
    make("row_max", "row_reduction", forward("return torch.max(x, dim=1)[0]"), _X, "b, n", *_ROWS),
    make("row_min", "row_reduction", forward("return torch.amin(x, dim=-1, keepdim=True)"), _X, "b, n", *_ROWS),
    make("logsumexp", "row_reduction", forward("return torch.logsumexp(x, dim=-1)"), _X, "b, n", *_ROWS),
    make("column_sum", "column_reduction", forward("return x.sum(0)"), _X, "b, n", *_ROWS),
    make(
        "column_mean",
        "column_reduction",
        forward("return x.mean(dim=1, keepdim=True)"),
        "torch.randn(b, 5, n)",
        "b, n",
        *_ROWS,
    ),
    make(
        "column_max", "column_reduction", forward("return torch.amax(x, dim=1)"), "torch.randn(b, 9, n)", "b, n", *_ROWS
    ),
    make("mse", "full_reduction", forward("return F.mse_loss(x, y)", "x, y"), f"{_X}, {_X}", "b, n", *_ROWS),
    make(
        "huber", "full_reduction", forward("return F.smooth_l1_loss(x, y) * 0.5", "x, y"), f"{_X}, {_X}", "b, n", *_ROWS
    ),
    make(
        "hinge",
        "full_reduction",
        forward("return torch.mean(torch.clamp(1 - x * y, min=0))", "x, y"),
        "torch.randn(b, n), torch.randn(b, 1)",
        "b, n",
        *_WIDE,
    ),
    # scans
    make("cumsum", "scan", forward("return torch.cumsum(x, dim=-1)"), _X, "b, n", *_ROWS),
    make("cumprod", "scan", forward("return torch.cumprod(x, dim=1)"), _X, "b, n", *_ROWS),
    make(
        "masked_cumsum",
        "scan",
        forward("return torch.cumsum(x * m, dim=1)", "x, m"),
        f"{_X}, torch.randn(b, n) > 0",
        "b, n",
        *_ROWS,
    ),
    make("reverse_cumsum", "scan", forward("return torch.cumsum(x.flip(1), dim=1).flip(1)"), _X, "b, n", *_ROWS),
    # losses of rows
    make(
        "cross_entropy",
        "cross_entropy",
        forward("return F.cross_entropy(x, t)", "x, t"),
        f"{_X}, torch.randint(0, n, (b,))",
        "b, n",
        *_ROWS,
    ),
    make(
        "cross_entropy_ignored",
        "cross_entropy",
        forward("return F.cross_entropy(x, t, ignore_index=1, label_smoothing=0.1, reduction='sum')", "x, t"),
        f"{_X}, torch.randint(0, n, (b,))",
        "b, n",
        *_WIDE,
    ),
    make(
        "nll",
        "cross_entropy",
        forward("return F.nll_loss(F.log_softmax(x, 1), t, reduction='none')", "x, t"),
        f"{_X}, torch.randint(0, n, (b,))",
        "b, n",
        *_ROWS,
    ),
    # products
    make(
        "linear_gelu",
        "matmul",
        module("self.fc = nn.Linear(k, n)", "return F.gelu(self.fc(x))", names="k, n"),
        "torch.randn(b, k)",
        "b, k, n",
        (8, 16, 32),
        (5, 7, 9),
        (33, 70, 65),
        init="k, n",
    ),
    make(
        "linear_3d",
        "matmul",
        module("self.fc = nn.Linear(k, n, bias=False)", "return self.fc(x) * 0.5 + r", "x, r", names="k, n"),
        "torch.randn(2, b, k), torch.randn(2, b, n)",
        "b, k, n",
        (8, 16, 32),
        (5, 7, 9),
        init="k, n",
    ),
    make(
        "mm",
        "matmul",
        forward("return a @ b", "a, b"),
        "torch.randn(b, k), torch.randn(k, n)",
        "b, k, n",
        (8, 16, 32),
        (5, 7, 9),
        (50, 130, 33),
    ),
    make(
        "bmm_relu",
        "matmul",
        forward("return torch.bmm(a, b).relu()", "a, b"),
        "torch.randn(3, b, k), torch.randn(3, k, n)",
        "b, k, n",
        (8, 16, 32),
        (5, 7, 9),
    ),
    make(
        "mm_transposed",
        "matmul",
        forward("return torch.matmul(a.T, b.T)", "a, b"),
        "torch.randn(k, b), torch.randn(n, k)",
        "b, k, n",
        (8, 16, 32),
        (5, 7, 9),
    ),
    # attention
    make(
        "sdpa_causal",
        "attention",
        forward("return F.scaled_dot_product_attention(q, k, v, is_causal=True)", "q, k, v"),
        "torch.randn(b, h, t, d), torch.randn(b, h, t, d), torch.randn(b, h, t, d)",
        "b, h, t, d",
        *_HEADS,
    ),
    make(
        "attention_by_hand",
        "attention",
        forward(
            "s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])\n"
            "m = torch.triu(torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device), diagonal=1)\n"
            "return torch.softmax(s.masked_fill(m, float('-inf')), dim=-1) @ v",
            "q, k, v",
        ),
        "torch.randn(b, h, t, d), torch.randn(b, h, t, d), torch.randn(b, h, t, d)",
        "b, h, t, d",
        *_HEADS,
    ),
    make(
        "attention_grouped",
        "attention",
        forward(
            "k = k.repeat_interleave(2, dim=1)\nv = v.repeat_interleave(2, dim=1)\n"
            "return torch.softmax((q * q.shape[-1] ** -0.5) @ k.mT, dim=-1) @ v",
            "q, k, v",
        ),
        "torch.randn(b, 2 * h, t, d), torch.randn(b, h, t, d), torch.randn(b, h, t, d)",
        "b, h, t, d",
        *_HEADS,
    ),
    make(
        "attention_masked",
        "attention",
        forward("return F.scaled_dot_product_attention(q, k, v, attn_mask=m)", "q, k, v, m"),
        "torch.randn(b, h, t, d), torch.randn(b, h, t, d), torch.randn(b, h, t, d), torch.randn(t, t) > -0.5",
        "b, h, t, d",
        *_HEADS,
    ),
    make(
        "attention_bias",
        "attention",
        forward("return torch.softmax(q @ k.transpose(1, 2) * 0.3 + m, dim=-1) @ v", "q, k, v, m"),
        "torch.randn(b, t, d), torch.randn(b, t, d), torch.randn(b, t, d), torch.randn(b, t, t)",
        "b, t, d",
        (2, 16, 8),
        (1, 33, 16),
    ),
    # data movement
    make(
        "rope",
        "rope",
        forward(
            "def turn(z):\n    a, b = z[..., : z.shape[-1] // 2], z[..., z.shape[-1] // 2 :]\n"
            "    return torch.cat((-b, a), dim=-1)\n"
            "return q * cos + turn(q) * sin, k * cos + turn(k) * sin",
            "q, k, cos, sin",
        ),
        "torch.randn(b, h, t, d), torch.randn(b, h, t, d), torch.randn(t, d), torch.randn(t, d)",
        "b, h, t, d",
        *_HEADS,
    ),
    make("transpose", "transpose", forward("return x.t().contiguous()"), _X, "b, n", *_WIDE),
    make(
        "permute",
        "transpose",
        forward("return x.permute(0, 2, 1, 3).contiguous()"),
        "torch.randn(b, h, t, d)",
        "b, h, t, d",
        (1, 2, 16, 8),
        (2, 3, 33, 16),
    ),
    make(
        "embedding",
        "embedding",
        module("self.emb = nn.Embedding(50, n)", "return self.emb(i) * math.sqrt(self.emb.weight.shape[1])", "i"),
        "torch.randint(0, 50, (b, 7))",
        "b, n",
        *_WIDE,
        init="n",
    ),
)

BY_NAME = {reference.name: reference for reference in REFERENCES}

NUMBER_ARGUMENT = make(
    "number_argument", "pointwise", forward("return x * s + 2.0", "x, s"), f"{_X}, 2.0", "b, n", *_WIDE
)
"""A reference whose forward takes a plain number; the number equals a constant of the code."""

RECOGNISED = {
    "attention_causal": "attention", "attention_causal_training": "attention",
    "batched_small_gemm": "matmul", "matmul_bias_gelu": "matmul", "matmul_skinny": "matmul",
    "batchnorm_inference_act": "pointwise", "bias_gelu_scale_residual": "pointwise", "geglu": "pointwise",
    "swiglu": "pointwise",
    "cumsum": "scan", "kl_div_distillation": "full_reduction",
    "layernorm": "rowwise", "reduce_sum_inner": "rowwise", "rmsnorm_residual": "rowwise", "softmax": "rowwise",
    "reduce_sum_outer": "column_reduction", "transpose_copy": "transpose",
}  # fmt: skip
"""Those of the bundled suite that a recipe recognises on a GPU, and the family whose recipes it is offered."""
