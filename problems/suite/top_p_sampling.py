"""Nucleus sampling: of each row's tokens, the fewest most probable ones that have mass p together, and one of them.

The random number is an input, so that the token is determined, which is more than a test of the distribution tells.
No honest rounding chooses another one: masses are kept in float64, and the order of their sum moves them by 1e-14,
which crosses one of 100,000 boundaries once in a thousand million rows. The number lies in the middle of one of 2^31
cells, and the last 1e-9 of p counts for nothing, so that rows of equal logits lie on no boundary either. Of equal
logits the lower number comes first; NaN is never drawn.
"""

# mypy: allow-untyped-defs

import torch
from torch import nn

SPEC = {
    "summary": "Top-p sampling of one token a row from given random numbers; also how many were kept, and their mass",
    "op_family": "softmax",
    "workloads": [
        {"name": "small", "for": "cpu", "params": {"rows": 8, "vocab": 500}},
        {"name": "odd", "for": "cpu", "params": {"rows": 13, "vocab": 1021}},
        {"name": "large", "for": "cpu", "params": {"rows": 32, "vocab": 8000}},
        {"name": "small_fp32", "for": "gpu", "params": {"rows": 4, "vocab": 32000}},
        {"name": "fp32", "for": "gpu", "params": {"rows": 64, "vocab": 128256}},
        {"name": "many_fp32", "for": "gpu", "params": {"rows": 512, "vocab": 32000}},
        {"name": "bf16", "for": "gpu", "params": {"rows": 256, "vocab": 128256, "dtype": "bfloat16"}},
        {"name": "odd_fp32", "for": "gpu", "params": {"rows": 61, "vocab": 50257}},
    ],
    "domains": {"logits": "real", "p": "unit", "number": {"index": 2147483648}},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}

_LARGE = 1e30


class Model(nn.Module):
    def forward(self, logits, p, number):
        wide = torch.nan_to_num(logits.double(), nan=-torch.inf, posinf=_LARGE, neginf=-torch.inf)
        ordered = torch.sort(wide, dim=-1, descending=True, stable=True)
        mass = torch.softmax(ordered.values, dim=-1)
        upto = mass.cumsum(dim=-1)
        kept = (upto - mass < p.double()[:, None] - 1e-9) & (mass > 0)
        kept[:, 0] = True
        count = kept.sum(dim=-1)
        total = upto.gather(1, count[:, None] - 1)
        wanted = (number.double() + 0.5)[:, None] / 2147483648 * total
        place = (upto <= wanted).sum(dim=-1, keepdim=True).minimum(count[:, None] - 1)
        return ordered.indices.gather(1, place)[:, 0], count, total[:, 0].to(p.dtype)


def get_inputs(rows=8, vocab=500, dtype="float32"):
    logits = 3 * torch.randn(rows, vocab)
    return [logits.to(getattr(torch, dtype)), 0.5 + 0.5 * torch.rand(rows), torch.randint(2147483648, (rows,))]


def get_init_inputs():
    return []
