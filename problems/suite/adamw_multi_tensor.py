"""One step of AdamW for all of a model's tensors, which lie behind one another in flat buffers.

The 300 tensors are those of a Llama of 33 layers: nine a layer, the embedding, the last norm and the head. Norms do not
decay, matrices do. Flat buffers are what sharded optimizers keep; a kernel must find each element's tensor by itself.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import torch
from torch import nn

SPEC = {
    "summary": "AdamW step over 300 tensors in flat buffers, weight decay by tensor, 32-bit state",
    "op_family": "pointwise",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"layers": 2, "hidden": 32, "inner": 88, "vocab": 128}},
        {"name": "odd", "for": "cpu", "params": {"layers": 3, "hidden": 37, "inner": 101, "vocab": 257}},
        {"name": "large", "for": "cpu", "params": {"layers": 33, "hidden": 48, "inner": 128, "vocab": 1000}},
        {
            "name": "small_bf16",
            "for": "gpu",
            "params": {"layers": 33, "hidden": 128, "inner": 352, "vocab": 4000, "dtype": "bfloat16"},
        },
        {
            "name": "bf16",
            "for": "gpu",
            "params": {"layers": 33, "hidden": 512, "inner": 1408, "vocab": 16000, "dtype": "bfloat16"},
        },
        {
            "name": "fp32",
            "for": "gpu",
            "params": {"layers": 33, "hidden": 512, "inner": 1408, "vocab": 16000, "dtype": "float32"},
        },
        {
            "name": "odd_fp16",
            "for": "gpu",
            "params": {"layers": 33, "hidden": 251, "inner": 677, "vocab": 5003, "dtype": "float16"},
        },
    ],
    "domains": {
        "params": "real",
        "grads": "real",
        "exp_avg": "real",
        "exp_avg_sq": "positive",
        "steps": {"index": 100},
    },
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
    "library": {"fused": "Fused"},
}


def sizes_of(layers, hidden, inner, vocab):
    layer = [hidden, *[hidden * hidden] * 4, hidden, *[hidden * inner] * 3]
    return [vocab * hidden, *(layer * layers), hidden, vocab * hidden]


class Model(nn.Module):
    sizes: torch.Tensor
    decays: torch.Tensor

    def __init__(self, sizes, norm, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, decay=0.1):
        super().__init__()
        self.register_buffer("sizes", torch.tensor(sizes))
        self.register_buffer("decays", torch.tensor([0 if size == norm else 1 for size in sizes]))
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, decay

    def forward(self, params, grads, exp_avg, exp_avg_sq, steps):
        beta1, beta2 = self.betas
        grads, step = grads.to(params.dtype), steps.double() + 1  # steps were done before this one
        lr = (self.lr / (1 - beta1**step)).to(params.dtype)
        root = (1 - beta2**step).sqrt().to(params.dtype)
        decays = torch.repeat_interleave(self.decays, self.sizes, output_size=params.numel())
        exp_avg = exp_avg + (1 - beta1) * (grads - exp_avg)
        exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grads * grads
        params = params * (1 - self.lr * self.decay * decays)
        return params - lr * exp_avg / (exp_avg_sq.sqrt() / root + self.eps), exp_avg, exp_avg_sq


class Fused(Model):
    """PyTorch's fused step over lists of tensors. It steps in place, so it is given copies of parameters and state."""

    def __init__(self, sizes, norm, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, decay=0.1):
        super().__init__(sizes, norm, lr, betas, eps, decay)
        self.lengths, self.norm = sizes, norm

    def forward(self, params, grads, exp_avg, exp_avg_sq, steps):
        flat = [params.clone(), grads.to(params.dtype), exp_avg.clone(), exp_avg_sq.clone()]
        parts, step = [each.split(self.lengths) for each in flat], (steps + 1).to(torch.float32).squeeze()
        for norms, decay in ((True, 0.0), (False, self.decay)):
            chosen = [place for place, size in enumerate(self.lengths) if (size == self.norm) == norms]
            own, gradients, averages, squares = ([part[place] for place in chosen] for part in parts)
            torch._fused_adamw_(
                own, gradients, averages, squares, [], [step] * len(chosen), lr=self.lr, beta1=self.betas[0],
                beta2=self.betas[1], weight_decay=decay, eps=self.eps, amsgrad=False, maximize=False,
            )  # fmt: skip
        return flat[0], flat[2], flat[3]


def get_inputs(layers=2, hidden=32, inner=88, vocab=128, dtype="float32"):
    count = sum(sizes_of(layers, hidden, inner, vocab))
    params, grads, exp_avg = torch.randn(count), torch.randn(count).to(getattr(torch, dtype)), torch.randn(count)
    return [params, grads, exp_avg, torch.rand(count) + 1e-3, torch.randint(100, (1,))]


def get_init_inputs(layers=2, hidden=32, inner=88, vocab=128):
    return [sizes_of(layers, hidden, inner, vocab), hidden]
