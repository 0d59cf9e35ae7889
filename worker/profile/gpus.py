"""Which GPUs are here, without initialising CUDA in the caller: a process that did could no longer fork runners.

`nvidia-smi` answers in about 30 ms; where it is missing, a child process asks the driver library.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_QUERY = "index,uuid,name,memory.total,driver_version,compute_cap"
_TIMEOUT_S = 60  # a driver that is not persistent wakes every GPU first: seconds each

_ASK_DRIVER = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, handle = ctypes.c_int(), ctypes.c_int()
memory, major, minor = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int()
name, uuid = ctypes.create_string_buffer(128), ctypes.create_string_buffer(16)
if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
    raise SystemExit(0)
for index in range(count.value):
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    cuda.cuDeviceGetName(name, 128, handle)
    cuda.cuDeviceGetUuid(uuid, handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, handle)
    h = uuid.raw.hex()
    print(index, f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}", name.value.decode(), memory.value >> 20,
          "", f"{major.value}.{minor.value}", sep=", ")
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One visible GPU."""

    index: int
    uuid: str
    """What to set CUDA_VISIBLE_DEVICES to: indices change with it, this does not."""
    name: str
    hardware: str
    """Hardware id, such as nvidia-h200."""
    arch: str
    """Compile target, such as sm_90a."""
    memory_bytes: int
    driver: str | None


def gpus() -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order; empty without a driver."""
    return visible(_parse(_listing()), os.environ.get("CUDA_VISIBLE_DEVICES"))


def detect_hardware() -> list[str]:
    """Hardware ids present: cpu first, then each kind of GPU once."""
    return list(dict.fromkeys(["cpu", *(gpu.hardware for gpu in gpus())]))


def hardware_id(name: str) -> str:
    """nvidia-h200 for "NVIDIA H200": lower case, dashes, without memory size, memory type and SXM socket.

    "PCIe" and "NVL" stay: those are other chips (an H100 PCIe has 114 multiprocessors, an SXM one 132).
    """
    words = re.split(r"[\s_-]+", name.strip().lower())
    return "-".join(word for word in words if not re.fullmatch(r"\d+(gb|mb)|hbm\d*e?|sxm\d*", word))


def arch_of(major: int, minor: int) -> str:
    """sm_90a for (9, 0): from Hopper on, the fastest matrix instructions are in the arch-specific family."""
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def visible(found: list[Gpu], mask: str | None) -> list[Gpu]:
    """The GPUs that a CUDA_VISIBLE_DEVICES value names, in its order; None is no restriction."""
    if mask is None:
        return found
    chosen: list[Gpu] = []
    for token in (part.strip() for part in mask.split(",")):
        match = [gpu for gpu in found if token == str(gpu.index) or (token and gpu.uuid.startswith(token))]
        if not match:
            break  # as CUDA does: the first name that means nothing ends the list
        chosen += match[:1]
    return chosen


def _listing() -> str:
    smi = shutil.which("nvidia-smi")
    if smi is not None:
        command = [smi, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    elif Path("/dev/nvidiactl").exists():
        command = [sys.executable, "-I", "-c", _ASK_DRIVER]
    else:
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""  # a driver that does not answer offers no GPU


def _parse(listing: str) -> list[Gpu]:
    found = []
    for row in csv.reader(listing.splitlines(), skipinitialspace=True):
        if len(row) != 6 or not row[0].isdigit():
            continue
        index, uuid, name, memory_mib, driver, capability = (cell.strip() for cell in row)
        major, _dot, minor = capability.partition(".")
        arch = arch_of(int(major), int(minor)) if major.isdigit() and minor.isdigit() else "unknown"
        memory = int(memory_mib) << 20 if memory_mib.isdigit() else 0
        found.append(Gpu(int(index), uuid, name, hardware_id(name), arch, memory, driver or None))
    return found
