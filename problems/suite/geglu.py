"""The gate of a Gemma feed-forward layer: GELU (tanh form) of one projection times the other."""

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
    "summary": "GELU in its tanh form of the gate times the other projection",
    "op_family": "pointwise",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 256, "hidden": 512, "dtype": "float32"}},
        {"name": "odd", "for": "cpu", "params": {"rows": 509, "hidden": 1031, "dtype": "float32"}},
        {"name": "large", "for": "cpu", "params": {"rows": 1024, "hidden": 2048, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 256, "hidden": 12288, "dtype": "bfloat16"}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 8192, "hidden": 16384, "dtype": "bfloat16"}},
        {"name": "fp16", "for": "gpu", "params": {"rows": 4096, "hidden": 12288, "dtype": "float16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 4093, "hidden": 5003, "dtype": "float32"}},
    ],
    "domains": {"gate": "real", "up": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
    "library": {"liger": "Liger"},
}


class Model(nn.Module):
    def forward(self, gate, up):
        return F.gelu(gate, approximate="tanh") * up


class Liger(Model):
    """What libraries of fused Triton kernels for training do: a program a row, and the backward takes GELU again."""

    def forward(self, gate, up):
        return FusedGate.apply(gate, up)


class FusedGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        gate, up = gate.contiguous(), up.contiguous()
        y, columns = torch.empty_like(gate), gate.shape[-1]
        grid, launch = (gate.numel() // columns,), launch_of(gate, columns)
        gate_forward[grid](gate, up, y, columns, **launch)
        ctx.save_for_backward(gate, up)
        return y

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        dgate, dup, columns = torch.empty_like(gate), torch.empty_like(up), gate.shape[-1]
        grid, launch = (gate.numel() // columns,), launch_of(gate, columns)
        gate_backward[grid](dy.contiguous(), gate, up, dgate, dup, columns, **launch)
        return dgate, dup


def get_inputs(rows=256, hidden=512, dtype="float32"):
    return [torch.randn(rows, hidden).to(getattr(torch, dtype)) for _ in range(2)]


def get_init_inputs():
    return []


def launch_of(x, columns):
    """The width of a program's row, and its warps. Raises RuntimeError."""
    if triton is None or not (x.is_cuda or triton.knobs.runtime.interpret):
        raise RuntimeError("Triton's kernels need Triton and a GPU")
    block = min(triton.next_power_of_2(columns), 65536)
    return {"BLOCK": block, "num_warps": 4 if block < 2048 else 8 if block < 8192 else 16 if block < 32768 else 32}


if triton is not None:

    @triton.jit
    def gate_forward(gate, up, y, columns, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        inside, here = at < columns, tl.program_id(0).to(tl.int64) * columns + at
        g, u = tl.load(gate + here, inside, 0.0).to(tl.float32), tl.load(up + here, inside, 0.0).to(tl.float32)
        # 1 + tanh(t) is twice the sigmoid of 2 t, with t = sqrt(2 / pi) * (g + 0.044715 g^3)
        s = tl.sigmoid(1.5957691216057308 * g * (1.0 + 0.044715 * g * g))
        tl.store(y + here, g * s * u, inside)

    @triton.jit
    def gate_backward(dy, gate, up, dgate, dup, columns, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        inside, here = at < columns, tl.program_id(0).to(tl.int64) * columns + at
        g, u = tl.load(gate + here, inside, 0.0).to(tl.float32), tl.load(up + here, inside, 0.0).to(tl.float32)
        d = tl.load(dy + here, inside, 0.0).to(tl.float32)
        s = tl.sigmoid(1.5957691216057308 * g * (1.0 + 0.044715 * g * g))
        slope = 1.5957691216057308 * (1.0 + 0.134145 * g * g)
        tl.store(dgate + here, d * u * s * (1.0 + g * (1.0 - s) * slope), inside)
        tl.store(dup + here, d * g * s, inside)
