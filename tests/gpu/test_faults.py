"""On a device: candidates that fault, hang, take all memory or leave a context; a control kernel before and after.

The control is the canary's: a product of matrices in a fresh process. After each fault it must be right, and as fast as
before within 10 % (the median of three processes on either side).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hostile.traps import token
from worker.judge.client import Judge, JudgeOptions
from worker.judge.report import EvaluationRequest
from worker.judge.runners.processes import Processes, RefereeOptions
from worker.judge.runners.sessions import Runner
from worker.quarantine import canary

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

HARDWARE = "nvidia-h200" if torch.cuda.is_available() and "H200" in torch.cuda.get_device_name() else "nvidia-h100"
PROBLEM = """
import torch
from torch import nn

SPEC = {"workloads": [{"name": "only", "params": {"rows": 1024}}]}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1024))
    def forward(self, x):
        return torch.relu(x + self.bias)

def get_inputs(rows=1024):
    return [torch.randn(rows, 1024)]

def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch, triton
import triton.language as tl
from torch import nn

@triton.jit
def kernel(x, bias, out, n, far, ENDLESS: tl.constexpr):
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    value = tl.load(x + at + far) + tl.load(bias + tl.arange(0, 1024))
    if ENDLESS:
        count = tl.load(out + at)
        while tl.max(tl.abs(count), 0) >= 0:
            count = tl.load(out + at, volatile=True)
        value += count
    tl.store(out + at + far, tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=at < n)

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1024))
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        BODY
        kernel[(x.shape[0],)](x, self.bias, out, x.numel(), FAR, ENDLESS=LOOPS)
        return out
"""
FAULTS = {
    "illegal-access": ({"FAR": "1 << 45"}, {"illegal_access", "launch_error"}),
    "hang": ({"LOOPS": "True", "BODY": "out.zero_()"}, {"timeout"}),
    "out-of-memory": (
        {"BODY": "held = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(400)]"},
        {"launch_error"},
    ),
    "device-assert": (
        {"BODY": "torch._assert_async(torch.zeros(1, device='cuda'))"},
        {"launch_error", "illegal_access"},
    ),
    "context-left-behind": (
        {"BODY": "import os; pid = os.fork(); pid or (os.setsid(), __import__('time').sleep(600)); os._exit(1)"},
        {"launch_error"},
    ),
}


def candidate(**changed: str) -> str:
    source = CANDIDATE
    for place, what in ({"BODY": "pass", "FAR": "0", "LOOPS": "False"} | changed).items():
        source = source.replace(place, what) if place != "LOOPS" else source.replace("ENDLESS=LOOPS", f"ENDLESS={what}")
    return source


def control_us() -> float:
    """The canary's control kernel in three fresh processes: the median of their medians."""
    times = []
    for _process in range(3):
        command = [sys.executable, "-m", "worker.judge.canary", HARDWARE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        times.append(float(json.loads(done.stdout.splitlines()[-1])["control_us"]))
    return statistics.median(times)


def used_bytes() -> int:
    """Device memory in use by everybody."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with Judge(JudgeOptions(home=tmp_path_factory.mktemp("faults"), hardware=HARDWARE, eager_only=True)) as running:
        yield running


def judged(judge: Judge, source: str) -> dict[str, Any]:
    return judge.evaluate(EvaluationRequest("cand_fault", source, "relu_bias", PROBLEM, HARDWARE, "triton"))


@pytest.mark.timeout(280)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_a_verdict_and_leaves_the_device_as_it_was(judge: Judge, name: str) -> None:
    changed, verdicts = FAULTS[name]
    honest = judged(judge, candidate())
    assert honest["verdict"] == "ok", honest["reason"]
    before_us, before_bytes = control_us(), used_bytes()
    faulty = judged(judge, candidate(**changed))
    assert faulty["verdict"] in verdicts, (faulty["verdict"], faulty["reason"])
    assert canary(HARDWARE) is None
    ratio = control_us() / before_us
    sys.stdout.write(f"{name}: {faulty['verdict']}; control kernel after / before {ratio:.3f}\n")
    assert used_bytes() - before_bytes < 1 << 30, "a context was left behind"
    again = judged(judge, candidate())
    assert again["verdict"] == "ok", again["reason"]
    sys.stdout.write(f"{name}: latency after / before {again['latency_us'] / honest['latency_us']:.3f}\n")
    # The one timing that is asserted: that it is unaffected is what this test is for. Generous, as machines are shared.
    assert 0.8 < ratio < 1.25


def runner_on_gpu(home: Path) -> Iterator[Runner]:
    processes = Processes(RefereeOptions(home=home, hardware=HARDWARE), on_gpu=True)
    try:
        with processes.runner() as runner:
            yield runner
    finally:
        processes.close()


def test_the_memory_of_another_process_is_not_found(tmp_path: Path) -> None:
    """A process's freed or living memory must not show up in what another allocates without writing it."""
    mark = 0x4B57_1234
    held = torch.full((256 << 20,), mark, dtype=torch.int32, device="cuda:0")
    secret = token()
    source = f"""
import torch
from torch import nn
pieces = [torch.empty(64 << 20, dtype=torch.int32, device="cuda") for _each in range(64)]
if any(bool((piece == {mark}).any()) for piece in pieces):
    print({secret!r}, flush=True)
class ModelNew(nn.Module):
    pass
"""
    message = {"op": "load", "subject": "reads", "source": source, "class": "ModelNew", "compile": None}
    for runner in runner_on_gpu(tmp_path):
        runner.ask(message, 120)
        assert secret not in runner.log()
    assert int(held[0]) == mark


def test_a_context_and_pinned_memory_work_beside_the_filter_of_system_calls(tmp_path: Path) -> None:
    source = """
import torch
from torch import nn
assert int(torch.ones(1000, device="cuda").sum()) == 1000
torch.empty(1 << 20, pin_memory=True)
class ModelNew(nn.Module):
    pass
"""
    message = {"op": "load", "subject": "works", "source": source, "class": "ModelNew", "compile": None}
    for runner in runner_on_gpu(tmp_path):
        runner.ask(message, 120)
