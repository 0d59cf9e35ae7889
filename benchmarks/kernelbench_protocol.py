"""KernelBench's published protocol as a baseline to compare the judge with: one candidate, one cold process.

Import torch; take the device; build the candidate while holding it (CUDA by `load_inline`, with torch's headers, as the
suite's candidates are written); compare 5 outputs with the reference's in the same process by `torch.allclose` at one
fixed tolerance (1e-4 for float32, 1e-2 for 16 bit); time 100 calls of the candidate and 100 of the reference with CUDA
events after 3 warm-ups (the process's own clock on a CPU). Written from the
description of the suite (Ouyang et al., "KernelBench: Can LLMs Write Efficient GPU Kernels?", 2025), none of its code.

    python -m benchmarks.kernelbench_protocol FOLDER       # FOLDER: problem.py, candidate.py, job.json; see `protocol`

FOLDER/times.json says when the device was taken and how long builds took before that: they are made beside other
processes, so that measuring does not take hours, and count as if the device had been held. FOLDER/result.json says what
came of it. The result is what the process
itself says, and the candidate runs in that process: that is the protocol.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from worker.judge.lease import DeviceLease
from worker.runner import kernelwright

PROBLEM, CANDIDATE, JOB, TIMES, RESULT = "problem.py", "candidate.py", "job.json", "times.json", "result.json"
SEED, CHECKS, WARMUPS, TRIALS = 42, 5, 3, 100
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
_INLINE_FLAGS = [f"-U__CUDA_NO_{what}__" for what in (
    "HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")]  # fmt: skip
"""`load_inline` forbids what the candidates' sources, written for plain nvcc, use."""
Call = Callable[..., Any]


class Device:
    """The device as this process holds it: to its end, when its context is gone too, but for builds."""

    def __init__(self, job: dict[str, Any], times: Path) -> None:
        self._job, self._times = job, times
        self._leased = self._built_s = 0.0
        self._held = contextlib.ExitStack()

    def take(self) -> None:
        """Hold it alone, and let the time run out."""
        self._held.enter_context(DeviceLease(Path(self._job["locks"]), "device").exclusive())
        self._leased = time.monotonic()
        self._times.write_text(json.dumps({"leased": self._leased, "built_s": self._built_s}))
        signal.alarm(int(self._job["limit_s"]))  # its default action ends the process, wherever it hangs

    def built(self, language: str, source: str, flags: tuple[str, ...]) -> str:
        """An artefact for `kernelwright`, whose own, faster build of it is not counted."""
        self._built_s += time.monotonic() - self._leased
        signal.alarm(0)
        self._held.close()
        try:
            start = time.monotonic()
            try:
                if language == "cuda":
                    load_inline(source, flags)
            finally:
                self._built_s += time.monotonic() - start
            return str(kernelwright._build_here(language, source, flags))
        finally:
            self.take()


class Refused(Exception):
    """The candidate is wrong. The message says where it was seen."""


def main() -> int:
    """Do what the arguments say. Exit code 0: the candidate was accepted."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / JOB).read_text())
    sys.modules["kernelwright"] = kernelwright
    if job["device"] != "cpu":
        importlib.import_module("triton")  # with torch: importing does not need the device
    device = Device(job, folder / TIMES)
    device.take()
    if job["device"] != "cpu":
        kernelwright._set_builder(device.built)
    result = judge(folder, job["params"], job["device"])
    (folder / RESULT).write_text(json.dumps(result))
    return 0 if result["accepted"] else 1


def judge(folder: Path, params: dict[str, Any], device: str) -> dict[str, Any]:
    """Build, check, time. Everything that a candidate raises is a rejection."""
    stages_s: dict[str, float] = {}
    result: dict[str, Any] = {"accepted": False, "stages_s": stages_s}
    start = time.monotonic()
    try:
        problem = load(folder / PROBLEM)
        reference, candidate = build(problem, folder / CANDIDATE, params, device)
        stages_s["build"] = time.monotonic() - start
        check(problem, reference, candidate, params, device)
        stages_s["check"] = time.monotonic() - start - stages_s["build"]
        inputs = _drawn(problem, params, device, SEED)
        result["candidate_us"] = time_us(candidate, inputs, device)
        result["reference_us"] = time_us(reference, inputs, device)
        result["accepted"] = True
    except Exception as failed:  # noqa: BLE001 - the boundary of this process: a candidate may raise anything
        result["reason"] = f"{type(failed).__name__}: {failed}"[:500]
    stages_s["all"] = time.monotonic() - start
    return result


def load(path: Path) -> ModuleType:
    """A module from a file: Triton reads its source from there."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def build(problem: ModuleType, path: Path, params: dict[str, Any], device: str) -> tuple[Call, Call]:
    """The reference and the candidate, both initialised from the same seed, as the protocol has it."""
    init = call_accepting(problem.get_init_inputs, params)
    torch.manual_seed(SEED)
    reference = problem.Model(*init).to(device)
    torch.manual_seed(SEED)
    candidate = load(path).ModelNew(*init).to(device)
    return reference, candidate


def check(problem: ModuleType, reference: Call, candidate: Call, params: dict[str, Any], device: str) -> None:
    """Five draws of the file's own inputs. Raises Refused."""
    seeds = random.Random(SEED)
    for trial in range(CHECKS):
        inputs = _drawn(problem, params, device, seeds.randrange(1 << 31))
        with torch.no_grad():
            expected = _outputs(reference(*inputs))
            _settle(device)
            found = _outputs(candidate(*inputs))
            _settle(device)
        compare(expected, found, trial)


def compare(expected: tuple[torch.Tensor, ...], found: tuple[torch.Tensor, ...], trial: int) -> None:
    """`torch.allclose` output by output at the fixed tolerance of its type. Raises Refused."""
    for index, (right, mine) in enumerate(zip(expected, found, strict=True)):
        if right.shape != mine.shape:
            raise Refused(f"trial {trial}: output {index} has shape {tuple(mine.shape)}, not {tuple(right.shape)}")
        limit = TOLERANCE.get(right.dtype, 0.0)
        if not torch.allclose(right, mine, rtol=limit, atol=limit):
            raise Refused(f"trial {trial}: output {index} is not close at {limit}")


def time_us(call: Call, inputs: list[Any], device: str) -> float:
    """Mean of 100 calls on one set of inputs, in microseconds."""
    with torch.no_grad():
        for _warm_up in range(WARMUPS):
            call(*inputs)
        _settle(device)
        return statistics.fmean(_timed_us(call, inputs, device) for _trial in range(TRIALS))


def call_accepting(function: Call, params: dict[str, Any]) -> list[Any]:
    """Call a problem's function with those of the workload's parameters that it takes."""
    accepted = inspect.signature(function).parameters
    return list(function(**{name: value for name, value in params.items() if name in accepted}))


def _timed_us(call: Call, inputs: list[Any], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        call(*inputs)
        return (time.perf_counter() - start) * 1e6
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    call(*inputs)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _drawn(problem: ModuleType, params: dict[str, Any], device: str, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    values = call_accepting(problem.get_inputs, params)
    return [value.to(device) if isinstance(value, torch.Tensor) else value for value in values]


def _outputs(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def load_inline(source: str, flags: tuple[str, ...]) -> None:
    """Build a candidate's CUDA source the way the published suite's candidates are built. Raises RuntimeError."""
    from torch.utils import cpp_extension

    major, minor = torch.cuda.get_device_capability()
    os.environ["TORCH_CUDA_ARCH_LIST"] = f"{major}.{minor}" + ("a" if major >= 9 else "")
    inline: Call = cpp_extension.load_inline
    inline(
        f"candidate_{hashlib.sha256(source.encode()).hexdigest()[:12]}",
        cpp_sources="int64_t loaded();",
        cuda_sources=f"{source}\n#include <cstdint>\nint64_t loaded() {{ return 1; }}\n",
        functions=["loaded"],
        extra_cuda_cflags=[*_INLINE_FLAGS, *flags],
    )


if __name__ == "__main__":
    sys.exit(main())
