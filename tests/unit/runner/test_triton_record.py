"""Ahead-of-time builds of Triton candidates, each in a process of its own, down to the cubin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from worker.languages import language
from worker.runner.triton_record import capability

ROOT = Path(__file__).parents[3]
needs_assembler = pytest.mark.skipif(
    not language("triton").describe().get("ahead_of_time"), reason="no assembler of Triton's here"
)

PROBLEM = """
import torch
def get_inputs(n=128): return [torch.randn(n, 64).bfloat16(), torch.randn(64, 128).bfloat16()]
def get_init_inputs(): return []
"""
CANDIDATE = """
import torch, triton, triton.language as tl
from torch import nn

CONFIGS = [
    triton.Config({"BLOCK": 64}, num_warps=4),
    triton.Config({"BLOCK": 64, "INNER": 64}, num_warps=8),
    triton.Config({"BLOCK": 128, "INNER": 256}, num_warps=8, num_stages=3),  # too much shared memory for an sm_90
]

@triton.autotune(CONFIGS, key=["k"])
@triton.heuristics({"EVEN": lambda args: args["k"] % 32 == 0})
@triton.jit
def product(a, b, c, k, n, EVEN: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr = 32):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, k, INNER):
        inner = start + tl.arange(0, INNER)
        left = tl.load(a + row[:, None] * k + inner[None, :], mask=EVEN or inner[None, :] < k)
        right = tl.load(b + inner[:, None] * n + column[None, :], mask=EVEN or inner[:, None] < k)
        total = tl.dot(left, right, total)
    tl.store(c + row[:, None] * n + column[None, :], total.to(c.dtype.element_ty))

@triton.jit
def relu(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.maximum(tl.load(x + at, mask=at < n), 0.0), mask=at < n)

class ModelNew(nn.Module):
    def forward(self, x, w):
        c = torch.empty(x.shape[0], w.shape[1], dtype=x.dtype, device=x.device)
        grid = lambda meta: (triton.cdiv(x.shape[0], meta["BLOCK"]), triton.cdiv(w.shape[1], meta["BLOCK"]))
        product[grid](x, w, c, x.shape[1], w.shape[1])
        out = torch.empty_like(c)
        for _ in range(2):
            relu[(triton.cdiv(c.numel(), 256),)](c, out, c.numel(), BLOCK=256)
        return out
"""


def record(folder: Path, candidate: str, **variables: str) -> tuple[int, dict[str, Any], str]:
    (folder / "problem.py").write_text(PROBLEM)
    (folder / "candidate.py").write_text(candidate)
    command = [sys.executable, "-m", "worker.runner.triton_record", "--params", '{"n": 256, "unknown": 1}',
               "--problem", "problem.py", "candidate.py"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder / "cache"), **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@needs_assembler
def test_every_kernel_and_configuration_is_built_once(tmp_path: Path) -> None:
    code, report, errors = record(tmp_path, CANDIDATE)
    assert code == 0, errors
    assert report["target"] == "sm_90a"
    assert [(kernel["name"], kernel["num_warps"]) for kernel in report["kernels"]] == [
        ("product", 4), ("product", 8), ("relu", 4),
    ]  # fmt: skip
    for kernel in report["kernels"]:
        assert kernel["registers"] > 0
        assert kernel["cubin_bytes"] > 0
        assert kernel["ptx_bytes"] > 0
    assert report["kernels"][0]["shared_bytes"] > 0
    assert report["launches"] == 5
    assert len(report["notes"]) == 1
    assert "shared memory" in report["notes"][0]


@needs_assembler
def test_a_compile_error_is_the_report(tmp_path: Path) -> None:
    code, report, _errors = record(tmp_path, CANDIDATE.replace("total.to(", "undeclared_thing.to("))
    assert code == 1
    assert report["kernels"] == []
    assert report["error"].startswith("product: CompilationError")
    assert "undeclared_thing is not defined" in report["error"]


@needs_assembler
def test_too_much_shared_memory_is_an_error(tmp_path: Path) -> None:
    # The last of the three configurations alone: nothing is left to fall back on.
    only_the_last = CANDIDATE.replace("(CONFIGS,", "(CONFIGS[2:],")
    code, report, _errors = record(tmp_path, only_the_last)
    assert code == 1
    assert "out of resource: shared memory" in report["error"]


def test_a_candidate_that_fails_by_itself_shows_its_trace(tmp_path: Path) -> None:
    code, report, _errors = record(tmp_path, "class ModelNew:\n    def __call__(self, x, w): raise KeyError('mine')\n")
    assert code == 1
    assert "KeyError: 'mine'" in report["error"]


@needs_assembler
def test_the_interpreter_and_the_recorder_do_not_mix(tmp_path: Path) -> None:
    code, report, errors = record(tmp_path, CANDIDATE, TRITON_INTERPRET="1")
    assert (code, report) == (1, {})
    assert "Triton is in interpreter mode in this process" in errors


@pytest.mark.parametrize(("arch", "expected"), [("sm_90a", 90), ("sm_80", 80), ("sm_100a", 100), ("sm_120f", 120)])
def test_capability_of_an_arch(arch: str, expected: int) -> None:
    assert capability(arch) == expected


@pytest.mark.parametrize("arch", ["native", "90", "sm_", "sm_90a;rm"])
def test_what_is_no_arch_is_refused(arch: str) -> None:
    with pytest.raises(ValueError, match="is no CUDA arch"):
        capability(arch)
