"""A finalist's system checks on a real device: honest kernels pass, each flaw shows in its own check and nowhere else.

pytest -m gpu tests/gpu/test_certificate.py -s      # about 3 minutes, most of it torch's import under compute-sanitizer
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.support.finalist import means, outcome
from worker.judge.certificate.certify import CHECKS, SystemReport, check_system
from worker.judge.certificate.document import Outcome
from worker.judge.certificate.parts import RefereeParts
from worker.judge.certificate.stage import SystemCheck
from worker.judge.certificate.system import alive, graphs, leak, sanitizers, streams
from worker.judge.report import EvaluationRequest
from worker.judge.verdict import Verdict

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(900),
]

PROBLEM = """
import torch
from torch import nn

SPEC = {"workloads": [{"name": "only", "params": {"rows": 512, "cols": 384}}]}

class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
    def forward(self, x):
        return torch.relu(x + self.bias)

def get_inputs(rows=512, cols=384):
    return [torch.rand(rows, cols)]

def get_init_inputs(cols=384):
    return [cols]
"""

CUDA = '''
import torch
from torch import nn
from kernelwright import load_cuda
SOURCE = r"""
extern "C" __global__ void relu(const float* x, const float* b, float* y, int64_t n, int cols) {
  %(shared)s
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) {
    float v = x[i] + b[i %% cols];
    y[i] = v < 0 ? 0.0f : v;
  }
  %(extra)s
}
"""
mod = load_cuda(SOURCE)
kept = []
class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
        self.last = None
        self.stream = None
    def forward(self, x):
        %(before)s
        y = torch.empty_like(x)
        n = x.numel()
        %(launch)s
        %(after)s
        return y
'''
TRITON = """
import torch, triton
import triton.language as tl
from torch import nn

@triton.jit
def relu(x, b, y, n, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n) + tl.load(b + at % cols, mask=at < n)
    tl.store(y + at, tl.where(value < 0, 0.0, value), mask=at < n)

class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
    def forward(self, x):
        y = torch.empty_like(x)
        relu[(triton.cdiv(x.numel(), 256),)](x, self.bias, y, x.numel(), x.shape[1], BLOCK=256)
        return y
"""
LAUNCH = "mod.relu[((n + 255) // 256,), (256,), 0](x, self.bias, y, n, x.shape[1])"
ELSEWHERE = f"""
        self.stream = self.stream or torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            {LAUNCH}
        self.stream.synchronize()
"""
REUSE = "self.last = y if self.last is None else self.last.copy_(y); y = self.last"
RACE = "__shared__ float tile[256]; tile[threadIdx.x] = x[0]; tile[(threadIdx.x + 1) % 256] += 1.0f;"


def cuda(shared: str = "", extra: str = "", before: str = "", launch: str = LAUNCH, after: str = "") -> str:
    return CUDA % {"shared": shared, "extra": extra, "before": before, "launch": launch, "after": after}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeParts]:
    with means(tmp_path_factory.mktemp("home"), PROBLEM, "nvidia-h100") as ready:
        yield ready


@pytest.mark.parametrize(("language", "source"), [("cuda", cuda()), ("triton", TRITON)])
@pytest.mark.parametrize("check", CHECKS)
def test_an_honest_kernel_passes_whatever_applies(
    parts: RefereeParts, check: SystemCheck, language: str, source: str
) -> None:
    found, detail, verdict = outcome(parts, check, source, language)
    assert verdict is Verdict.OK, detail
    assert found in (Outcome.PASSED, Outcome.NOT_APPLICABLE), detail


def test_all_checks_side_by_side_find_what_each_finds_alone(parts: RefereeParts) -> None:
    problem = parts.exhibits.problem.outline

    def checked(source: str) -> SystemReport:
        return check_system(parts, EvaluationRequest("c", source, problem.name, problem.source, "gpu", "cuda"))

    honest, leaks = checked(cuda()), checked(cuda(after="kept.append(y)"))
    assert honest.verdict is Verdict.OK, honest.reason
    assert [row.name for row in honest.rows] == [f"system: {check.name}" for check in CHECKS]
    assert leaks.verdict is Verdict.SUSPICIOUS
    assert [row.name for row in leaks.rows if not row.passed] == [f"system: {leak.NAME}"]


@pytest.mark.parametrize(
    ("check", "source", "verdict"),
    [
        (streams.CHECK, cuda(launch=ELSEWHERE), Verdict.INCORRECT),
        (
            graphs.CHECK,
            cuda(before="if torch.cuda.is_current_stream_capturing(): return self.last.clone()", after="self.last = y"),
            Verdict.INCORRECT,
        ),
        (leak.CHECK, cuda(after="kept.append(y)"), Verdict.SUSPICIOUS),
        (alive.CHECK, cuda(after=REUSE), Verdict.INCORRECT),
        (
            sanitizers.MEMCHECK,
            cuda(extra="if (i == 0 && x[n + 1] == 1.25f) y[0] += 1.0f;"),
            Verdict.ILLEGAL_ACCESS,
        ),
    ],
)  # fmt: skip
def test_a_flaw_is_refused_by_its_check(parts: RefereeParts, check: SystemCheck, source: str, verdict: Verdict) -> None:
    found, detail, said = outcome(parts, check, source, "cuda")
    assert (found, said) == (Outcome.FAILED, verdict), detail


@pytest.mark.parametrize(
    ("check", "source", "reason"),
    [
        (graphs.CHECK, cuda(before="x.sum().item()"), "could not be made"),
        (sanitizers.RACECHECK, cuda(shared=RACE), "ace reported"),
        (
            sanitizers.INITCHECK,
            cuda(before="x = x + 0 * torch.empty_like(x).nan_to_num(0, 0, 0)"),
            "ninitialized",
        ),
    ],
)
def test_what_is_only_worth_knowing_is_a_reservation(
    parts: RefereeParts, check: SystemCheck, source: str, reason: str
) -> None:
    found, detail, verdict = outcome(parts, check, source, "cuda")
    assert (found, verdict) == (Outcome.RESERVATION, Verdict.OK), detail
    assert reason in detail
