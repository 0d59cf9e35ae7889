"""On a device: configurations of a Triton kernel measured in one runner, and a dispatching source that is judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from search.configurations import Measured, plan_dispatch
from search.tunables import read_space, with_values
from worker.dispatching import dispatching_source
from worker.judge.client import Judge, JudgeOptions
from worker.judge.report import EvaluationRequest

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROBLEM = """
import torch
from torch import nn
SPEC = {"workloads": [{"name": "small", "params": {"rows": 64}}, {"name": "large", "params": {"rows": 8192}}]}
class Model(nn.Module):
    def forward(self, x, y):
        return torch.relu(x + y) * 2
def get_inputs(rows=64):
    return [torch.randn(rows, 4096), torch.randn(rows, 4096)]
def get_init_inputs():
    return []
"""
TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn

TUNABLES = {"BLOCK": [32, 1024, 4096], "WARPS": [1, 4, 8]}
BLOCK = 1024
WARPS = 4


@triton.jit
def fused(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, tl.where(value < 0, 0.0, value) * 2, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty_like(x)
        fused[(triton.cdiv(x.numel(), BLOCK),)](x, y, out, x.numel(), BLOCK=BLOCK, num_warps=WARPS)
        return out
"""
REQUEST = EvaluationRequest("c", TRITON, "relu", PROBLEM, "nvidia-h100", "triton")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    options = JudgeOptions(home=tmp_path_factory.mktemp("home"), hardware="nvidia-h100", eager_only=True)
    with Judge(options) as running:
        yield running


def test_configurations_are_measured_in_one_runner(judge: Judge) -> None:
    poor = judge.measure(REQUEST, with_values(TRITON, {"BLOCK": 32, "WARPS": 1}))
    assert poor["verdict"] == "ok", poor["reason"]
    assert poor["ratios"]["large"] < 1, "32 elements a program are slower than 1024"
    assert poor["signatures"]["small"] == [["float32", 64, 4096]] * 2
    itself = judge.measure(REQUEST, TRITON)
    assert itself["verdict"] == "ok", itself["reason"]
    judge.rest(PROBLEM)


def test_a_dispatching_source_is_judged_like_any_other(judge: Judge) -> None:
    space = read_space(TRITON)
    assert space is not None
    signatures = {"small": [["float32", 64, 4096]] * 2, "large": [["float32", 8192, 4096]] * 2}
    found = [
        Measured({"BLOCK": 4096, "WARPS": 8}, {"small": 0.8, "large": 1.3}),
        Measured({"BLOCK": 1024, "WARPS": 8}, {"small": 1.3, "large": 0.9}),
    ]
    plan = plan_dispatch(found, space.defaults, signatures)
    assert plan is not None
    source = dispatching_source(TRITON, space, plan)
    report = judge.evaluate(replace(REQUEST, candidate_source=source))
    assert report["verdict"] == "ok", report["reason"]


def test_triton_has_no_fingerprint_before_it_runs(judge: Judge) -> None:
    assert judge.fingerprint(REQUEST) is None
