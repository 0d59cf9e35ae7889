"""The corpus's problems: small, so that a judgement takes seconds, and each with something to get wrong.

Every problem has two workloads of different, partly odd, shapes. Bundled problems are too large for 300 judgements;
what is bundled is reached by name through `source_of`.
"""

from __future__ import annotations

from problems.catalog import bundled

_FILE = """import torch
from torch import nn
from torch.nn import functional as F

SPEC = {{
    "summary": "{summary}",
    "op_family": "{family}",
    "workloads": [
        {{"name": "even", "for": "any", "params": {even}}},
        {{"name": "odd", "for": "any", "params": {odd}}},
    ],
    "domains": {domains},
    "precision": {{"compute": "float32", "tf32": False}},
    "backward": {backward},
}}


class Model(nn.Module):
    def __init__(self{init_arguments}):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {forward}


def get_inputs({names}):
    return [{inputs}]


def get_init_inputs({names}):
    return [{init_values}]
"""


def make(
    summary: str,
    family: str,
    forward: str,
    *,
    even: dict[str, int],
    odd: dict[str, int],
    inputs: str = "torch.randn(rows, cols)",
    arguments: str = "x",
    init: str = "pass",
    init_values: str = "",
    domains: dict[str, object] | None = None,
    backward: bool = False,
) -> str:
    """A problem file. `forward` and `init` are statements (lines joined with 8 spaces); `inputs` and `init_values`
    are expressions over the names of `even`."""
    return _FILE.format(
        summary=summary,
        family=family,
        even=even,
        odd=odd,
        domains=domains or {},
        backward=backward,
        init_arguments="".join(f", {name.strip()}" for name in init_values.split(",") if name.strip()),
        init=init,
        arguments=arguments,
        forward=forward,
        names=", ".join(f"{name}={value}" for name, value in even.items()),
        inputs=inputs,
        init_values=init_values,
    )


_ROWS = {"even": {"rows": 128, "cols": 512}, "odd": {"rows": 61, "cols": 333}}
_LONG = {"even": {"rows": 64, "cols": 4096}, "odd": {"rows": 37, "cols": 2053}}
_WEIGHT = "self.weight = nn.Parameter(torch.ones(cols))"
_VOCAB = {"even": {"vocab": 512, "dim": 64, "tokens": 4096}, "odd": {"vocab": 301, "dim": 33, "tokens": 2051}}
_IDS = {"ids": {"index": "vocab"}}
_RMS = "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)"

_POINTWISE = {
    "relu": make("ReLU", "elementwise", "return torch.relu(x)", **_ROWS),
    "bias_relu": make(
        "ReLU after a bias", "elementwise", "return torch.relu(x + self.bias)", **_ROWS,
        init="self.bias = nn.Parameter(torch.zeros(cols))", init_values="cols",
    ),
    "scale_shift": make(
        "x * scale + shift, both at their identity initialisation", "elementwise",
        "return x * self.scale + self.shift", **_ROWS, init_values="cols",
        init="self.scale = nn.Parameter(torch.ones(cols))\n        self.shift = nn.Parameter(torch.zeros(cols))",
    ),
    "gelu": make("GELU with erf", "elementwise", "return F.gelu(x)", **_ROWS),
    "tanh": make("tanh", "elementwise", "return torch.tanh(x)", **_ROWS),
    "log1p": make("log(1 + x)", "elementwise", "return torch.log1p(x)", **_ROWS, domains={"x": "positive"}),
    "round_half": make("Round to even", "elementwise", "return torch.round(x / 2) * 2", **_ROWS),
    "softcap": make("30 * tanh(x / 30)", "elementwise", "return 30 * torch.tanh(x / 30)", **_ROWS),
    "weak_residual": make(
        "x + 1e-3 * y", "elementwise", "return x + 1e-3 * y", **_ROWS, arguments="x, y",
        inputs="torch.randn(rows, cols), torch.randn(rows, cols)",
    ),
    "faint_residual": make(
        "x + 1e-5 * y", "elementwise", "return x + 1e-5 * y", **_ROWS, arguments="x, y",
        inputs="torch.randn(rows, cols), torch.randn(rows, cols)",
    ),
    "divide": make(
        "a / b", "elementwise", "return a / b", **_ROWS, arguments="a, b", domains={"b": "positive"},
        inputs="torch.randn(rows, cols), torch.rand(rows, cols) + 0.1",
    ),
    "transposed_add": make(
        "Sum of a matrix and a transposed view", "elementwise", "return x + y", **_ROWS, arguments="x, y",
        inputs="torch.randn(rows, cols), torch.randn(cols, rows).t()",
    ),
    "int_bucket": make(
        "Which of 16 buckets a value falls into, as int64", "elementwise",
        "return torch.clamp(torch.floor(x * 4) + 8, 0, 15).to(torch.int64)", **_ROWS,
    ),
}  # fmt: skip

_REDUCTIONS = {
    "row_sum": make("Sum of every row", "reduction", "return x.sum(-1)", **_LONG),
    "mean_all": make("Mean of everything", "reduction", "return x.mean()", **_LONG),
    "row_max": make("Maximum of every row", "reduction", "return x.amax(-1)", **_ROWS),
    "argmax": make("Index of every row's maximum", "reduction", "return x.argmax(-1)", **_ROWS),
    "variance": make("Unbiased variance of every row", "reduction", "return x.var(-1)", **_ROWS),
    "logsumexp": make("log(sum(exp(x))) of every row", "reduction", "return torch.logsumexp(x, -1)", **_ROWS),
    "cumsum": make("Running sum of every row", "scan", "return x.cumsum(-1)", **_ROWS),
    "cumprod": make(
        "Running product of values in [0, 1]", "scan", "return x.cumprod(-1)", **_ROWS,
        inputs="torch.rand(rows, cols)", domains={"x": "unit"},
    ),
    "top_eight": make("The eight largest of every row", "selection", "return x.topk(8, -1).values", **_ROWS),
    "triangular": make(
        "Solve (I + tril(f) / n) y = b", "solver",
        "n = f.shape[0]\n        low = torch.tril(f, -1) / n\n        "
        "return torch.linalg.solve_triangular(low, b, upper=False, unitriangular=True)",
        even={"n": 64, "cols": 96}, odd={"n": 45, "cols": 51}, arguments="f, b",
        inputs="torch.randn(n, n), torch.randn(n, cols)",
    ),
}  # fmt: skip

_NORMS = {
    "layernorm": make(
        "LayerNorm with weight and bias", "normalization", "return self.norm(x)", **_ROWS,
        init="self.norm = nn.LayerNorm(cols)", init_values="cols",
    ),
    "rmsnorm": make("RMSNorm with a weight", "normalization", f"return {_RMS} * self.weight", **_ROWS,
                    init=_WEIGHT, init_values="cols"),
    "residual_norm": make(
        "RMSNorm of a sum, with a weight", "normalization", f"x = x + residual\n        return {_RMS} * self.weight",
        **_ROWS, arguments="x, residual", inputs="torch.randn(rows, cols), torch.randn(rows, cols)", init=_WEIGHT,
        init_values="cols",
    ),
    "norm_and_rstd": make(
        "RMSNorm and the factor that it used: two outputs", "normalization",
        "rstd = torch.rsqrt(x.square().mean(-1) + 1e-6)\n        return x * rstd[:, None] * self.weight, rstd", **_ROWS,
        init=_WEIGHT, init_values="cols",
    ),
    "softmax": make("Softmax over the last dimension", "softmax", "return torch.softmax(x, -1)", **_ROWS),
    "masked_softmax": make(
        "Softmax where a mask allows; NaN rows where it allows nothing", "softmax",
        "return torch.softmax(x.masked_fill(~(mask > 0), float('-inf')), -1)", **_ROWS, arguments="x, mask",
        inputs="torch.randn(rows, cols), "
        "(torch.rand(rows, cols) < 0.5).float() * (torch.arange(rows) % 7 > 0)[:, None]",
        domains={"mask": "fixed"},
    ),
    "cross_entropy": make(
        "Mean cross-entropy of logits against classes", "loss", "return F.cross_entropy(logits, target)",
        even={"rows": 128, "classes": 1000}, odd={"rows": 61, "classes": 333}, arguments="logits, target",
        inputs="torch.randn(rows, classes), torch.randint(classes, (rows,))",
        domains={"logits": "real", "target": {"index": "classes"}},
    ),
    "groupnorm_mean": make(
        "Mean over a GroupNorm: zero while its parameters are at their identity", "normalization",
        "return self.norm(x).mean((1, 2))", even={"rows": 32, "cols": 512}, odd={"rows": 13, "cols": 333},
        inputs="torch.randn(rows, 16, cols)", init="self.norm = nn.GroupNorm(4, 16)",
    ),
    "batchnorm": make(
        "BatchNorm in training: also moves its running statistics", "normalization", "return self.norm(x)", **_ROWS,
        init="self.norm = nn.BatchNorm1d(cols)", init_values="cols",
    ),
}  # fmt: skip

_PRODUCTS = {
    "matmul": make(
        "Matrix product", "matmul", "return a @ b", even={"m": 96, "n": 128, "k": 512},
        odd={"m": 61, "n": 77, "k": 333}, arguments="a, b", inputs="torch.randn(m, k), torch.randn(k, n)",
    ),
    "product": make(
        "Matrix product that takes milliseconds", "matmul", "return a @ b", even={"m": 384, "n": 384, "k": 384},
        odd={"m": 301, "n": 333, "k": 397}, arguments="a, b", inputs="torch.randn(m, k), torch.randn(k, n)",
    ),
    "projection": make(
        "Product with a weight", "matmul", "return x @ self.weight", even={"rows": 1024, "cols": 256},
        odd={"rows": 1013, "cols": 253}, init="self.weight = nn.Parameter(torch.randn(cols, 512))", init_values="cols",
    ),
    "linear": make(
        "Linear layer", "matmul", "return self.layer(x)", even={"rows": 96, "cols": 256}, odd={"rows": 61, "cols": 133},
        init="self.layer = nn.Linear(cols, 80)", init_values="cols",
    ),
    "conv1d": make(
        "Convolution with seven taps, padded", "convolution", "return self.conv(x)",
        even={"batch": 4, "length": 512}, odd={"batch": 3, "length": 333}, inputs="torch.randn(batch, 8, length)",
        init="self.conv = nn.Conv1d(8, 8, 7, padding=3)",
    ),
    "attention": make(
        "Attention of one head", "attention", "return F.scaled_dot_product_attention(q, k, v)",
        even={"heads": 2, "length": 128}, odd={"heads": 3, "length": 77}, arguments="q, k, v",
        inputs="*(torch.randn(heads, length, 32) for _ in range(3))",
    ),
    "embedding": make(
        "Rows of a table", "gather", "return self.table(ids)", **_VOCAB, arguments="ids",
        inputs="torch.randint(vocab, (tokens,))", domains=_IDS, init="self.table = nn.Embedding(vocab, dim)",
        init_values="vocab, dim",
    ),
    "embedding_grad": make(
        "Gradient of an embedding table: rows added up by id", "scatter",
        "return grad.new_zeros(self.vocab, grad.shape[1]).index_add_(0, ids, grad)", **_VOCAB,
        arguments="ids, grad", inputs="torch.randint(vocab, (tokens,)), torch.randn(tokens, dim)", domains=_IDS,
        init="self.vocab = vocab", init_values="vocab",
    ),
}  # fmt: skip

_HALF = {
    "matmul_bf16": make(
        "Matrix product in bfloat16", "matmul", "return a @ b", even={"m": 64, "n": 96, "k": 1024},
        odd={"m": 61, "n": 77, "k": 777}, arguments="a, b",
        inputs="torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()",
    ),
    "row_sum_fp16": make("Sum of every row in float16", "reduction", "return x.sum(-1)", **_LONG,
                         inputs="torch.randn(rows, cols).half()"),
}  # fmt: skip

_BACKWARD = {
    "scale_shift_train": make(
        "x * scale + shift, forward and backward", "elementwise", "return x * self.scale + self.shift", **_ROWS,
        init_values="cols", backward=True,
        init="self.scale = nn.Parameter(torch.ones(cols))\n        self.shift = nn.Parameter(torch.zeros(cols))",
    ),
    "rmsnorm_train": make("RMSNorm, forward and backward", "normalization", f"return {_RMS} * self.weight", **_ROWS,
                          init=_WEIGHT, init_values="cols", backward=True),
    "gelu_train": make("GELU, forward and backward", "elementwise", "return F.gelu(x)", **_ROWS, backward=True),
    "embedding_train": make(
        "Rows of a table, forward and backward", "gather", "return F.embedding(ids, self.weight)", **_VOCAB,
        arguments="ids", inputs="torch.randint(vocab, (tokens,))", domains=_IDS, backward=True,
        init="self.weight = nn.Parameter(torch.randn(vocab, dim))", init_values="vocab, dim",
    ),
    "product_train": make(
        "a * b, forward and backward", "elementwise", "return a * b", **_ROWS, arguments="a, b", backward=True,
        inputs="torch.randn(rows, cols), torch.randn(rows, cols)",
    ),
}  # fmt: skip

_LISTS = {
    "histogram": make(
        "How often each number occurs", "reduction", "return torch.bincount(ids, minlength=self.bins)",
        even={"count": 100000, "bins": 64}, odd={"count": 30011, "bins": 301}, arguments="ids",
        inputs="torch.randint(bins, (count,))", domains={"ids": {"index": "bins"}}, init="self.bins = bins",
        init_values="bins",
    ),
    "ragged_sum": make(
        "Sums of rows of different lengths, which lie one behind the other", "reduction",
        "number = torch.arange(offsets.numel() - 1, device=x.device)\n        "
        "row = torch.repeat_interleave(number, offsets.diff(), output_size=x.numel())\n        "
        "return x.new_zeros(number.numel()).index_add(0, row, x)",
        even={"rows": 64, "total": 16384}, odd={"rows": 37, "total": 9001}, arguments="x, offsets",
        inputs="torch.randn(total), torch.cat((torch.zeros(min(rows, 1), dtype=torch.int64), "
        "torch.randint(total + 1, (max(rows - 1, 0),)).sort().values, torch.full((1,), total)))",
        domains={"offsets": "ascending"},
    ),
    "keyed": make(
        "The value of each id in a sorted list of keys, or -1", "gather",
        "places = torch.searchsorted(keys, ids).clamp_max(keys.numel() - 1)\n        "
        "return torch.where(keys[places] == ids, values[places], -1.0)",
        even={"count": 4096, "keys": 512, "space": 2048}, odd={"count": 2051, "keys": 301, "space": 1201},
        arguments="ids, keys, values",
        inputs="torch.randint(space, (count,)), torch.randperm(space)[:keys].sort().values, torch.randn(keys)",
        domains={"ids": {"index": "space"}, "keys": "strictly_ascending"},
    ),
}  # fmt: skip

PROBLEMS: dict[str, str] = {**_POINTWISE, **_REDUCTIONS, **_NORMS, **_PRODUCTS, **_HALF, **_BACKWARD, **_LISTS}
"""Problem files by name."""


def source_of(name: str) -> str:
    """The file of a problem: one of the corpus, or a bundled one. Raises KeyError."""
    return PROBLEMS[name] if name in PROBLEMS else bundled()[name].source
