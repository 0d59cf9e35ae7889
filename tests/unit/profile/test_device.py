"""What the machine says of itself, with real answers here and recorded ones of GPU machines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from worker.profile import gpus as gpu_list
from worker.profile import host
from worker.profile.device import HardwareMissing, describe_device, detect_hardware
from worker.runner import sandbox

ROOT = Path(__file__).parents[3]
# nvidia-smi of a machine with two H200, as it prints them.
TWO = """0, GPU-11111111-2222-3333-4444-555555555555, NVIDIA H200, 143771, 580.159.04, 9.0
1, GPU-66666666-7777-8888-9999-000000000000, NVIDIA H200, 143771, 580.159.04, 9.0
"""


@pytest.fixture(scope="module")
def described() -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "worker.profile.device", "cpu"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    parsed: dict[str, object] = json.loads(done.stdout)
    return parsed


def test_the_cpu_is_described_with_measured_peaks(described: dict[str, object]) -> None:
    assert described["hardware"] == "cpu"
    assert described["name"]
    assert described["driver"] is None
    assert described["sandbox"] in sandbox.LEVELS
    assert isinstance(described["cores"], int)
    assert described["cores"] >= 1
    assert isinstance(described["memory_bytes"], int)
    assert described["memory_bytes"] > 1 << 28
    assert isinstance(described["copy_gbps"], float)
    assert described["copy_gbps"] > 0
    peaks = described["matmul_tflops"]
    assert isinstance(peaks, dict)
    assert set(peaks) == {"fp32", "bf16"}
    assert min(peaks.values()) > 0


def test_the_toolchain_is_named(described: dict[str, object]) -> None:
    toolchain = described["toolchain"]
    assert isinstance(toolchain, dict)
    assert set(toolchain) == {"gxx", "cuda_compiler", "triton", "torch", "cuda", "numpy"}
    assert toolchain["torch"]


def test_asking_which_hardware_is_here_imports_no_torch() -> None:
    code = "import sys; from worker.profile import device; print(device.detect_hardware(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("['cpu'")
    assert done.stdout.rstrip().endswith("False")


def test_hardware_that_is_not_here_is_named() -> None:
    with pytest.raises(HardwareMissing, match="no nvidia-none here; present: cpu"):
        describe_device("nvidia-none")
    assert detect_hardware()[0] == "cpu"


@pytest.mark.parametrize(
    ("name", "hardware"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100"),
        ("NVIDIA H100 PCIe", "nvidia-h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100"),
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
        ("NVIDIA L4", "nvidia-l4"),
        ("NVIDIA B200", "nvidia-b200"),
    ],
)
def test_hardware_ids(name: str, hardware: str) -> None:
    assert gpu_list.hardware_id(name) == hardware


def test_a_listing_is_read() -> None:
    first, second = gpu_list._parse(TWO)
    assert (first.index, first.hardware, first.arch, first.driver) == (0, "nvidia-h200", "sm_90a", "580.159.04")
    assert first.memory_bytes == 143771 << 20
    assert second.uuid == "GPU-66666666-7777-8888-9999-000000000000"


@pytest.mark.parametrize(
    "noise", ["", "No devices were found\n", "Failed to initialize NVML: Driver/library mismatch\n"]
)
def test_a_listing_without_gpus_is_empty(noise: str) -> None:
    assert gpu_list._parse(noise) == []


@pytest.mark.parametrize(
    ("mask", "indices"),
    [(None, [0, 1]), ("1,0", [1, 0]), ("GPU-6666", [1]), ("", []), ("7", []), ("0,7,1", [0]), (" 1 ", [1])],
)
def test_the_visible_devices_are_respected(mask: str | None, indices: list[int]) -> None:
    found = gpu_list._parse(TWO)
    assert [gpu.index for gpu in gpu_list.visible(found, mask)] == indices


def test_archs_from_hopper_on_are_the_specific_ones() -> None:
    assert [gpu_list.arch_of(*version) for version in ((8, 0), (8, 9), (9, 0), (10, 0))] == [
        "sm_80", "sm_89", "sm_90a", "sm_100a",
    ]  # fmt: skip


def test_host_facts_are_plausible() -> None:
    assert host.cores() >= 1
    assert host.cpu_name()
    assert host.cpu_arch()
    for level in (1, 2, 3):
        size = host.cache_bytes(level)
        assert size is None or size >= 1 << 10
    assert host.cache_bytes(9) is None


def test_the_last_level_caches_of_all_sockets_count_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for core in range(4):
        for index, (level, kind, size) in enumerate([(1, "Data", "48K"), (2, "Unified", "1M"), (3, "Unified", "16M")]):
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            shared = {1: str(core), 2: str(core), 3: "0-1" if core < 2 else "2-3"}[level]
            for name, text in (("level", str(level)), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(text + "\n")
    monkeypatch.setattr(host, "_CACHES", tmp_path / "cpu0" / "cache")
    assert host.last_level_cache_bytes() == 32 << 20
    monkeypatch.setattr(host, "_CACHES", tmp_path / "none" / "cpu0" / "cache")
    assert host.last_level_cache_bytes() is None
