"""The GPUs of this machine, by `nvidia-smi`: no torch, so that a supervisor stays small and touches no device."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

_QUERY = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: `uuid` pins a process to it (CUDA_VISIBLE_DEVICES), `hardware` names its queue (`gpu.<hardware>`)."""

    index: int
    uuid: str
    name: str

    @property
    def hardware(self) -> str:
        """Such as `nvidia-h100`: vendor and model without memory size and form factor."""
        return hardware_id(self.name)

    @property
    def queue(self) -> str:
        """The ledger's queue for evaluations on this kind of GPU."""
        return f"gpu.{self.hardware}"


def hardware_id(device_name: str) -> str:
    """`NVIDIA H100 80GB HBM3` is `nvidia-h100`: lower case, dashes, and no memory or form factor behind the model."""
    words = re.sub(r"[^a-z0-9]+", " ", device_name.lower()).split()
    kept: list[str] = []
    for word in words:
        if kept and re.fullmatch(r"\d+gb|hbm\d*e?|sxm\d*|pcie|nvl", word):
            break
        kept.append(word)
    return "-".join(kept) or "gpu"


def visible_gpus(env: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, none where there is no driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, timeout=30, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return []
    return select(parse(answer), env.get("CUDA_VISIBLE_DEVICES"))


def parse(answer: str) -> list[Gpu]:
    """The rows of nvidia-smi's CSV."""
    rows = (line.split(",", 2) for line in answer.splitlines() if line.count(",") >= 2)
    return [Gpu(int(index), uuid.strip(), name.strip()) for index, uuid, name in rows]


def select(gpus: list[Gpu], visible: str | None) -> list[Gpu]:
    """Those that `visible` (CUDA_VISIBLE_DEVICES: indices or uuids, cut at the first unknown) leaves, in its order."""
    if visible is None:
        return gpus
    chosen: list[Gpu] = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        found = [gpu for gpu in gpus if word == str(gpu.index) or gpu.uuid.startswith(word)]
        if len(found) != 1:
            break
        chosen += found
    return chosen
