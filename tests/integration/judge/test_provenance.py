"""Whose code ran, measured on real candidates in a real runner: own kernels, torch in disguise, forged lists."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from worker.judge.checks import provenance, sampled
from worker.judge.exhibits import Exhibits
from worker.judge.reference.problem import Problem
from worker.judge.report import Evaluation, EvaluationRequest
from worker.judge.runners import quiet
from worker.judge.runners.bench import Workbench
from worker.judge.runners.processes import Processes, RefereeOptions
from worker.judge.trial import SUBJECT, Trial
from worker.judge.verdict import Fault, Verdict

PROBLEM = """
import torch
from torch import nn
SPEC = {"workloads": [{"name": "small", "params": {"rows": 64}}, {"name": "large", "params": {"rows": 512}}]}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 256) / 16)
    def forward(self, x):
        return torch.relu(x @ self.weight)
def get_inputs(rows=64):
    return [torch.randn(rows, 256)]
def get_init_inputs():
    return []
"""

CANDIDATE = '''
import torch
from torch import nn
from kernelwright import load_cpp
SOURCE = r"""
#include <cstdint>
extern "C" void product(const float* x, const float* w, float* y, int64_t rows, int64_t n) {{
  for (int64_t r = 0; r < rows; r++) {{
    for (int64_t c = 0; c < n; c++) y[r * n + c] = 0;
    for (int64_t k = 0; k < n; k++)
      for (int64_t c = 0; c < n; c++) y[r * n + c] += x[r * n + k] * w[k * n + c];
    for (int64_t c = 0; c < n; c++) y[r * n + c] = y[r * n + c] > 0 ? y[r * n + c] : 0;
  }}
}}
extern "C" void relu(float* y, int64_t n) {{
  for (int64_t i = 0; i < n; i++) y[i] = y[i] > 0 ? y[i] : 0;
}}
"""
lib = load_cpp(SOURCE)
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(256, 256))
    def forward(self, x):
        y = torch.empty(x.shape[0], 256)
        {body}
        return y
'''
OWN = "lib.product(x.contiguous(), self.weight, y, x.shape[0], 256)"
PRODUCT = CANDIDATE[CANDIDATE.index("  for (int64_t r = 0; r < rows") : CANDIDATE.index("}}\nextern")].format()
BLAS = """
  static Gemm gemm = (Gemm)dlsym(RTLD_DEFAULT, "sgemm_");
  int m = rows, k = n; float one = 1, zero = 0;
  gemm("N", "N", &k, &m, &k, &one, w, &k, x, &k, &zero, y, &k);
  for (int64_t i = 0; i < rows * n; i++) y[i] = y[i] > 0 ? y[i] : 0;
"""
GEMM = """#include <dlfcn.h>
using Gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                      const int*, const float*, const int*, const float*, float*, const int*);
"""
GLOBAL = """
import ctypes, os, torch
ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)
"""
PATCHED = """
WORK = {}
plain = torch.Tensor.copy_
def copy_(self, source):
    WORK.pop(source.data_ptr(), lambda: None)()
    return plain(self, source)
torch.Tensor.copy_ = copy_
"""
FIG_LEAF = "torch.mm(x, self.weight, out=y); lib.relu(y, y.numel())"


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    running = Processes(RefereeOptions(home=tmp_path_factory.mktemp("home"), hardware="cpu"), on_gpu=False)
    yield running
    running.close()


@pytest.fixture(scope="module")
def exhibits() -> Exhibits:
    return Exhibits(Problem(PROBLEM, "product"), "cpu", "cpu", 5)


@contextmanager
def loaded(
    processes: Processes, exhibits: Exhibits, source: str, share: float = 0.9
) -> Iterator[tuple[Trial, list[Path]]]:
    """A trial as the referee makes it, and what was built for it."""
    request = EvaluationRequest("c", source, "product", PROBLEM, "cpu", "cpp", own_kernel_share=share)
    with processes.runner() as runner:
        runner.ask({"op": "load", "subject": SUBJECT, "source": source, "class": "ModelNew", "compile": None}, 60)
        trial = Trial(runner, request, exhibits, "cpu", random.Random(1), Evaluation("c"))
        for exhibit in exhibits.workloads:
            bench = trial.benches[exhibit.name] = Workbench(runner, exhibit.instance, exhibit.cases, "cpu", 2)
            bench.construct(SUBJECT, 30)
        yield trial, runner.artefacts
        for bench in trial.benches.values():
            bench.close()


def test_a_kernel_of_its_own_takes_the_time_and_is_listed(processes: Processes, exhibits: Exhibits) -> None:
    with loaded(processes, exhibits, CANDIDATE.format(body=OWN)) as (trial, built):
        provenance.check(trial, built)
        row, samples = trial.evaluation.checks
    assert row.passed
    assert float(row.figures["share"]) > 0.9
    assert "product" in str(row.figures["kernel0"])
    assert samples.name == sampled.NAME
    assert samples.passed
    assert float(samples.figures["own_samples/large"]) >= 8, samples.detail


def test_a_fig_leaf_over_a_library_product_is_suspicious_and_the_sentence_names_it(
    processes: Processes, exhibits: Exhibits
) -> None:
    with loaded(processes, exhibits, CANDIDATE.format(body=FIG_LEAF)) as (trial, built), pytest.raises(Fault) as caught:
        provenance.check(trial, built)
    assert caught.value.verdict == Verdict.SUSPICIOUS
    assert "aten::mm" in caught.value.reason
    assert "asks for 90% own code" in caught.value.reason
    assert not trial.evaluation.checks[-1].passed


def test_a_blas_behind_an_own_function_shows_in_samples(processes: Processes, exhibits: Exhibits) -> None:
    """The profiler sees one call into the candidate's own library; its threads are found in torch's."""
    source = (
        CANDIDATE.format(body=OWN).replace(PRODUCT, BLAS).replace("#include <cstdint>", "#include <cstdint>\n" + GEMM)
    )
    for _attempt in range(6):  # a busy machine may hide it, and then the judge does not know
        with loaded(processes, exhibits, GLOBAL + source) as (trial, built), pytest.raises(Fault) as caught:
            provenance.check(trial, built)
        assert trial.evaluation.checks[0].passed
        if caught.value.verdict != Verdict.INFRA_ERROR:
            break
    else:
        assert quiet.overloaded(), f"only a busy machine may hide it: {caught.value.reason}"
        pytest.skip(caught.value.reason)
    assert caught.value.verdict == Verdict.SUSPICIOUS
    assert not trial.evaluation.checks[1].passed
    assert "libtorch_cpu.so" in caught.value.reason


def test_work_that_is_done_when_the_result_is_taken_is_seen(processes: Processes, exhibits: Exhibits) -> None:
    source = CANDIDATE.format(body="WORK[y.data_ptr()] = lambda: " + OWN).replace(
        "lib = load_cpp", PATCHED + "lib = load_cpp"
    )
    with loaded(processes, exhibits, source) as (trial, built), pytest.raises(Fault) as caught:
        provenance.check(trial, built)
    assert trial.evaluation.checks[-1].name == sampled.LATE
    assert caught.value.verdict == Verdict.SUSPICIOUS


def test_a_policy_of_zero_only_reports(processes: Processes, exhibits: Exhibits) -> None:
    with loaded(processes, exhibits, CANDIDATE.format(body=FIG_LEAF), share=0.0) as (trial, built):
        provenance.check(trial, built)
    assert trial.evaluation.checks[-1].passed
    assert float(trial.evaluation.checks[-1].figures["share"]) < 0.5


@pytest.mark.parametrize(
    "body",
    [
        "import numpy; y.copy_(torch.from_numpy(numpy.maximum(x.numpy() @ self.weight.detach().numpy(), 0)))",
        "import time; time.sleep(0.002); y.copy_(torch.relu(x @ self.weight))",
    ],
)
def test_time_that_nothing_explains_is_not_its_own(processes: Processes, exhibits: Exhibits, body: str) -> None:
    with loaded(processes, exhibits, CANDIDATE.format(body=body)) as (trial, built), pytest.raises(Fault) as caught:
        provenance.check(trial, built)
    assert caught.value.verdict == Verdict.SUSPICIOUS


def test_work_in_another_thread_is_seen(processes: Processes, exhibits: Exhibits) -> None:
    body = "import threading; t = threading.Thread(target=lambda: y.copy_(torch.relu(x @ self.weight.detach())))"
    source = CANDIDATE.format(body=body + "; t.start(); t.join()")
    with loaded(processes, exhibits, source) as (trial, built), pytest.raises(Fault) as caught:
        provenance.check(trial, built)
    assert caught.value.verdict == Verdict.SUSPICIOUS


def test_a_name_that_was_never_built_is_nobodys(processes: Processes, exhibits: Exhibits) -> None:
    marked = "with torch._C._profiler._RecordFunctionFast('own:invented'): torch.mm(x, self.weight, out=y).relu_()"
    with loaded(processes, exhibits, CANDIDATE.format(body=marked)) as (trial, built), pytest.raises(Fault):
        provenance.check(trial, built)


def test_a_list_that_claims_more_time_than_passed_is_forged(processes: Processes, exhibits: Exhibits) -> None:
    forging = "import worker.runner.provenance as p; p._self_times = lambda events: [('own:product', False, 10**10)]"
    source = CANDIDATE.format(body=forging + "; " + FIG_LEAF)
    with loaded(processes, exhibits, source) as (trial, built), pytest.raises(Fault) as caught:
        provenance.check(trial, built)
    assert "does not come from these calls" in caught.value.reason
