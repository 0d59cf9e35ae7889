"""A first look at proposals on a GPU, without the judge: are they right on the workloads' inputs, how long do they run?

Nothing here counts: times are of device events behind a flushed L2 cache, beside the host's microseconds of the same
call, which is what small calls wait for. It takes seconds an operator, where a judgement takes a minute or two.

Several operators are loaded, built and compiled side by side, since an extension takes a compiler half a minute; one at
a time is timed. Each is looked at in a process of its own: one that hangs or loses its context is ended. Proposals are
looked at with other constants too where that is asked for: a sweep over what a tuner may not change, or before it does.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import problems.suite
from benchmarks.record.plan import PROPOSALS, language_of
from problems.catalog import bundled
from search.tunables import UnknownTunable, with_values
from search.types import ParamValue
from worker.judge import phases
from worker.judge.lease import DeviceLease
from worker.judge.reference.problem import Instance, Problem
from worker.runner import kernelwright
from worker.runner.values import tensors_of

SUITE = Path(problems.suite.__file__).parent
_FLUSH_BYTES = 512 << 20
_WARM, _CALLS = 2, 11
_LIMIT_S = 300.0
"""For one operator: two extensions that are built beside seven others."""

Changes = Mapping[str, ParamValue]
Contender = type[torch.nn.Module] | Exception
"""The class to make a workload's model of, or why there is none."""


def changes_of(text: str) -> Changes:
    """`"PAIR=1,EARLY=0"` as values by name. Raises ValueError for anything but names with literals."""
    named = (part.partition("=") for part in text.split(","))
    return {name.strip(): ast.literal_eval(value.strip()) for name, _equals, value in named}


def look_at_all(
    problems: Sequence[str], hardware: str, at_once: int, home: Path, changes: Sequence[str] = ()
) -> Iterator[str]:
    """The lines of each operator, as soon as they are known. `home`: a folder for the lock on the device."""
    with ThreadPoolExecutor(at_once) as threads:
        for looked in as_completed([threads.submit(_apart, problem, hardware, home, changes) for problem in problems]):
            yield from looked.result()


def _apart(problem: str, hardware: str, home: Path, changes: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.record", "look", "--problems", problem, "--hardware", hardware]
    command += [word for change in changes for word in ("--with", change)]
    try:
        ended = subprocess.run(
            [*command, "--home", str(home)], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return [*said.splitlines(), f"{problem}: ended after {_LIMIT_S:.0f} s"]
    lines = ended.stdout.splitlines()
    return (
        lines
        if ended.returncode == 0
        else [*lines, f"{problem}: exit status {ended.returncode}, {ended.stderr[-300:]!r}"]
    )


def look(asked: str, hardware: str, home: Path, changes: Sequence[str] = ()) -> Iterator[str]:
    """A line for each workload: eager, each library and each proposal, device and host microseconds, and the largest
    relative error of an output (Frobenius norm, against eager).

    `asked`: an operator, or `name:language:proposal`; `changes`: constants to look at besides, as in `changes_of`, of
    those proposals that have them.
    """
    sys.modules["kernelwright"] = kernelwright
    problem, _, only = asked.replace(":", " ").partition(" ")
    home.mkdir(parents=True, exist_ok=True)
    lease = DeviceLease(home, "look", phases.GPU)
    outline = bundled()[problem]
    reference = _loaded(SUITE / f"{problem}.py")
    contenders = {f"library_{name}": _named(each, reference) for name, each in outline.spec.library.items()}
    for path in sorted((PROPOSALS / problem).glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if language_of(source) == "cpp" or only.split()[1:] not in ([], [path.stem]):
            continue
        contenders[path.stem] = _named("ModelNew", _loaded(path))
        for change in changes:
            with contextlib.suppress(UnknownTunable):
                varied = home / f"{path.stem} {change}.py"  # Triton reads its kernels from a file
                varied.write_text(with_values(source, changes_of(change)), encoding="utf-8")
                contenders[varied.stem] = _named("ModelNew", _loaded(varied))
    loaded = Problem(outline.source, problem)
    for workload in loaded.workloads(hardware):
        with lease.shared():
            instance = loaded.instance(workload, "cuda:0", 1)
            cotangents = instance.like[instance.forward_inputs :]
            inputs = (*instance.like[: instance.forward_inputs], *(torch.randn_like(each) for each in cotangents))
            wanted = tensors_of((instance.call(*inputs),))
            torch.cuda.synchronize()
        parts = ["eager {:.1f}/{:.0f} us".format(*_timed(lease, instance.call, inputs))]
        for name, contender in contenders.items():
            parts.append(f"{name} {_told(contender, instance, inputs, wanted, lease)}")
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


def _named(name: str, module: ModuleType | Exception) -> Contender:
    return module if isinstance(module, Exception) else getattr(module, name)


def _told(
    contender: Contender, instance: Instance, inputs: tuple[Any, ...], wanted: list[Any], lease: DeviceLease
) -> str:
    if isinstance(contender, Exception):
        return f"does not load: {contender!r:.200}"
    try:
        call = _call(contender, instance)
        call(*inputs)  # compiles, for seconds, and keeps nobody from the device meanwhile
        with lease.shared():
            error = _error(tensors_of((call(*inputs),)), wanted)
        device_us, host_us = _timed(lease, call, inputs)
    except Exception as broken:  # noqa: BLE001 - as above
        return f"fails: {broken!r:.200}"
    return f"{device_us:.1f}/{host_us:.0f} us, off by {error:.1e}"


def _call(contender: type[torch.nn.Module], instance: Instance) -> Callable[..., Any]:
    model = contender(*instance.init).to("cuda:0")
    model.load_state_dict(instance.model.state_dict())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in instance.parameters)
    return instance.callable(model.train(instance.model.training))


def _error(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    pairs = [(one.double(), two.double()) for one, two in zip(found, wanted, strict=True)]
    return max(((one - two).norm() / (two.norm() + 1e-30)).item() for one, two in pairs)


def _timed(lease: DeviceLease, call: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[float, float]:
    """Median microseconds of a call, on the device and on the host."""
    with lease.exclusive():
        return _timed_alone(call, inputs)


def _timed_alone(call: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[float, float]:
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
