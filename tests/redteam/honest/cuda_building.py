"""Short ways to write CUDA C++ candidates: the module text, sums and maxima of a warp or a block."""

from __future__ import annotations

from tests.redteam.entry import Entry
from tests.redteam.honest.building import entry, method

MODULE = '''import torch
from torch import nn

from kernelwright import load_cuda

SOURCE = r"""
CODE
"""
mod = load_cuda(SOURCE)


def dense(t, dtype=torch.float32):
    if t.dtype != dtype:
        raise TypeError(f"this kernel takes {dtype}, not {t.dtype}")
    return t.contiguous()


class ModelNew(nn.Module):
@INIT
@FORWARD
'''
SAME = """
def forward(self, x):
    x = dense(x)
    out = torch.empty_like(x)
    n = x.shape[-1]
    rows = x.numel() // max(1, n)
    if rows:
        LAUNCH
    return out
"""
EACH = "mod.run[(rows,), (64,), 0](x, out, n)"
WARPS = """
__device__ float warp_sum(float v) {
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__device__ float warp_max(float v) {
    for (int d = 16; d; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
"""
HEAD = """extern "C" __global__ void run(const float* x, float* y, int n) {
    const float* a = x + blockIdx.x * (long long)n;
    float* b = y + blockIdx.x * (long long)n;
"""


def cuda(id: str, title: str, problem: str, code: str, forward: str, *, init: str = "", share: float = 0.9) -> Entry:
    source = MODULE
    for hole, text in {"CODE": code.strip(), "@INIT": method(init).rstrip(), "@FORWARD": method(forward)}.items():
        source = source.replace(hole, text, 1)
    return entry(f"cuda-{id}", title, problem, source, language="cuda", needs="gpu", share=share)
