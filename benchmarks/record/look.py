"""A first look at proposals on a GPU, without the judge: are they right on the workloads' inputs, how long do they run?

Nothing here counts: times are of device events behind a flushed L2 cache, beside the host's microseconds of the same
call, which is what small calls wait for. It takes seconds an operator, where a judgement takes a minute or two.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.record.plan import PROPOSALS
from problems.catalog import bundled
from worker.judge.reference.problem import Instance, Problem
from worker.runner import kernelwright
from worker.runner.values import tensors_of

_FLUSH_BYTES = 512 << 20
_WARM, _CALLS = 2, 11


def look(problem: str, hardware: str) -> Iterator[str]:
    """A line for each workload: eager and each proposal, device and host microseconds, and the largest relative error
    of an output (Frobenius norm, against eager)."""
    sys.modules["kernelwright"] = kernelwright
    outline = bundled()[problem]
    modules = {path.stem: _loaded(path) for path in sorted((PROPOSALS / problem).glob("*.py"))}
    loaded = Problem(outline.source, problem)
    for workload in loaded.workloads(hardware):
        instance = loaded.instance(workload, "cuda:0", 1)
        cotangents = instance.like[instance.forward_inputs :]
        inputs = (*instance.like[: instance.forward_inputs], *(torch.randn_like(each) for each in cotangents))
        wanted = tensors_of((instance.call(*inputs),))
        parts = ["eager {:.0f}/{:.0f} us".format(*_timed(instance.call, inputs))]
        parts += [f"{name} {_told(module, instance, inputs, wanted)}" for name, module in modules.items()]
        yield f"{problem} {workload.name}: {' | '.join(parts)}"
        del instance, cotangents, inputs, wanted
        torch.cuda.empty_cache()


def _loaded(path: Path) -> ModuleType | Exception:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None, "a file of Python"
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as broken:  # noqa: BLE001 - the next proposal is looked at all the same
        return broken
    return module


def _told(module: ModuleType | Exception, instance: Instance, inputs: tuple[Any, ...], wanted: list[Any]) -> str:
    if isinstance(module, Exception):
        return f"does not load: {module!r:.200}"
    try:
        model = module.ModelNew(*instance.init).to("cuda:0")
        model.load_state_dict(instance.model.state_dict())
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in instance.parameters)
        call = instance.callable(model.train(instance.model.training))
        found = tensors_of((call(*inputs),))
        device_us, host_us = _timed(call, inputs)
    except Exception as broken:  # noqa: BLE001 - as above
        return f"fails: {broken!r:.200}"
    return f"{device_us:.0f}/{host_us:.0f} us, off by {_error(found, wanted):.1e}"


def _error(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    pairs = [(one.double(), two.double()) for one, two in zip(found, wanted, strict=True)]
    return max(((one - two).norm() / (two.norm() + 1e-30)).item() for one, two in pairs)


def _timed(call: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[float, float]:
    """Median microseconds of a call, on the device and on the host."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda:0")
    for _warm in range(_WARM):
        call(*inputs)
    device, host = [], []
    for _call in range(_CALLS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.zero_()
        start.record()
        began = time.perf_counter()
        call(*inputs)
        host.append((time.perf_counter() - began) * 1e6)
        end.record()
        torch.cuda.synchronize()
        device.append(start.elapsed_time(end) * 1e3)
    return statistics.median(device), statistics.median(host)
