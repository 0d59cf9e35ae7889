"""Generated code of real candidates in real sandboxes: C++ as it was judged, Triton as it compiles for a GPU."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.finalist import means
from worker.judge import generated
from worker.judge.certificate.parts import RefereeParts
from worker.judge.certificate.stage import staged
from worker.judge.client import Judge, JudgeOptions
from worker.judge.generated import CodeReader
from worker.judge.report import EvaluationRequest
from worker.languages import language
from worker.languages.machine_code import MAX_BYTES

PROBLEM = """
import torch

SPEC = {"workloads": [{"name": "only", "params": {"rows": 64, "cols": 256}}]}

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x + 1.0)

def get_inputs(rows=64, cols=256):
    return [torch.randn(rows, cols)]

def get_init_inputs():
    return []
"""
CPP = '''
import torch
from kernelwright import load_cpp
SOURCE = r"""
#include <cstdint>
extern "C" void shifted_relu(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
  for (int64_t i = 0; i < n; i++) { float v = x[i] + 1.0f; y[i] = v < 0 ? 0.0f : v; }
}
"""
lib = load_cpp(SOURCE, flags=("-mprefer-vector-width=256",))
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.shifted_relu(x, y, x.numel())
        return y
'''
TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def shifted_relu(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n) + 1.0
    tl.store(y + at, tl.where(value < 0, 0.0, value), mask=at < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        shifted_relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
"""
FORGED = TRITON.replace(
    "class ModelNew",
    """
from worker.runner import triton_record

DESCRIBE = triton_record._describe
PARTS = {"ptx": "\\ud800 \\x00 forged", "ttgir": "", "llir": "x\\n" * (1 << 20), "cubin": b"no cubin"}

def lying(name, kernel):
    described = DESCRIBE(name, kernel)
    kernel.asm = PARTS
    return described

triton_record._describe = lying

class ModelNew""",
)

needs_x86 = pytest.mark.skipif(
    shutil.which("objdump") is None or platform.machine() != "x86_64", reason="needs objdump and an x86-64 processor"
)
needs_assembler = pytest.mark.skipif(
    not language("triton").describe().get("ahead_of_time"), reason="no assembler of Triton's here"
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeParts]:
    with means(tmp_path_factory.mktemp("home"), PROBLEM, "cpu") as ready:
        yield ready


SHORTENED = """
import torch

SPEC = {"workloads": [{"name": "only", "params": {"rows": 64}}], "domains": {"x": "real", "keep": "fixed"}}

class Model(torch.nn.Module):
    def forward(self, x, keep):
        return x[: int(keep.sum())] * 2.0

def get_inputs(rows=64):
    return [torch.randn(rows, 32), torch.arange(rows) % 2]

def get_init_inputs():
    return []
"""
COUNTING = """
import torch, triton
import triton.language as tl

@triton.jit
def count(keep, total, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(total, tl.sum(tl.load(keep + at, mask=at < n, other=0), 0))

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)

class ModelNew(torch.nn.Module):
    def forward(self, x, keep):
        x, keep = x.contiguous(), keep.contiguous()
        y, total = torch.empty_like(x), torch.empty(1, dtype=torch.int64, device=x.device)
        count[(1,)](keep, total, keep.numel(), BLOCK=triton.next_power_of_2(max(1, keep.numel())))
        double[(triton.cdiv(max(1, x.numel()), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y[: int(total)]
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Of a GPU that is not here."""
    options = JudgeOptions(tmp_path_factory.mktemp("judge"), "nvidia-h100", eager_only=True, code=True)
    with Judge(options) as started:
        yield started


def request(source: str, language_name: str, hardware: str = "cpu") -> EvaluationRequest:
    return EvaluationRequest("c", source, "problem", PROBLEM, hardware, language_name)


@needs_x86
def test_a_cpp_candidate_yields_the_assembly_of_its_function(parts: RefereeParts, tmp_path: Path) -> None:
    reader = CodeReader(tmp_path / "builds", parts.lease, on_gpu=False)
    with staged(parts, request(CPP, "cpp")) as trial:
        code = reader.read(trial.request, trial.runner, trial.benches)
    assert set(code) == {"assembly"}
    first, *_rest = code["assembly"].splitlines()
    assert first == "# cpp source 1 of 1, flags: -mprefer-vector-width=256"
    assert "<shifted_relu>:" in code["assembly"]
    assert "vaddps" in code["assembly"] and "%ymm" in code["assembly"]


@needs_assembler
def test_a_triton_candidate_yields_all_stages_for_a_gpu_that_is_not_here(judge: Judge) -> None:
    report = judge.evaluate(request(TRITON, "triton", "nvidia-h100"))
    assert report["verdict"] == "ok", report["reason"]
    code = report["code"]
    assert set(code) == {"ttgir", "llvm", "ptx", "sass"}
    assert "// kernel shifted_relu, for only\n" in code["ptx"] and ".entry shifted_relu(" in code["ptx"]
    assert ".text.shifted_relu:" in code["sass"] and "LDG.E" in code["sass"]
    assert "tt.func public @shifted_relu" in code["ttgir"]
    assert code["llvm"].startswith("; kernel shifted_relu")


@needs_assembler
def test_a_length_that_only_a_kernel_knows_is_no_fault_where_none_runs(judge: Judge) -> None:
    asked = replace(request(COUNTING, "triton", "nvidia-h100"), problem_source=SHORTENED)
    report = judge.evaluate(asked)
    assert report["verdict"] == "ok", report["reason"]


@needs_assembler
def test_what_a_hostile_process_hands_over_is_text_of_limited_size(judge: Judge) -> None:
    report = judge.evaluate(request(FORGED, "triton", "nvidia-h100"))
    assert report["verdict"] == "ok", report["reason"]
    code = report["code"]
    assert set(code) == {"ptx", "llvm"}  # what is no cubin has no SASS
    assert code["ptx"].splitlines()[1] == "? \0 forged"
    assert len(code["llvm"].encode()) <= MAX_BYTES
    assert code["llvm"].endswith("\nx\n; ... cut here: of each kind 1 MiB is kept\n")


def test_a_long_text_ends_with_a_whole_line_and_says_so() -> None:
    text = "".join(f"line {number} é\n" for number in range(200_000))
    short = generated.shortened(text, "# cut\n")
    assert len(short.encode()) <= MAX_BYTES
    *kept, note = short.splitlines()
    assert note == "# cut" and text.startswith("\n".join(kept) + "\n")
    assert generated.shortened("short\n", "# cut\n") == "short\n"
