"""A finalist on a real GPU, from the judge through pip to its own tests: certified here, packaged, installed, tested.

pytest -m gpu tests/gpu/test_package.py -s      # several minutes for each language, most of it certification
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from api.packaging import Winner, make_package, wheel
from worker.judge.certificate.render import render
from worker.judge.client import Judge, JudgeOptions
from worker.judge.report import EvaluationRequest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(1200),
]

HARDWARE = "nvidia-h200"
PROBLEM = """
import torch
from torch import nn

SPEC = {
    "summary": "Bias, then ReLU",
    "workloads": [
        {"name": "fp32", "params": {"rows": 8192, "cols": 4096, "dtype": "float32"}},
        {"name": "odd_bf16", "params": {"rows": 4093, "cols": 5003, "dtype": "bfloat16"}},
    ],
}

class Model(nn.Module):
    def __init__(self, cols, dtype="float32"):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols, dtype=getattr(torch, dtype)))
    def forward(self, x):
        return torch.relu(x + self.bias)

def get_inputs(rows=64, cols=100, dtype="float32"):
    return [torch.randn(rows, cols).to(getattr(torch, dtype))]

def get_init_inputs(cols=100, dtype="float32"):
    return [cols, dtype]
"""
HEAD = """
class ModelNew(nn.Module):
    def __init__(self, cols, dtype="float32"):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols, dtype=getattr(torch, dtype)))
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.numel()
        if not n:
            return y
"""
TRITON = f"""
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def bias_relu(x, bias, y, n, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n).to(tl.float32) + tl.load(bias + at % cols, mask=at < n).to(tl.float32)
    tl.store(y + at, tl.where(v < 0, 0.0, v), mask=at < n)
{HEAD}
        bias_relu[(triton.cdiv(n, 1024),)](x, self.bias, y, n, x.shape[-1], BLOCK=1024)
        return y
"""
CUDA = f'''
import torch
from kernelwright import load_cuda
from torch import nn

SOURCE = r"""
#include <cuda_bf16.h>
static __device__ float wide(float v) {{ return v; }}
static __device__ float wide(__nv_bfloat16 v) {{ return __bfloat162float(v); }}
static __device__ void narrow(float v, float* to) {{ *to = v; }}
static __device__ void narrow(float v, __nv_bfloat16* to) {{ *to = __float2bfloat16(v); }}
template <class T> static __device__ void each(const T* x, const T* b, T* y, long long n, int cols) {{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = wide(x[i]) + wide(b[i % cols]);
    narrow(v < 0 ? 0.0f : v, y + i);
}}
extern "C" __global__ void relu32(const float* x, const float* b, float* y, long long n, int cols) {{
    each(x, b, y, n, cols);
}}
extern "C" __global__ void relu16(const __nv_bfloat16* x, const __nv_bfloat16* b, __nv_bfloat16* y, long long n,
                                  int cols) {{
    each(x, b, y, n, cols);
}}
"""
mod = load_cuda(SOURCE)
{HEAD}
        kernels = {{torch.float32: mod.relu32, torch.bfloat16: mod.relu16}}
        if x.dtype not in kernels or self.bias.dtype != x.dtype:
            raise TypeError(f"no kernel for {{x.dtype}}")
        kernels[x.dtype][((n + 255) // 256,), (256,), 0](x, self.bias, y, n, x.shape[-1])
        return y
'''


@pytest.mark.parametrize(("language", "source"), [("triton", TRITON), ("cuda", CUDA)])
def test_a_finalist_becomes_a_package_whose_own_tests_pass(language: str, source: str, tmp_path: Path) -> None:
    request = EvaluationRequest("finalist", source, "bias_relu", PROBLEM, HARDWARE, language)
    with Judge(JudgeOptions(home=tmp_path / "home", hardware=HARDWARE, minimum_sandbox="process")) as judge:
        document = judge.certify(request)
    assert document.get("certified"), document.get("reason")
    winner = Winner("finalist", HARDWARE, language, document, render(document))
    made = wheel(make_package("bias_relu", PROBLEM, [winner]))
    (tmp_path / made.name).write_bytes(made.data)
    site = tmp_path / "site"
    options = ["--no-index", "--no-build-isolation", "--no-deps", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(tmp_path / made.name)], check=True)

    variables = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    variables |= {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache"), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--pyargs", "bias_relu_kernel"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    print(done.stdout[-3000:])  # noqa: T201 - run by hand, with -s
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "needs a CUDA device" not in done.stdout and "cannot be built" not in done.stdout
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None and int(found[1]) >= 20
