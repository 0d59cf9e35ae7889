"""Short ways to write honest candidates: a module text with holes for what makes each one different.

Every C++ candidate is a source with `extern "C"` functions, one forward and, where the reference has state, a
constructor with the same state dict. `ROWS` and its like are the parts that candidates of one problem share.
"""

from __future__ import annotations

import textwrap

from tests.redteam.entry import HONEST, Entry

_MODULE = '''import torch
from torch import nn

from kernelwright import load_cpp

SOURCE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
{code}
"""
lib = load_cpp(SOURCE{flags})


def dense(t, dtype=torch.float32):
    if t.dtype != dtype:
        raise TypeError(f"this kernel takes {{dtype}}, not {{t.dtype}}")
    return t.contiguous()


class ModelNew(nn.Module):
{init}{forward}
'''

SAME = """
def forward(self, x):
    x = dense(x)
    out = torch.empty_like(x)
    lib.run(x, out, x.numel() // max(1, x.shape[-1]), x.shape[-1])
    return out
"""
"""One tensor in, one of its shape out, row by row."""

REDUCED = """
def forward(self, x):
    x = dense(x)
    out = torch.empty(x.shape[:-1])
    lib.run(x, out, out.numel(), x.shape[-1])
    return out
"""
"""One tensor in, one number for each row out."""

EACH_ROW = """
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) row(x + r * n, y + r * n, n);
}
"""
EACH_SUM = """
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) y[r] = total(x + r * n, n);
}
"""


def cpp(
    id: str,
    title: str,
    problem: str,
    code: str,
    forward: str = SAME,
    *,
    init: str = "",
    flags: tuple[str, ...] = (),
    share: float = 0.9,
) -> Entry:
    """A C++ candidate: `code` after the usual headers, `forward` (and `init`) as methods without indentation."""
    source = _MODULE.format(
        code=textwrap.dedent(code).strip(),
        flags=f", flags={list(flags)!r}" if flags else "",
        init=method(init),
        forward=method(forward),
    )
    return entry(id, title, problem, source, share=share)


def method(text: str) -> str:
    """A function at the left margin as a method."""
    return textwrap.indent(textwrap.dedent(text).strip("\n"), "    ") + "\n\n" if text else ""


def entry(
    id: str, title: str, problem: str, source: str, *, language: str = "cpp", needs: str = "cpu", share: float = 0.9
) -> Entry:
    """An honest candidate: nothing but "ok" will do."""
    return Entry(f"honest-{id}", 0, title, problem, language, source.strip() + "\n", HONEST, "", needs, share)


def composed(id: str, title: str, problem: str, forward: str, *, init: str = "", head: str = "") -> Entry:
    """A candidate made of torch's own operators: honest, judged under a policy that allows it."""
    source = (
        f"import math\n\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n{head}\n\n"
        f"class ModelNew(nn.Module):\n{method(init)}{method(forward)}"
    )
    return entry(id, title, problem, source, share=0.0)
