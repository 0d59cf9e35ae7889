"""Two versions of one honest kernel of which one moves a known share more bytes.

ReLU after a bias, bound by memory. The slow version goes on after its last block: further blocks do the same on a spare
buffer, so that it reads and writes `extra` more bytes of the same kinds in the same pattern. Every call uses another
part of the spare buffer, or its bytes would stay in the cache. Results are the same, and nothing but the number of
blocks differs between the two.
"""

from __future__ import annotations

PROBLEM_NAME = "planted"
PROBLEM = """import torch
from torch import nn

SPEC = {
    "summary": "ReLU after a bias",
    "op_family": "elementwise",
    "workloads": [
        {"name": "cpu", "for": "cpu", "params": {"rows": 1024, "cols": 1024}},
        {"name": "gpu", "for": "gpu", "params": {"rows": 16640, "cols": 4096}},
    ],
    "domains": {"x": "real"},
    "precision": {"compute": "float32", "tf32": False},
    "backward": False,
}


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        return torch.relu(x + self.bias)


def get_inputs(rows=1024, cols=1024):
    return [torch.randn(rows, cols)]


def get_init_inputs(cols=1024):
    return [cols]
"""
"""16,640 rows of 4,096 are 273 MB, in and out 545 MB: 130 us on an H200, as the bundled problems take."""

_MODEL = """

class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
        self.spare, self.calls = None, 0

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        units = UNITS
        extra = round(units * EXTRA)
        if extra and (self.spare is None or self.spare.shape[2] < extra * UNIT or self.spare.device != x.device):
            self.spare = torch.zeros(PARTS, 2, extra * UNIT, device=x.device)
        spare = self.spare[self.calls % PARTS] if extra else (x, out)
        self.calls += 1
        LAUNCH
        return out
"""
_TRITON = """import torch
import triton
import triton.language as tl
from torch import nn

EXTRA = $EXTRA
PARTS = 32
UNIT = 1024


@triton.jit
def bias_relu(x, bias, out, spare_in, spare_out, n, cols, blocks, UNIT: tl.constexpr):
    block = tl.program_id(0)
    if block < blocks:
        at = block.to(tl.int64) * UNIT + tl.arange(0, UNIT)
        mask = at < n
        value = tl.load(x + at, mask=mask) + tl.load(bias + at % cols, mask=mask)
        tl.store(out + at, tl.where(value < 0, 0.0, value), mask=mask)
    else:
        at = (block - blocks).to(tl.int64) * UNIT + tl.arange(0, UNIT)
        value = tl.load(spare_in + at) + tl.load(bias + at % cols)
        tl.store(spare_out + at, tl.where(value < 0, 0.0, value))
"""
_CPP = '''import torch
from torch import nn

from kernelwright import load_cpp

EXTRA = $EXTRA
PARTS = 32
SOURCE = r"""
#include <cstdint>
extern "C" void bias_relu(const float* x, const float* bias, float* out, const float* spare_in, float* spare_out,
                          int64_t rows, int64_t cols, int64_t extra) {
  #pragma omp parallel for schedule(static, 4)
  for (int64_t r = 0; r < rows + extra; r++) {
    const float* a = r < rows ? x + r * cols : spare_in + (r - rows) * cols;
    float* o = r < rows ? out + r * cols : spare_out + (r - rows) * cols;
    for (int64_t c = 0; c < cols; c++) {
      float v = a[c] + bias[c];
      o[c] = v < 0.0f ? 0.0f : v;
    }
  }
}
"""
lib = load_cpp(SOURCE)
'''
_TRITON_LAUNCH = """grid = (units + extra,)
        if x.numel():
            bias_relu[grid](x, self.bias, out, spare[0], spare[1], x.numel(), x.shape[-1], units, UNIT)"""
_CPP_LAUNCH = "lib.bias_relu(x, self.bias, out, spare[0], spare[1], units, x.shape[-1], extra)"


def language(*, on_gpu: bool) -> str:
    """What the kernels are written in."""
    return "triton" if on_gpu else "cpp"


def kernel(extra: float, *, on_gpu: bool) -> str:
    """The candidate that moves `extra` (0.03: 3 %) more bytes; 0 is the fast one."""
    if on_gpu:
        head, units, unit, launch = _TRITON, "triton.cdiv(x.numel(), UNIT)", "UNIT", _TRITON_LAUNCH
    else:
        head, units, unit, launch = _CPP, "x.shape[0]", "x.shape[-1]", _CPP_LAUNCH
    model = _MODEL.replace("UNITS", units).replace("* UNIT", f"* {unit}").replace("LAUNCH", launch)
    return head.replace("$EXTRA", repr(extra)) + model


def bytes_moved(rows: int, cols: int, extra: float, *, on_gpu: bool) -> int:
    """What one call reads and writes of the large tensors."""
    unit = 1024 if on_gpu else cols
    units = -(-rows * cols // unit)
    return 2 * 4 * (rows * cols + round(units * extra) * unit)
