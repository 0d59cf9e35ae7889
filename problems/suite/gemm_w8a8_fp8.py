"""A linear layer in 8-bit floats (e4m3): activations with a scale for each row, weights with one for each output, bias.

8-bit floats are 16-bit floats too, so the products are exact in either; sums are kept in float32.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import torch
from torch import nn

SPEC = {
    "summary": "8-bit float activations times 8-bit float weights, a scale for each row and each output, bias",
    "op_family": "matmul",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 32, "inner": 64, "outer": 96}},
        {"name": "odd", "for": "cpu", "params": {"rows": 67, "inner": 112, "outer": 131}},
        {"name": "large", "for": "cpu", "params": {"rows": 128, "inner": 512, "outer": 512}},
        {"name": "few_bf16", "for": "gpu", "params": {"rows": 16, "inner": 4096, "outer": 14336, "dtype": "bfloat16"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 4096, "inner": 4096, "outer": 14336, "dtype": "bfloat16"}},
        {
            "name": "tall_bf16",
            "for": "gpu",
            "params": {"rows": 8192, "inner": 8192, "outer": 1024, "dtype": "bfloat16"},
        },
        {"name": "odd_fp16", "for": "gpu", "params": {"rows": 1021, "inner": 2032, "outer": 3001, "dtype": "float16"}},
    ],
    "domains": {"x": "real", "weight": "real", "x_scale": "positive", "weight_scale": "positive"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"scaled_mm": "ScaledMm"},
}


class Model(nn.Module):
    def __init__(self, outer, dtype="float32"):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(outer, dtype=getattr(torch, dtype)))

    def forward(self, x, weight, x_scale, weight_scale):
        kind = self.bias.dtype
        product = x.to(kind) @ weight.to(kind).t()
        return (product * x_scale[:, None] * weight_scale + self.bias).to(kind)


class ScaledMm(Model):
    """The vendor's 8-bit product with a scale for each row and each output. It takes bfloat16 outputs and sizes in
    sixteens: other workloads are the reference's on a GPU, and nothing on a CPU."""

    def forward(self, x, weight, x_scale, weight_scale):
        if self.bias.dtype is not torch.bfloat16 or weight.shape[0] % 16 or weight.shape[1] % 16:
            if not x.is_cuda:
                raise RuntimeError("products with scales for rows have bfloat16 outputs, and sizes in sixteens")
            return super().forward(x, weight, x_scale, weight_scale)
        scales = {"scale_a": x_scale[:, None], "scale_b": weight_scale[None]}
        return torch._scaled_mm(x, weight.t(), **scales, bias=self.bias, out_dtype=self.bias.dtype)


def get_inputs(rows=32, inner=64, outer=96):
    x, weight = (torch.randn(size, inner).to(torch.float8_e4m3fn) for size in (rows, outer))
    return [x, weight, torch.rand(rows) + 0.5, (torch.rand(outer) + 0.5) / inner**0.5]


def get_init_inputs(outer=96, dtype="float32"):
    return [outer, dtype]
