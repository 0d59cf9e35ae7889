from __future__ import annotations

import pytest

from cli.devices import Gpu, hardware_id, parse, select

ROWS = """0, GPU-aaaa-1, NVIDIA H100 80GB HBM3
1, GPU-bbbb-2, NVIDIA H200
2, GPU-bbcc-3, NVIDIA H200
"""
GPUS = parse(ROWS)


def test_rows_of_nvidia_smi_become_gpus_with_queues() -> None:
    assert GPUS[0] == Gpu(0, "GPU-aaaa-1", "NVIDIA H100 80GB HBM3")
    assert [gpu.queue for gpu in GPUS] == ["gpu.nvidia-h100", "gpu.nvidia-h200", "gpu.nvidia-h200"]


def test_what_nvidia_smi_says_without_a_driver_is_no_gpu() -> None:
    assert parse("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") == []


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-aaaa", [0]),
        ("GPU-bb", []),  # ambiguous
        ("1,-1,0", [1]),  # CUDA stops at the first that it does not know
    ],
)
def test_only_visible_devices_are_used(visible: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in select(GPUS, visible)] == indices


@pytest.mark.parametrize(
    ("name", "hardware"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia-h100"),
        ("NVIDIA H100 PCIe", "nvidia-h100"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100"),
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
        ("Tesla T4", "tesla-t4"),
        ("", "gpu"),
    ],
)
def test_hardware_ids(name: str, hardware: str) -> None:
    assert hardware_id(name) == hardware
