"""Facts about this machine's processor and memory, read from Linux; None for what it does not say (gVisor, say)."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CGROUP = Path("/sys/fs/cgroup")
# Psabi levels of x86-64, by the features that the kernel names in /proc/cpuinfo.
_LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"},
    "x86-64-v2": {"sse4_2", "ssse3", "popcnt", "cx16"},
}
_WORTH_NAMING = re.compile(r"avx2|avx512\w*|avx_vnni|amx_\w+|fma|f16c|asimd\w*|sve\w*|bf16|i8mm")


def cpu_name() -> str:
    """The processor's model name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_arch() -> str:
    """The highest x86-64 level that the processor has (x86-64-v4 has AVX-512), or the machine's name elsewhere."""
    if platform.machine() != "x86_64":
        return platform.machine()
    features = set((_cpuinfo("flags") or "").split())
    return next((level for level, needed in _LEVELS.items() if needed <= features), "x86-64")


def cpu_features() -> list[str]:
    """Vector and matrix instruction sets."""
    return sorted(filter(_WORTH_NAMING.fullmatch, set((_cpuinfo("flags") or _cpuinfo("Features") or "").split())))


def cores() -> int:
    """Cores that this process may use: its affinity, or fewer where a cgroup grants less time."""
    usable = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        usable = min(usable, math.ceil(int(quota) / int(period)))  # "max" raises: no quota
    return max(1, usable)


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or less where a cgroup grants less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int((_CGROUP / "memory.max").read_text()))
    return total


def cache_bytes(level: int) -> int | None:
    """Size of the first core's data or unified cache of that level."""
    for index in sorted(_CACHES.glob("index*")):
        with contextlib.suppress(OSError, ValueError):
            if int((index / "level").read_text()) == level and (index / "type").read_text().strip() != "Instruction":
                size = (index / "size").read_text().strip()
                return int(size.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(size[-1], 0)
    return None


def last_level_cache_bytes() -> int | None:
    """All last-level caches of the machine together: one per socket, or several on chips made of pieces."""
    found: dict[tuple[int, str], int] = {}
    for index in _CACHES.parent.parent.glob("cpu[0-9]*/cache/index*"):
        with contextlib.suppress(OSError, ValueError):
            if (index / "type").read_text().strip() == "Instruction":
                continue
            size = (index / "size").read_text().strip()
            shared = (index / "shared_cpu_list").read_text().strip()
            level = int((index / "level").read_text())
            found[level, shared] = int(size.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(size[-1], 0)
    last = max((level for level, _shared in found), default=0)
    return sum(size for (level, _shared), size in found.items() if level == last) or None


def _cpuinfo(field: str) -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _colon, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return None
