"""The canary: a small kernel of our own in a fresh process, which tells a broken device from a broken candidate.

Run by the worker after a candidate's process ended in a way that a device might be the cause of:
python -m worker.judge.canary HARDWARE. Prints one JSON object: `sound`, `why` and how long a control kernel takes.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch

_SIZE, _ROUNDS = 1024, 20
_FREE_BYTES = 256 << 20


def main() -> int:
    """Returns 0 when the device computes right, 1 when not."""
    found = examine("cpu" if sys.argv[1] == "cpu" else "cuda:0")
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if found["sound"] else 1


def examine(device: str) -> dict[str, Any]:
    """Whether the device allocates, computes and copies back what is right. Whatever it raises is the answer."""
    try:
        return _examine(device)
    except Exception as failure:  # noqa: BLE001 - a broken device fails in whatever way it likes
        if "out of memory" in str(failure):  # others fill it: it cannot be told, and no reason to give the worker up
            return {"sound": True, "why": "the device's memory is full"}
        return {"sound": False, "why": f"{type(failure).__name__}: {failure}"[:500]}


def _examine(device: str) -> dict[str, Any]:
    held = torch.full((_FREE_BYTES // 4,), 3, dtype=torch.int32, device=device)
    # Small whole numbers: every order of summing them in float32 is exact, so that the answer is the one answer.
    ones = torch.arange(_SIZE * _SIZE, device=device).remainder(5).to(torch.float32).reshape(_SIZE, _SIZE)
    times_us = []
    for _round in range(_ROUNDS):
        _settle(device)
        started = time.perf_counter()
        product = ones @ ones
        _settle(device)
        times_us.append((time.perf_counter() - started) * 1e6)
    here = ones.cpu()
    if not torch.equal(product.cpu(), (here.double() @ here.double()).float()):
        return {"sound": False, "why": "a product of matrices is wrong"}
    if int(held.sum(dtype=torch.int64)) != 3 * held.numel():
        return {"sound": False, "why": "memory does not hold what was written to it"}
    return {"sound": True, "why": "", "control_us": round(statistics.median(times_us), 2)}


def _settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
