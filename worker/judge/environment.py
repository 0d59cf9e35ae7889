"""What a judgement was made on: device, versions, sandbox level. Kept with every evaluation."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch


def describe(device: str, sandbox_level: str) -> dict[str, Any]:
    """The environment of this judge as JSON."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "sandbox": sandbox_level,
        "device": "cpu",
    }
    if device != "cpu":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device": properties.name,
            "arch": f"sm_{properties.major}{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "device_memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    return facts


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
