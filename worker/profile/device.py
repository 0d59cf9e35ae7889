"""What this machine offers for one hardware id, with two measured peaks, as one JSON-able dictionary.

    python -m worker.profile.device cpu            # prints the description; about 2 s, most of it importing torch
    python -m worker.profile.device --list         # prints the hardware ids present

Workers run it as a child process, so that they never import torch nor touch CUDA themselves.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

from worker.languages import LANGUAGES, language
from worker.profile import host
from worker.profile.gpus import Gpu, arch_of, detect_hardware, gpus
from worker.runner import sandbox

__all__ = ["HardwareMissing", "describe_device", "detect_hardware", "gpus"]

_BUDGET_S = 0.4
"""For each of the three measurements: the best of as many repetitions as fit, and at least two."""


class HardwareMissing(RuntimeError):
    """This machine has no such hardware. `python -m worker.profile.device --list` says what it has."""


def describe_device(hardware: str) -> dict[str, Any]:
    """Name, arch, cores or multiprocessors, memory, caches, driver, toolchain, sandbox level, measured peaks.

    `copy_gbps` counts bytes read and written, 10^9 a second; `matmul_tflops` is by data type, fp32 without TF32.
    Imports torch and, for a GPU, makes a CUDA context. Raises HardwareMissing.
    """
    place = None if hardware == "cpu" else _find(hardware)
    level = sandbox.best_level()  # forks: before torch has threads
    facts = _describe_cpu() if place is None else _describe_gpu(*place)
    return {"hardware": hardware, **facts, "toolchain": _toolchain(), "sandbox": level}


def _describe_cpu() -> dict[str, Any]:
    import torch

    small = torch.empty(0)
    return {
        "name": host.cpu_name(),
        "arch": host.cpu_arch(),
        "features": host.cpu_features(),
        "cores": host.cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": host.memory_bytes(),
        "l2_bytes": host.cache_bytes(2),
        "l3_bytes": host.cache_bytes(3),
        "driver": None,
        # 256 MiB: eight times a 32 MiB last-level cache. 1024^3: 2 GFLOP, 10-40 ms on two cores.
        "copy_gbps": _copy_gbps(small, elements=32 << 20, wait=_no_wait),
        "matmul_tflops": {
            "fp32": _matmul_tflops(small, 1024, torch.float32, _no_wait),
            "bf16": _matmul_tflops(small, 1024, torch.bfloat16, _no_wait),
        },
    }


def _describe_gpu(gpu: Gpu, index: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    device = torch.empty(0, device=f"cuda:{index}")
    torch.backends.cuda.matmul.allow_tf32 = False
    return {
        "name": properties.name,
        "arch": arch_of(properties.major, properties.minor),
        "sms": properties.multi_processor_count,
        "uuid": gpu.uuid,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "shared_memory_bytes": getattr(properties, "shared_memory_per_block_optin", None),
        "driver": gpu.driver,
        # 2 GiB is 30 times an L2 of 60 MiB. 8192^3 in bf16: 1.1 TFLOP, 1.4 ms on an H200.
        "copy_gbps": _copy_gbps(device, elements=256 << 20, wait=torch.cuda.synchronize),
        "matmul_tflops": {
            "fp32": _matmul_tflops(device, 4096, torch.float32, torch.cuda.synchronize),
            "bf16": _matmul_tflops(device, 8192, torch.bfloat16, torch.cuda.synchronize),
        },
    }


def _find(hardware: str) -> tuple[Gpu, int]:
    """The first GPU of that kind, and its CUDA index."""
    for index, gpu in enumerate(gpus()):
        if gpu.hardware == hardware:
            return gpu, index
    raise HardwareMissing(f"no {hardware} here; present: {', '.join(detect_hardware())}")


def _toolchain() -> dict[str, str | None]:
    import torch

    compilers: dict[str, str | None] = {name: language(name).describe().get("compiler") for name in LANGUAGES}
    return {
        "gxx": compilers["cpp"],
        "cuda_compiler": compilers["cuda"],
        "triton": compilers["triton"],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numpy": _installed("numpy"),
    }


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _copy_gbps(like: Any, elements: int, wait: Callable[[], object]) -> float:
    import torch

    source = torch.ones(elements, dtype=torch.float32, device=like.device)
    target = torch.empty_like(source)
    best_s = _best_s(lambda: target.copy_(source), wait)
    return _three_digits(2 * source.nbytes / best_s / 1e9)


def _matmul_tflops(like: Any, size: int, dtype: Any, wait: Callable[[], object]) -> float:
    import torch

    # Random and not zeros: a GPU multiplies zeros some 13 % faster, for want of heat.
    left, right = (torch.randn(size, size, device=like.device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    best_s = _best_s(lambda: torch.mm(left, right, out=out), wait)
    return _three_digits(2 * size**3 / best_s / 1e12)


def _three_digits(figure: float) -> float:
    """As many as were measured. Not decimals: a core without bf16 instructions does 0.0004 TFLOP/s, which is not 0."""
    return float(f"{figure:.3g}")


def _best_s(call: Callable[[], object], wait: Callable[[], object]) -> float:
    call()
    wait()
    best_s, deadline = float("inf"), time.perf_counter() + _BUDGET_S
    for repetition in range(1000):
        started = time.perf_counter()
        call()
        wait()
        ended = time.perf_counter()
        best_s = min(best_s, ended - started)
        if ended > deadline and repetition >= 1:
            break
    return best_s


def _no_wait() -> None:
    """A CPU operation is done when it returns."""


def main(arguments: list[str]) -> int:
    """Print a description or the list; exit code 2 for hardware that is not here."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m worker.profile.device cpu|nvidia-…|--list\n")
        return 2
    if arguments == ["--list"]:
        sys.stdout.write(json.dumps(detect_hardware()) + "\n")
        return 0
    try:
        sys.stdout.write(json.dumps(describe_device(arguments[0])) + "\n")
    except HardwareMissing as missing:
        sys.stderr.write(f"{missing}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
