"""On a device: ceilings, whose kernels ran (CUPTI), and training dynamics with the candidate in its runner."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from problems.catalog import bundled
from worker.judge.checks import provenance
from worker.judge.dynamics import check as dynamics
from worker.judge.exhibits import Exhibits
from worker.judge.physics.ceilings import Ceilings
from worker.judge.reference.problem import Problem
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.runners.bench import Workbench
from worker.judge.runners.processes import Processes, RefereeOptions
from worker.judge.trial import SUBJECT, Trial
from worker.judge.verdict import Fault

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROBLEM = """
import torch
from torch import nn
SPEC = {"workloads": [{"name": "small", "params": {"rows": 512}}, {"name": "large", "params": {"rows": 16384}}]}
class Model(nn.Module):
    def forward(self, x, y):
        return torch.relu(x + y) * 2
def get_inputs(rows=512):
    return [torch.randn(rows, 4096), torch.randn(rows, 4096)]
def get_init_inputs():
    return []
"""

TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn
@triton.jit
def fused(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, tl.maximum(value, 0.0) * 2, mask=at < n)
class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        {body}
        return out
"""
OWN = "fused[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)"
FIG_LEAF = "fused[(1,)](x, y, out, 64, BLOCK=64); out.copy_(torch.relu(x + y) * 2)"
SIDE = f"""s = torch.cuda.Stream(); torch.cuda.synchronize()
        with torch.cuda.stream(s): {OWN}
        s.synchronize()"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    running = Processes(RefereeOptions(home=tmp_path_factory.mktemp("home"), hardware="nvidia-h100"), on_gpu=True)
    yield running
    running.close()


@contextmanager
def loaded(processes: Processes, exhibits: Exhibits, source: str, benches: bool = True) -> Iterator[Trial]:
    request = EvaluationRequest("c", source, "p", exhibits.problem.outline.source, "nvidia-h100", "triton")
    with processes.runner() as runner:
        runner.ask({"op": "load", "subject": SUBJECT, "source": source, "class": "ModelNew", "compile": None}, 150)
        trial = Trial(runner, request, exhibits, "cuda:0", random.Random(1), Evaluation("c"))
        for exhibit in exhibits.workloads if benches else []:
            bench = Workbench(runner, exhibit.instance, exhibit.cases, "cuda:0", 2)
            bench.construct(SUBJECT, 60)
            bench.write(0, 0)
            bench.run(SUBJECT, 0, 120)
            trial.benches[exhibit.name] = bench
        yield trial
        for bench in trial.benches.values():
            bench.close()


@pytest.fixture(scope="module")
def sums() -> Exhibits:
    return Exhibits(Problem(PROBLEM, "sums"), "nvidia-h100", "cuda:0", 5)


def test_ceilings_are_those_of_a_datacentre_card() -> None:
    ceilings = Ceilings("cuda:0")
    assert 5e11 < ceilings.bytes_per_s < 2e13
    assert ceilings.cache_bytes_per_s > 1.2 * ceilings.bytes_per_s
    assert ceilings.cache_bytes >= 4 << 20
    single, tensor = ceilings.flops_per_s(torch.float32), ceilings.flops_per_s(torch.bfloat16)
    assert 5e12 < single < tensor < 5e15
    assert ceilings.flops_per_s(torch.float32, tf32=True) > 1.5 * single


@pytest.mark.parametrize("body", [OWN, SIDE])
def test_a_triton_kernel_on_any_stream_is_the_candidates_own(processes: Processes, sums: Exhibits, body: str) -> None:
    with loaded(processes, sums, TRITON.replace("{body}", body)) as trial:
        provenance.check(trial, trial.runner.artefacts)
    (row,) = trial.evaluation.checks
    assert row.passed
    assert "fused" in str(row.figures["kernel0"])


def test_a_fig_leaf_over_torch_is_suspicious(processes: Processes, sums: Exhibits) -> None:
    with loaded(processes, sums, TRITON.replace("{body}", FIG_LEAF)) as trial, pytest.raises(Fault) as caught:
        provenance.check(trial, trial.runner.artefacts)
    assert "at::native" in caught.value.reason
    assert "asks for 90% own code" in caught.value.reason


EMBEDDING = """
import torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
    def forward(self, dy, ids, table, weight):
        x, dy = table[ids].float(), dy.float()
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        normed, inner = x * scale, dy * weight.float()
        dx = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
        sums = torch.zeros(table.shape, dtype=torch.{sums}, device=table.device)
        sums.index_add_(0, ids, dx.to(sums.dtype))
        return sums.to(table.dtype), (dy * normed).sum(0).to(weight.dtype)
"""


@pytest.fixture(scope="module")
def embedding() -> Exhibits:
    problem = bundled()["embedding_grad_rmsnorm_backward"]
    return Exhibits(Problem(problem.source, problem.name), "nvidia-h100", "cuda:0", 5)


def test_a_model_trains_with_fp32_sums_and_not_with_bf16_sums(processes: Processes, embedding: Exhibits) -> None:
    rehearsal = dynamics.rehearse(embedding, seed=3, steps=20)
    with loaded(processes, embedding, EMBEDDING.replace("{sums}", "float32"), benches=False) as trial:
        report = dynamics.check(trial, rehearsal)
    assert report.passed, report.sentence
    with (
        loaded(processes, embedding, EMBEDDING.replace("{sums}", "bfloat16"), benches=False) as trial,
        pytest.raises(Fault) as caught,
    ):
        dynamics.check(trial, rehearsal)
    assert "sums are kept in bf16" in caught.value.reason
