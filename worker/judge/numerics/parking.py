"""Truths and eager's results that wait in the host's memory, from where a GPU takes one at a time.

Large ones are pinned there while they live, so that the device copies them at its bus's speed and not through the
driver's small buffers. Without it problems of 50 GiB were prepared in 19 to 29 s on H100s, and verified in 10 to 16, in
which the device was mostly idle.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref

import torch

from worker.runner.memory import CudaDriverError, driver

_PINNED_BYTES = 32 << 20
"""Smaller tensors may share pages with others, by glibc's rules."""


def parked(result: torch.Tensor) -> torch.Tensor:
    """A device's tensor in the host's memory, or what lies there as it is."""
    if result.device.type == "cpu":
        return result
    held = torch.empty_like(result, device="cpu")
    if held.nbytes >= _PINNED_BYTES:
        pin(held)
    return held.copy_(result)


def pin(tensor: torch.Tensor) -> bool:
    """Have the driver keep a tensor of the host's memory in place while it lives. False where the driver does not,
    which costs only time."""
    pointer = ctypes.c_void_p(tensor.data_ptr())
    try:
        driver("cuMemHostRegister_v2", pointer, ctypes.c_size_t(tensor.nbytes), ctypes.c_uint(0))
    except CudaDriverError:
        return False
    weakref.finalize(tensor, _unpin, pointer).atexit = False  # before its memory is given back
    return True


def _unpin(pointer: ctypes.c_void_p) -> None:
    with contextlib.suppress(CudaDriverError):  # of a context that is lost
        driver("cuMemHostUnregister", pointer)
