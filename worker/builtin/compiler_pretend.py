"""Let Inductor write code for an NVIDIA GPU on a machine that has none.

Inductor asks the device for its properties, and torch for the device; nothing else of a GPU is needed as long as all
tensors are fake and the code is not run. Triton candidates can so be proposed, checked in the interpreter and built
ahead of time on any machine.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from worker.builtin.compiler_problem import replaced

# An H100 SXM (sm_90): what Inductor reads of it decides block sizes and when a reduction is split.
_PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32, total_memory=80 << 30,
    shared_memory_per_block_optin=232448, L2_cache_size=50 << 20,
)  # fmt: skip
_CAPABILITY = (9, 0)


@contextmanager
def gpu_to_compile_for() -> Iterator[torch.device]:
    """The device that Inductor shall write code for: the GPU that is here, or a pretended H100."""
    device = torch.device("cuda:0")
    if torch.cuda.is_available():
        yield device
        return
    with ExitStack() as stack:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing Inductor warns
            patches = list(_patches())
        for patch in patches:
            stack.enter_context(patch)
        _forget()
        stack.callback(_forget)
        yield device


def _patches() -> Iterator[Any]:
    from torch._dynamo import device_interface
    from torch._inductor import config
    from torch._inductor.fx_passes import joint_graph, post_grad
    from torch.utils import _triton

    device_interface.get_interface_for_device("cpu")  # fills the table
    stub = _stub_interface()
    interfaces = device_interface.device_interfaces
    yield replaced(device_interface, "device_interfaces", {**interfaces, "cuda": stub, "cuda:0": stub})
    yield replaced(torch.cuda, "get_device_capability", lambda _device=None: _CAPABILITY)
    yield replaced(torch.cuda, "get_device_properties", lambda _device=None: _PROPERTIES)
    yield replaced(_triton, "triton_hash_with_backend", lambda: "")
    for passes in (joint_graph, post_grad):  # their patterns are traced with real tensors
        if hasattr(passes, "lazy_init"):
            yield replaced(passes, "lazy_init", _on_cpu(passes.lazy_init))
    # Folding makes constants on the device, padding times products on it.
    patch: Any = config.patch
    yield patch(joint_graph_constant_folding=False, shape_padding=False)


def _on_cpu(lazy_init: Any) -> Any:
    # Called as Inductor calls it: what it has done is remembered by its arguments, and to do it twice is an error.
    return lambda *devices: lazy_init(*[torch.device("cpu") for _ in devices])


def _stub_interface() -> type:
    from torch._dynamo.device_interface import CudaInterface

    properties = staticmethod(lambda _device=None: _PROPERTIES)
    asked_by_workers = {"current_device": staticmethod(lambda: 0), "get_device_properties": properties}
    answers: dict[str, Any] = {
        "Worker": type("Worker", (CudaInterface.Worker,), asked_by_workers),
        "current_device": staticmethod(lambda: 0),
        "device_count": staticmethod(lambda: 1),
        "is_available": staticmethod(lambda: True),
        "get_device_properties": properties,
        "get_compute_capability": staticmethod(lambda _device=None: 10 * _CAPABILITY[0] + _CAPABILITY[1]),
        "is_triton_capable": staticmethod(lambda _device=None: True),
        "raise_if_triton_unavailable": staticmethod(lambda _device=None: None),
        "is_bf16_supported": staticmethod(lambda *_args, **_kwargs: True),
    }
    return type("PretendedCuda", (CudaInterface,), answers)


def _forget() -> None:
    """Answers about the device that torch has cached."""
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.utils import _triton

    for cached in (DeviceProperties.create, _triton.has_triton, _triton.triton_hash_with_backend):
        clear = getattr(cached, "cache_clear", None)
        if clear is not None:
            clear()
