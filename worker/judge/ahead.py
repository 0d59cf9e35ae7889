"""Triton candidates without their GPU: an ahead-of-time build for its architecture, in a runner of its own."""

from __future__ import annotations

from typing import Any

from worker.judge.runners.bench import Workbench
from worker.judge.verdict import Check, Fault, Verdict

_DEFAULT_ARCH = "sm_90a"
_ARCHES = {"nvidia-h100": "sm_90a", "nvidia-h200": "sm_90a", "nvidia-a100": "sm_80", "nvidia-l4": "sm_89",
           "nvidia-b200": "sm_100a"}  # fmt: skip
_RUN_LIMIT_S = 120.0


def arch_of(hardware: str) -> str:
    """The architecture to build for; Hopper where the hardware does not say."""
    for known, arch in _ARCHES.items():
        if hardware.startswith(known):
            return arch
    return _DEFAULT_ARCH


def built_kernels(bench: Workbench, subject: str, arch: str) -> Check:
    """Call the candidate once with its launches compiled for `arch`, and say what was built. Raises Fault."""
    failed: Fault | None = None
    try:
        bench.run(subject, 0, _RUN_LIMIT_S)
    except Fault as fault:
        failed = fault  # the recorder knows the compiler's own error, if that was the cause
    report = bench.runner.ask({"op": "recorded"}, 30)
    kernels = report.get("kernels")
    if report.get("error") or not isinstance(kernels, list):
        raise Fault(Verdict.BUILD_ERROR, f"does not build for {arch}: {str(report.get('error'))[:1500]}")
    if failed is not None:
        raise failed
    if not kernels:
        raise Fault(Verdict.BUILD_ERROR, "no Triton kernel was launched, so none could be built ahead of time")
    detail = f"{len(kernels)} kernel{'s' if len(kernels) > 1 else ''} built ahead of time for {arch}"
    return Check("ahead-of-time build", True, detail, _figures(kernels[0]))


def _figures(kernel: Any) -> dict[str, float | str]:
    """The first kernel's resources, as far as the (untrusted) report has them as plain numbers and text."""
    if not isinstance(kernel, dict):
        return {}
    return {str(key)[:40]: value for key, value in kernel.items() if isinstance(value, int | float | str)}
