"""Problems that the honest corpus adds: bundled ones at sizes that take seconds, and some with unusual contracts."""

from __future__ import annotations

import re

from problems.catalog import bundled
from tests.redteam.problems import PROBLEMS, make

_ROWS = {"even": {"rows": 128, "cols": 512}, "odd": {"rows": 61, "cols": 333}}
_WORKLOADS = re.compile(r'"workloads": \[\n.*?\n    \],\n', re.DOTALL)


def _small(name: str, *params: dict[str, object]) -> str:
    """A bundled problem with workloads of its own; its candidates have no backward."""
    rows = [
        {"name": f"small{place}", "for": "any", "params": each, "backward": False} for place, each in enumerate(params)
    ]
    text, count = _WORKLOADS.subn(lambda _match: f'"workloads": {rows!r},\n', bundled()[name].source)
    assert count == 1, name
    return text


def _typed(name: str, sizes: tuple[dict[str, object], ...], *dtypes: str) -> str:
    return _small(name, *({**size, "dtype": dtype} for size, dtype in zip(sizes, dtypes, strict=True)))


_HIDDEN: tuple[dict[str, object], ...] = ({"rows": 96, "hidden": 512}, {"rows": 37, "hidden": 203})
_COLS: tuple[dict[str, object], ...] = ({"rows": 96, "cols": 512}, {"rows": 37, "cols": 203})
_CLASSES: tuple[dict[str, object], ...] = ({"rows": 64, "classes": 1000}, {"rows": 37, "classes": 501})
_INNER: tuple[dict[str, object], ...] = (
    {"rows": 64, "inner": 128, "outer": 192},
    {"rows": 33, "inner": 65, "outer": 47},
)
_HEADS: tuple[dict[str, object], ...] = (
    {"batch": 1, "heads": 4, "kv_heads": 2, "length": 64, "dim": 64},
    {"batch": 2, "heads": 3, "kv_heads": 1, "length": 45, "dim": 64},
)

_BUNDLED = {
    "small_softmax": _small("softmax", *_COLS),
    "small_layernorm": _small("layernorm", *_HIDDEN),
    "small_rmsnorm_residual": _small("rmsnorm_residual", *_HIDDEN),
    "small_cross_entropy": _small("cross_entropy", *_CLASSES),
    "small_cumsum": _small("cumsum", *_COLS),
    "small_matmul_bias_gelu": _small("matmul_bias_gelu", *_INNER),
    "small_attention_causal": _small("attention_causal", *_HEADS),
    "small_bias_gelu": _small("bias_gelu_scale_residual", *_HIDDEN),
    "half_softmax": _typed("softmax", _COLS, "bfloat16", "float16"),
    "half_layernorm": _typed("layernorm", _HIDDEN, "bfloat16", "float16"),
    "half_rmsnorm_residual": _typed("rmsnorm_residual", _HIDDEN, "bfloat16", "float16"),
    "half_cross_entropy": _typed("cross_entropy", _CLASSES, "bfloat16", "bfloat16"),
    "half_bias_gelu": _typed("bias_gelu_scale_residual", _HIDDEN, "bfloat16", "float16"),
    "half_matmul_bias_gelu": _typed("matmul_bias_gelu", _INNER, "bfloat16", "float16"),
    "half_attention_causal": _typed("attention_causal", _HEADS, "bfloat16", "float16"),
}

_CONTRACTS = {
    "swiglu": make(
        "silu(a) * b", "elementwise", "return F.silu(a) * b", **_ROWS, arguments="a, b",
        inputs="torch.randn(rows, cols), torch.randn(rows, cols)",
    ),
    "batchnorm_eval": make(
        "BatchNorm with the running statistics it was given", "normalization", "return self.norm(x)",
        even={"batch": 4, "channels": 32, "side": 20}, odd={"batch": 3, "channels": 17, "side": 13},
        inputs="torch.randn(batch, channels, side, side)", init_values="channels",
        init="self.norm = nn.BatchNorm2d(channels)\n        self.eval()",
    ),
    "threshold": make(
        "What exceeds a learned 0-d threshold: a mask, the clamped values, a count per row", "elementwise",
        "over = x > self.limit\n        return over, torch.minimum(x, self.limit), over.sum(-1)", **_ROWS,
        init="self.limit = nn.Parameter(torch.tensor(0.5))",
    ),
    "masked_mean": make(
        "Mean of what a boolean mask keeps, scaled by an integer weight per row", "reduction",
        "kept = torch.where(keep, x, 0.0).sum(-1) / keep.sum(-1).clamp(min=1)\n        return kept * weight", **_ROWS,
        arguments="x, keep, weight", domains={"keep": "fixed", "weight": "fixed"},
        inputs="torch.randn(rows, cols), torch.rand(rows, cols) < 0.7, torch.randint(1, 9, (rows,), dtype=torch.int32)",
    ),
    "dequantised_linear": make(
        "Linear layer with int8 weights in a buffer and a scale for each output", "matmul",
        "return x @ (self.packed.float() * self.scale[:, None]).t()",
        even={"rows": 64, "cols": 128}, odd={"rows": 33, "cols": 67}, init_values="cols",
        init="self.register_buffer('packed', torch.arange(48 * cols).remainder(255).sub(127).view(48, cols).char())\n"
        "        self.scale = nn.Parameter(torch.full((48,), 0.01))",
    ),
    "column_statistics": make(
        "Mean and unbiased variance of every column of a transposed view", "reduction", "return x.mean(0), x.var(0)",
        even={"rows": 257, "cols": 96}, odd={"rows": 131, "cols": 33}, inputs="torch.randn(cols, rows).t()",
    ),
    "inplace_add": make(
        "Adds into its first argument and returns it", "elementwise", "return x.add_(y)", **_ROWS, arguments="x, y",
        inputs="torch.randn(rows, cols), torch.randn(rows, cols)",
    ),
    "rope": make(
        "Rotary embedding of queries", "elementwise",
        "a, b = q.chunk(2, -1)\n        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)",
        even={"heads": 4, "length": 64, "dim": 64}, odd={"heads": 3, "length": 37, "dim": 18}, arguments="q, cos, sin",
        inputs="torch.randn(heads, length, dim), torch.randn(length, dim // 2), torch.randn(length, dim // 2)",
    ),
    "large_gate": make(
        "silu(gate) * x, results of 16 MB", "elementwise", "return F.silu(gate) * x",
        even={"rows": 2048, "cols": 2048}, odd={"rows": 1021, "cols": 2047}, arguments="x, gate",
        inputs="torch.randn(rows, cols), torch.randn(rows, cols)",
    ),
    "double_tanh": make(
        "tanh in float64", "elementwise", "return torch.tanh(x)", **_ROWS,
        inputs="torch.randn(rows, cols, dtype=torch.float64)",
    ),
    "scaled_add": make(
        "x + alpha * y, with alpha and a shift as plain numbers", "elementwise",
        "return x + alpha * torch.roll(y, shift, -1)", **_ROWS, arguments="x, y, alpha, shift",
        inputs="torch.randn(rows, cols), torch.randn(rows, cols), 0.75, 3",
    ),
    "column_softmax": make(
        "Softmax over a dimension of one: ones, and NaN where the value is not finite", "softmax",
        "return torch.softmax(x, -1)", even={"rows": 4096, "cols": 1}, odd={"rows": 1, "cols": 8191},
    ),
    "groupnorm": make(
        "GroupNorm of images", "normalization", "return self.norm(x)",
        even={"batch": 2, "groups": 4, "side": 20}, odd={"batch": 3, "groups": 3, "side": 11},
        inputs="torch.randn(batch, groups * 4, side, side)", init_values="groups",
        init="self.norm = nn.GroupNorm(groups, groups * 4)",
    ),
    "linear_train": make(
        "Linear layer, forward and backward", "matmul", "return F.linear(x, self.weight, self.bias)",
        even={"rows": 64, "cols": 128}, odd={"rows": 33, "cols": 67}, init_values="cols", backward=True,
        init="self.weight = nn.Parameter(torch.randn(48, cols) / 8)\n        self.bias = nn.Parameter(torch.randn(48))",
    ),
    "softmax_train": make(
        "Softmax, forward and backward", "softmax", "return torch.softmax(x, -1)", **_ROWS, backward=True,
    ),
}  # fmt: skip

OWN: dict[str, str] = {**_BUNDLED, **_CONTRACTS}
"""Problem files by name; none shares a name with the corpus's own."""
assert not OWN.keys() & PROBLEMS.keys()
PROBLEMS.update(OWN)  # so that `source_of` and the runner know them
