"""Arenas: bytes that judge and runner both see. A memfd on a CPU; exported device memory on a GPU.

The judge creates (`create`), the runner opens (`open_arena`). On a GPU the judge allocates whole large pages with
cuMemAlloc and exports a legacy IPC handle; it works across user, PID, network, IPC and mount namespaces (measured on an
H100) and needs no file that both sides can write, unlike torch's own sharing, which keeps its reference counts in
/dev/shm.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import warnings
from typing import Any, Protocol

import torch


class CudaDriverError(Exception):
    """The CUDA driver refused a call."""


class Arena(Protocol):
    """Shared bytes as a one-dimensional uint8 tensor."""

    bytes: torch.Tensor

    def handle(self) -> tuple[dict[str, Any], tuple[int, ...]]:
        """What the other side needs to open it: a JSON message and file descriptors."""
        ...

    def close(self) -> None:
        """Release it on this side."""
        ...


def create(nbytes: int, device: str) -> Arena:
    """A new arena of at least `nbytes` on `device` (`cpu` or `cuda:0`)."""
    return HostArena.create(nbytes) if device == "cpu" else DeviceArena.create(nbytes)


def open_arena(message: dict[str, Any], fds: list[int]) -> Arena:
    """Open the other side's arena from its handle."""
    if message["kind"] == "host":
        return HostArena(fds[0], message["nbytes"])
    return DeviceArena.open(bytes.fromhex(message["handle"]), message["nbytes"])


class HostArena:
    """A memfd, mapped by both sides."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, nbytes)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    @classmethod
    def create(cls, nbytes: int) -> HostArena:
        """A new zeroed arena, rounded up to whole pages."""
        size = max(mmap.PAGESIZE, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        fd = os.memfd_create("kernelwright-arena", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        return cls(fd, size)

    def handle(self) -> tuple[dict[str, Any], tuple[int, ...]]:
        return {"kind": "host", "nbytes": len(self._map)}, (self._fd,)

    def close(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        with contextlib.suppress(BufferError):  # a view may still be alive; the mapping then goes with it
            self._map.close()
        os.close(self._fd)


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class _DeviceBytes:
    """A device pointer for torch.as_tensor, through the CUDA array interface."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


_PAGE = 2 << 20
"""Bytes of a GPU's large page. Memory of another process is mapped in small ones unless it has a whole number of these:
rows in any order of 768 MB, opened so, took 7.8 ms instead of 0.63, and of 2 GB 22.6 (H100,
`benchmarks/cold_calls.py`)."""


class DeviceArena:
    """Device memory, allocated by the judge and opened by the runner."""

    def __init__(self, pointer: int, nbytes: int, *, owner: bool) -> None:
        self._pointer, self._nbytes, self._owner = pointer, nbytes, owner
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.bytes = torch.as_tensor(_DeviceBytes(pointer, nbytes), device="cuda:0")

    @classmethod
    def create(cls, nbytes: int) -> DeviceArena:
        """Allocate. Raises CudaDriverError when the device is full, also without what torch keeps for later here."""
        torch.cuda.current_stream()  # starts the driver
        size = max(1, -(-nbytes // _PAGE)) * _PAGE
        try:
            pointer = _allocated(size)
        except CudaDriverError:  # the driver does not know what torch could give back, and torch is not asked
            torch.cuda.empty_cache()
            pointer = _allocated(size)
        return cls(pointer, size, owner=True)

    @classmethod
    def open(cls, handle: bytes, nbytes: int) -> DeviceArena:
        """Map the other side's allocation."""
        torch.cuda.current_stream()
        torch.empty(1, device="cuda:0")
        pointer = ctypes.c_uint64()
        ipc = _IpcHandle.from_buffer_copy(handle)
        driver("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), ipc, ctypes.c_uint(1))
        return cls(pointer.value, nbytes, owner=False)

    def handle(self) -> tuple[dict[str, Any], tuple[int, ...]]:
        ipc = _IpcHandle()
        driver("cuIpcGetMemHandle", ctypes.byref(ipc), ctypes.c_uint64(self._pointer))
        return {"kind": "device", "nbytes": self._nbytes, "handle": bytes(ipc).hex()}, ()

    def close(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        if self._owner:
            torch.cuda.synchronize()
            driver("cuMemFree_v2", ctypes.c_uint64(self._pointer))


def _allocated(size: int) -> int:
    pointer = ctypes.c_uint64()
    driver("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer.value


class _Thread(threading.local):
    """What is known of the calling thread."""

    has_context = False


_thread = _Thread()


def driver(name: str, *arguments: Any) -> None:
    """Call the driver in torch's context, the device's primary one: a thread in which torch has done nothing has none
    (error 201 for the first allocation of each). Raises CudaDriverError."""
    if not _thread.has_context:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        _called("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        _called("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _called("cuCtxSetCurrent", context)
        _thread.has_context = True
    _called(name, *arguments)


def _called(name: str, *arguments: Any) -> None:
    library = _library()
    code = getattr(library, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorString(code, ctypes.byref(text))
        raise CudaDriverError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


def _library() -> Any:
    return ctypes.CDLL("libcuda.so.1")
