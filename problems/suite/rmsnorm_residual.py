"""The joint of a transformer block: add the residual stream, then RMSNorm."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
from torch import nn
from torch.nn import functional as F

try:
    import triton
    import triton.language as tl
except ImportError:  # then `Liger` is no baseline here; nothing else needs it
    triton = None

SPEC = {
    "summary": "Residual addition followed by RMSNorm with a weight",
    "op_family": "normalization",
    "workloads": [
        {
            "name": "small",
            "for": "cpu",
            "params": {"rows": 1024, "hidden": 1024, "dtype": "float32"},
            "backward": False,
        },
        {"name": "odd", "for": "cpu", "params": {"rows": 1021, "hidden": 1531, "dtype": "float32"}, "backward": False},
        {
            "name": "large",
            "for": "cpu",
            "params": {"rows": 1024, "hidden": 2048, "dtype": "float32"},
            "backward": False,
        },
        {"name": "fp32", "for": "gpu", "params": {"rows": 16384, "hidden": 4096, "dtype": "float32"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 16384, "hidden": 8192, "dtype": "bfloat16"}},
        {"name": "narrow_fp16", "for": "gpu", "params": {"rows": 65536, "hidden": 1024, "dtype": "float16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 8191, "hidden": 5003, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 512, "hidden": 4096, "dtype": "bfloat16"}},
    ],
    "domains": {"x": "real", "residual": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
    "library": {"fused": "Fused", "liger": "Liger"},
}


class Model(nn.Module):
    def __init__(self, hidden, eps=1e-6, dtype="float32"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
        self.eps = eps

    def forward(self, x, residual):
        h = x + residual
        return h * torch.rsqrt(h.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.weight


class Fused(Model):
    """PyTorch's own RMSNorm."""

    def forward(self, x, residual):
        return F.rms_norm(x + residual, self.weight.shape, self.weight, self.eps)


class Liger(Model):
    """What libraries of fused Triton kernels for training do: a program a row, and the sum is never stored."""

    def forward(self, x, residual):
        return FusedAddNorm.apply(x, residual, self.weight, self.eps)


class FusedAddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        columns = x.shape[-1]
        x, residual = x.contiguous(), residual.contiguous()
        y, rows = torch.empty_like(x), x.numel() // columns
        launch = launch_of(x, columns)
        rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
        norm_forward[(rows,)](x, residual, weight, y, rstd, columns, eps, **launch)
        ctx.save_for_backward(x, residual, weight, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, residual, weight, rstd = ctx.saved_tensors
        columns, programs = x.shape[-1], programs_of(x)
        dx = torch.empty_like(x)
        parts = torch.empty(programs, columns, dtype=torch.float32, device=x.device)
        norm_backward[(programs,)](
            dy.contiguous(), x, residual, weight, rstd, dx, parts, len(rstd), columns, **launch_of(x, columns)
        )
        return dx, dx, parts.sum(dim=0).to(weight.dtype), None


def get_inputs(rows=512, hidden=768, dtype="float32"):
    return [torch.randn(rows, hidden).to(getattr(torch, dtype)) for _ in range(2)]


def get_init_inputs(hidden=768, dtype="float32"):
    return [hidden, 1e-6, dtype]


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
    def norm_forward(x, residual, weight, y, rstd, columns, eps, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        inside, row = at < columns, tl.program_id(0).to(tl.int64)
        here = row * columns + at
        h = tl.load(x + here, inside, 0.0).to(tl.float32) + tl.load(residual + here, inside, 0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(h * h) / columns + eps)
        tl.store(rstd + row, scale)
        tl.store(y + here, h * scale * tl.load(weight + at, inside, 0.0).to(tl.float32), inside)

    @triton.jit
    def norm_backward(dy, x, residual, weight, rstd, dx, parts, rows, columns, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        inside, mine = at < columns, tl.cdiv(rows, tl.num_programs(0))
        first = tl.program_id(0) * mine
        w = tl.load(weight + at, inside, 0.0).to(tl.float32)
        dw = tl.zeros((BLOCK,), tl.float32)
        for row in range(first, min(first + mine, rows)):
            here = tl.cast(row, tl.int64) * columns + at
            h = tl.load(x + here, inside, 0.0).to(tl.float32) + tl.load(residual + here, inside, 0.0).to(tl.float32)
            scale, d = tl.load(rstd + row), tl.load(dy + here, inside, 0.0).to(tl.float32)
            h *= scale
            dw += d * h
            d *= w
            tl.store(dx + here, scale * (d - h * (tl.sum(d * h) / columns)), inside)
        tl.store(parts + tl.program_id(0).to(tl.int64) * columns + at, dw, inside)
