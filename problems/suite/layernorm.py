"""LayerNorm over the last dimension, with weight and bias."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
from torch import nn

try:
    import triton
    import triton.language as tl
except ImportError:  # then `Liger` is no baseline here; nothing else needs it
    triton = None

SPEC = {
    "summary": "LayerNorm over the last dimension, with weight and bias",
    "op_family": "normalization",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 2048, "hidden": 768, "dtype": "float32"}, "backward": False},
        {"name": "odd", "for": "cpu", "params": {"rows": 1021, "hidden": 2039, "dtype": "float32"}, "backward": False},
        {
            "name": "large",
            "for": "cpu",
            "params": {"rows": 2048, "hidden": 2048, "dtype": "float32"},
            "backward": False,
        },
        {"name": "fp32", "for": "gpu", "params": {"rows": 16384, "hidden": 4096, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 32768, "hidden": 4096, "dtype": "bfloat16"}},
        {"name": "narrow_fp16", "for": "gpu", "params": {"rows": 131072, "hidden": 768, "dtype": "float16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 8191, "hidden": 5003, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 512, "hidden": 4096, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
    "library": {"liger": "Liger"},
}


class Model(nn.Module):
    def __init__(self, hidden, dtype="float32"):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, dtype=getattr(torch, dtype))

    def forward(self, x):
        return self.norm(x)


class Liger(Model):
    """What libraries of fused Triton kernels for training do: a program a row, parameters' gradients in parts."""

    def forward(self, x):
        return FusedNorm.apply(x, self.norm.weight, self.norm.bias, self.norm.eps)


class FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        columns = x.shape[-1]
        x, rows = x.contiguous(), x.numel() // columns
        y, launch = torch.empty_like(x), launch_of(x, columns)
        mean, rstd = torch.empty(2, rows, dtype=torch.float32, device=x.device)
        norm_forward[(rows,)](x, weight, bias, y, mean, rstd, columns, eps, **launch)
        ctx.save_for_backward(x, weight, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, mean, rstd = ctx.saved_tensors
        columns, programs = x.shape[-1], programs_of(x)
        dx = torch.empty_like(x)
        parts = torch.empty(2, programs, columns, dtype=torch.float32, device=x.device)
        norm_backward[(programs,)](
            dy.contiguous(), x, weight, mean, rstd, dx, *parts, len(rstd), columns, **launch_of(x, columns)
        )
        dweight, dbias = parts.sum(dim=1).to(weight.dtype)
        return dx, dweight, dbias, None


def get_inputs(rows=512, hidden=768, dtype="float32"):
    return [torch.randn(rows, hidden).to(getattr(torch, dtype))]


def get_init_inputs(hidden=768, dtype="float32"):
    return [hidden, dtype]


def launch_of(x, columns):
    """The width of a program's row, and its warps. Raises RuntimeError."""
    if triton is None or not (x.is_cuda or triton.knobs.runtime.interpret):
        raise RuntimeError("Triton's kernels need Triton and a GPU")
    block = min(triton.next_power_of_2(columns), 65536)
    return {"BLOCK": block, "num_warps": 4 if block < 2048 else 8 if block < 8192 else 16 if block < 32768 else 32}


def programs_of(x):
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 4


if triton is not None:

    @triton.jit
    def norm_forward(x, weight, bias, y, mean, rstd, columns, eps, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        inside, row = at < columns, tl.program_id(0).to(tl.int64)
        here = row * columns + at
        v = tl.load(x + here, inside, 0.0).to(tl.float32)
        middle = tl.sum(v) / columns
        v = tl.where(inside, v - middle, 0.0)
        scale = tl.rsqrt(tl.sum(v * v) / columns + eps)
        tl.store(mean + row, middle)
        tl.store(rstd + row, scale)
        w, b = tl.load(weight + at, inside, 0.0).to(tl.float32), tl.load(bias + at, inside, 0.0).to(tl.float32)
        tl.store(y + here, v * scale * w + b, inside)

    @triton.jit
    def norm_backward(dy, x, weight, mean, rstd, dx, dweights, dbiases, rows, columns, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        inside, mine = at < columns, tl.cdiv(rows, tl.num_programs(0))
        first = tl.program_id(0) * mine
        w = tl.load(weight + at, inside, 0.0).to(tl.float32)
        dw, db = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for row in range(first, min(first + mine, rows)):
            here = tl.cast(row, tl.int64) * columns + at
            scale, d = tl.load(rstd + row), tl.load(dy + here, inside, 0.0).to(tl.float32)
            v = (tl.load(x + here, inside, 0.0).to(tl.float32) - tl.load(mean + row)) * scale
            dw += d * v
            db += d
            d *= w
            inner, outer = tl.sum(d * v) / columns, tl.sum(d) / columns
            tl.store(dx + here, scale * (d - v * inner - outer), inside)
        place = tl.program_id(0).to(tl.int64) * columns + at
        tl.store(dweights + place, dw, inside)
        tl.store(dbiases + place, db, inside)
