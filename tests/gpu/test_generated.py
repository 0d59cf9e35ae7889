"""Generated code on a real device: of CUDA from what the judge built, of Triton from the candidate's process.

pytest -m gpu tests/gpu/test_generated.py -s      # about 1 minute
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.test_profile import PROBLEM, STREAMING, TRITON
from worker.judge.client import Judge, JudgeOptions
from worker.judge.report import EvaluationRequest
from worker.judge.timing.device_state import DeviceWatch
from worker.languages import machine_code
from worker.profile.gpus import gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]
needs_nvdisasm = pytest.mark.skipif(machine_code.nvdisasm() is None, reason="needs nvdisasm")


@pytest.fixture(scope="module")
def hardware() -> str:
    return gpus()[0].hardware


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, hardware: str) -> Iterator[Judge]:
    home: Path = tmp_path_factory.mktemp("home")
    with Judge(JudgeOptions(home, hardware, eager_only=True, profile=False, code=True)) as started:
        yield started


def code_of(judge: Judge, hardware: str, language: str, source: str) -> dict[str, str]:
    report = judge.evaluate(EvaluationRequest("c", source, "problem", PROBLEM, hardware, language))
    assert report["verdict"] == "ok", (report["reason"], report["log"][-2000:])
    code: dict[str, str] = report["code"]
    print(language, {kind: len(text) for kind, text in code.items()}, report["stages_s"])  # noqa: T201
    return code


@needs_nvdisasm
def test_a_cuda_candidate_yields_its_ptx_and_sass(judge: Judge, hardware: str) -> None:
    code = code_of(judge, hardware, "cuda", STREAMING)
    assert set(code) == {"ptx", "sass"}
    assert code["ptx"].startswith("// cuda source 1 of 1, flags: none\n")
    assert ".entry shifted_relu(" in code["ptx"]
    assert ".text.shifted_relu:" in code["sass"] and "LDG.E" in code["sass"]


@needs_nvdisasm
def test_a_triton_candidate_yields_all_stages_of_what_ran(judge: Judge, hardware: str) -> None:
    code = code_of(judge, hardware, "triton", TRITON)
    assert set(code) == {"ttgir", "llvm", "ptx", "sass"}
    assert code["ptx"].startswith("// kernel shifted_relu, for only\n")
    assert code["ptx"].count(".visible .entry") == 1
    assert ".text.shifted_relu:" in code["sass"] and "LDG.E" in code["sass"]


def test_a_heartbeat_can_say_how_the_device_is() -> None:
    state = DeviceWatch(gpus()[0].uuid).read()
    assert state is not None
    assert state.sm_mhz > 100 and state.memory_mhz > 100 and state.power_w > 10 and 10 < state.temperature_c < 120
