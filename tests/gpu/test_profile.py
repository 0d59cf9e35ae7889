"""Profiles on a real device, rung by rung: each says where it stands, and names the kernel and what holds it back.

pytest -m gpu tests/gpu/test_profile.py -s      # about 2 minutes; prints each profile's text
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from tests.support.finalist import means
from worker.judge.certificate.parts import RefereeParts
from worker.judge.certificate.stage import staged
from worker.judge.physics.floor import PhysicsFloor
from worker.judge.report import EvaluationRequest, WorkloadTiming
from worker.judge.trial import Trial
from worker.profile import ncu
from worker.profile.ladder import Profiler
from worker.profile.on_gpu import NCU_LIMIT_S, GpuLadder
from worker.profile.roofline import Bound, RoofPoint
from worker.profile.rungs import Rung

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]

ROWS, COLS = 8192, 4096
PROBLEM = f"""
import torch

SPEC = {{"workloads": [{{"name": "only", "params": {{"rows": {ROWS}, "cols": {COLS}}}}}]}}

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x + 1.0)

def get_inputs(rows={ROWS}, cols={COLS}):
    return [torch.randn(rows, cols)]

def get_init_inputs():
    return []
"""
CUDA = '''
import torch
from kernelwright import load_cuda
SOURCE = r"""
extern "C" __global__ void shifted_relu(const float* x, float* y, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  %s
  if (i < n) { float v = x[i] + 1.0f; y[i] = v < 0 ? 0.0f : v; }
}
"""
mod = load_cuda(SOURCE)
class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.numel()
        mod.shifted_relu[((n + 255) // 256,), (256,), 0](x, y, n)
        return y
'''
STREAMING = CUDA % ""
STRIDED = CUDA % f"if (i < n) i = (i % {ROWS}) * {COLS}LL + i / {ROWS};  // neighbours read {4 * COLS} bytes apart"
TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def shifted_relu(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n) + 1.0
    tl.store(y + at, tl.where(value < 0, 0.0, value), mask=at < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        shifted_relu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
"""
SOURCES = [("cuda", STREAMING), ("triton", TRITON)]
LEAST_BYTES = 8.0 * ROWS * COLS

Staging = Callable[[str, str], AbstractContextManager[Trial]]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeParts]:
    with means(tmp_path_factory.mktemp("home"), PROBLEM, "nvidia-h100") as ready:
        yield ready


@pytest.fixture
def stage(parts: RefereeParts) -> Staging:
    """A candidate, loaded and right, with a row as timing would leave it."""

    @contextmanager
    def staging(language: str, source: str) -> Iterator[Trial]:
        problem = parts.exhibits.problem.outline
        request = EvaluationRequest("c", source, problem.name, problem.source, "nvidia-h100", language)
        with staged(parts, request) as trial:
            row = WorkloadTiming("only", 100.0, {"eager": 150.0}, "eager", 1.5, (1.4, 1.6), {}, sol_us=60.0)
            trial.evaluation.workloads, trial.evaluation.speedup = [row], 1.5
            yield trial

    return staging


def point() -> RoofPoint:
    return RoofPoint("only", "cuda", 100.0, 1.5, LEAST_BYTES, 0.0, 60.0, 0.0, 0.6)


@pytest.mark.parametrize(("language", "source"), SOURCES)
def test_a_profile_names_the_kernel_and_one_bottleneck(
    parts: RefereeParts, stage: Staging, language: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with stage(language, source) as trial:
        profiler = Profiler("cuda:0", parts.lease._path.parent, PhysicsFloor("cuda:0"), lambda: parts.runner(False))
        profile = profiler.profile(trial)
    with capsys.disabled():
        print(f"\n{language}: {profile['wall_s']} s, {profile['refused']}\n{profile['text']}")  # noqa: T201
    assert profile["rung"] in (Rung.NCU, Rung.PROFILER), profile["refused"]
    assert any("shifted_relu" in kernel["name"] for kernel in profile["kernels"])
    assert profile["metrics"]["kernels_per_call"] == 1
    assert profile["metrics"]["registers"] >= 8
    assert profile["bound"] in set(Bound)
    assert profile["wall_s"] < NCU_LIMIT_S + 15


@pytest.mark.parametrize(("language", "source"), SOURCES)
def test_hardware_counters_agree_with_the_bytes_that_must_move(
    parts: RefereeParts, stage: Staging, language: str, source: str
) -> None:
    if ncu.command() is None:
        pytest.skip("ncu is not installed")
    with stage(language, source) as trial:
        seen = GpuLadder(lambda: parts.runner(False)).look(trial, point())
    if seen.rung is not Rung.NCU:
        pytest.skip(f"this machine forbids counters: {seen.refused}")
    ratio, dram = seen.metrics["traffic_ratio"], seen.metrics["dram_share"]
    assert ratio is not None and 0.8 < ratio < 1.5
    assert dram is not None and 0.4 < dram <= 1.0
    assert (seen.metrics["sector_efficiency"] or 0) > 0.95


def test_strided_loads_show_in_the_counters(parts: RefereeParts, stage: Staging) -> None:
    if ncu.command() is None:
        pytest.skip("ncu is not installed")
    with stage("cuda", STRIDED) as trial:
        seen = GpuLadder(lambda: parts.runner(False)).look(trial, point())
    if seen.rung is not Rung.NCU:
        pytest.skip(f"this machine forbids counters: {seen.refused}")
    assert (seen.metrics["sector_efficiency"] or 1) < 0.3


@pytest.mark.parametrize(("language", "source"), SOURCES)
def test_without_counters_cupti_tells_launches(parts: RefereeParts, stage: Staging, language: str, source: str) -> None:
    with stage(language, source) as trial:
        seen = GpuLadder(lambda: parts.runner(False), {Rung.NCU: "closed for this test"}).look(trial, point())
    assert seen.rung is Rung.PROFILER, seen.refused
    assert seen.refused == {Rung.NCU: "closed for this test"}
    assert seen.kernels[0]["name"].startswith("shifted_relu")
    assert (seen.metrics["waves"] or 0) > 1
    assert 0 < (seen.metrics["occupancy"] or 0) <= 1
    assert 0 < (seen.metrics["device_share"] or 0) <= 1


@pytest.mark.parametrize(("language", "source"), SOURCES)
def test_without_cupti_the_compiler_tells_resources(
    parts: RefereeParts, stage: Staging, language: str, source: str
) -> None:
    closed = {Rung.NCU: "closed for this test", Rung.PROFILER: "closed for this test"}
    with stage(language, source) as trial:
        seen = GpuLadder(lambda: parts.runner(False), closed).look(trial, point())
    assert seen.rung is Rung.RESOURCES, seen.refused
    assert seen.kernels[0]["name"] == "shifted_relu"
    assert (seen.metrics["registers"] or 0) >= 8
    assert seen.metrics["spill_bytes"] == 0


def test_a_candidate_far_behind_is_not_worth_the_counters(parts: RefereeParts, stage: Staging) -> None:
    ladder = GpuLadder(lambda: parts.runner(False))
    with stage("cuda", STREAMING) as trial:
        ladder._best[trial.request.problem_source] = 3.0
        started = time.monotonic()
        seen = ladder.look(trial, point())
    assert seen.rung is Rung.PROFILER
    assert "not worth its time at 1.50x where 3.00x" in seen.refused[Rung.NCU]
    assert time.monotonic() - started < 15
