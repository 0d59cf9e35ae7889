"""Short ways to write Triton candidates: the module text, one program for each row, one number for each row."""

from __future__ import annotations

from tests.redteam.entry import Entry
from tests.redteam.honest.building import entry, method

MODULE = """import torch
import triton
import triton.language as tl
from torch import nn

HEAD
KERNELS


class ModelNew(nn.Module):
INIT
FORWARD
"""
SAME = """
def forward(self, x):
    x = x.contiguous()
    out = torch.empty_like(x)
    n = x.shape[-1]
    rows = x.numel() // max(1, n)
    if rows:
        LAUNCH
    return out
"""
WHOLE = "kernel[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n))"
LOOP = "kernel[(rows,)](x, out, n, BLOCK=128)"


def triton_candidate(
    id: str, title: str, problem: str, kernels: str, forward: str, *, init: str = "", head: str = "", share: float = 0.9
) -> Entry:
    """A Triton candidate; it also runs in the interpreter, where there is no GPU."""
    holes = {
        "HEAD": head.strip(),
        "KERNELS": kernels.strip(),
        "INIT": method(init).rstrip() + "\n" if init else "",
        "FORWARD": method(forward),
    }
    source = MODULE
    for hole, text in holes.items():
        source = source.replace(hole, text, 1)
    return entry(f"triton-{id}", title, problem, source, language="triton", needs="gpu", share=share)
