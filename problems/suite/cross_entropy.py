"""Cross-entropy of logits against class indices, averaged over rows that are not ignored: a language model's loss."""

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
    "summary": "Mean cross-entropy of logits against class indices",
    "op_family": "loss",
    "workloads": [
        {
            "name": "small",
            "for": "cpu",
            "params": {"rows": 1024, "classes": 1000, "dtype": "float32"},
            "backward": False,
        },
        {"name": "odd", "for": "cpu", "params": {"rows": 1021, "classes": 2039, "dtype": "float32"}, "backward": False},
        {
            "name": "large",
            "for": "cpu",
            "params": {"rows": 256, "classes": 32000, "dtype": "float32"},
            "backward": False,
        },
        {
            "name": "ignoring",
            "for": "cpu",
            "params": {"rows": 509, "classes": 3001, "ignored": 0.2, "dtype": "float32"},
            "backward": False,
        },
        {"name": "bf16", "for": "gpu", "params": {"rows": 8192, "classes": 32000, "dtype": "bfloat16"}},
        {"name": "wide_bf16", "for": "gpu", "params": {"rows": 2048, "classes": 128256, "dtype": "bfloat16"}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 4096, "classes": 32000, "dtype": "float32"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 2039, "classes": 50257, "dtype": "float32"}},
        {"name": "small_bf16", "for": "gpu", "params": {"rows": 512, "classes": 32000, "dtype": "bfloat16"}},
        {
            "name": "smoothed_bf16",
            "for": "gpu",
            "params": {"rows": 4096, "classes": 32000, "smoothing": 0.1, "ignored": 0.2, "dtype": "bfloat16"},
        },
    ],
    "domains": {"logits": "real", "target": {"index": "classes"}},
    "precision": {"compute": "float32", "tf32": False},
    "backward": True,
    "library": {"liger": "Liger"},
}


class Model(nn.Module):
    def __init__(self, smoothing=0.0):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        return F.cross_entropy(logits, target, ignore_index=-100, label_smoothing=self.smoothing)


class Liger(Model):
    """What libraries of fused Triton kernels for training do: the gradient is made with the loss, chunk by chunk."""

    def forward(self, logits, target):
        return FusedLoss.apply(logits, target, self.smoothing)


class FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, smoothing):
        logits, (rows, classes) = logits.contiguous(), logits.shape
        trains, launch = ctx.needs_input_grad[0], launch_of(logits, min(classes, 32768))
        losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
        gradient = torch.empty_like(logits) if trains else logits
        counted = (target != -100).sum()
        loss_and_gradient[(rows,)](logits, target, counted, losses, gradient, classes, smoothing, trains, **launch)
        ctx.save_for_backward(gradient)
        return (losses.sum() / counted).to(logits.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.saved_tensors[0] * grad_output, None, None


def get_inputs(rows=256, classes=1000, ignored=0.0, dtype="float32"):
    target = torch.randint(classes, (rows,))
    if ignored:  # such as padding and prompts, which are not learned
        target = torch.where(torch.rand(rows) < ignored, -100, target)
    return [torch.randn(rows, classes).to(getattr(torch, dtype)), target]


def get_init_inputs(smoothing=0.0):
    return [smoothing]


def launch_of(x, columns):
    """The width of a program's row, and its warps. Raises RuntimeError."""
    if triton is None or not (x.is_cuda or triton.knobs.runtime.interpret):
        raise RuntimeError("Triton's kernels need Triton and a GPU")
    block = min(triton.next_power_of_2(columns), 65536)
    return {"BLOCK": block, "num_warps": 4 if block < 2048 else 8 if block < 8192 else 16 if block < 32768 else 32}


if triton is not None:

    @triton.jit
    def loss_and_gradient(
        logits, target, counted, losses, gradient, classes,
        SMOOTHING: tl.constexpr, TRAINS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        label, at = tl.load(target + row), tl.arange(0, BLOCK)
        logits += row * classes
        gradient += row * classes
        learned = label != -100
        top, total, plain = float("-inf"), 0.0, 0.0
        if learned:
            for start in range(0, classes, BLOCK):
                inside = start + at < classes
                v = tl.load(logits + start + at, inside, float("-inf")).to(tl.float32)
                higher = tl.maximum(top, tl.max(v))
                total = total * tl.exp(top - higher) + tl.sum(tl.exp(v - higher))
                top = higher
                if SMOOTHING > 0:
                    plain += tl.sum(tl.where(inside, v, 0.0))
            loss = tl.log(total) + top - (1.0 - SMOOTHING) * tl.load(logits + label).to(tl.float32)
            tl.store(losses + row, loss - SMOOTHING * plain / classes)
        else:
            tl.store(losses + row, 0.0)
        if TRAINS:
            share = 1.0 / tl.load(counted).to(tl.float32)
            for start in range(0, classes, BLOCK):
                inside = start + at < classes
                d = tl.zeros((BLOCK,), tl.float32)
                if learned:
                    v = tl.load(logits + start + at, inside, float("-inf")).to(tl.float32)
                    d = tl.exp(v - top) / total - SMOOTHING / classes
                    d = (d - tl.where(start + at == label, 1.0 - SMOOTHING, 0.0)) * share
                tl.store(gradient + start + at, d, inside)
