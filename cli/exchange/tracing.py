"""What a problem's call looks like, workload by workload: names, shapes and types of what goes in and comes out.

The file is run on torch's meta device, where tensors have no values, under the judge's guard for references; one that
needs values is run on the CPU.
"""

from __future__ import annotations

import inspect
import linecache
import types
from collections.abc import Sequence
from typing import Any

import torch

from cli.exchange.definitions import Call, Scalar, Tensor, Unexportable
from problems.catalog import ProblemError, Workload, outline
from worker.judge.reference.blame import FILE, blame
from worker.judge.verdict import ReferenceFailed


def trace(source: str, name: str, hardware: str) -> list[Call]:
    """A call for each workload that is judged on this hardware. Raises Unexportable."""
    try:
        read = outline(source, name)
        module = _loaded(source)
        return [_either(module, workload) for workload in read.spec.workloads_for(hardware)]
    except (ProblemError, ReferenceFailed) as error:
        raise Unexportable(problem=name, why=error) from error


def _loaded(source: str) -> types.ModuleType:
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    module = types.ModuleType("reference")
    with blame("the file does not run"):
        exec(compile(source, FILE, "exec"), module.__dict__)
    return module


def _either(module: types.ModuleType, workload: Workload) -> Call:
    try:
        return _call(module, workload, "meta")
    except ReferenceFailed:
        return _call(module, workload, "cpu")


def _call(module: types.ModuleType, workload: Workload, device: str) -> Call:
    with blame(f"workload {workload.name!r}"), torch.device(device), torch.no_grad():
        init = _asked(module.get_init_inputs, workload)
        model = module.Model(*init)
        inputs = _asked(module.get_inputs, workload)
        outputs = model(*inputs)
    names = [*list(inspect.signature(module.Model.forward).parameters)[1:]]
    names += [f"input{place}" for place in range(len(names), len(inputs))]
    returned = outputs if isinstance(outputs, tuple | list) else (outputs,)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return Call(
        workload=workload.name,
        params=dict(workload.params),
        fixed=tuple(name for name in workload.params if name in inspect.signature(module.get_init_inputs).parameters),
        init=tuple(init),
        inputs={name: _value(name, value) for name, value in zip(names, inputs, strict=False)},
        state={name: _value(name, state[name]) for name in model.state_dict()},
        outputs=tuple(_value("an output", value) for value in returned),
    )


def _asked(function: Any, workload: Workload) -> Sequence[Any]:
    accepted = inspect.signature(function).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in accepted.values())
    given = {name: value for name, value in workload.params.items() if takes_any or name in accepted}
    return list(function(**given))


def _value(name: str, value: Any) -> Tensor | Scalar:
    if isinstance(value, torch.Tensor):
        return Tensor(tuple(value.shape), str(value.dtype).removeprefix("torch."))
    if isinstance(value, bool | int | float):
        return Scalar(value)
    raise ReferenceFailed(f"{name} is a {type(value).__name__}; only tensors and numbers can be described")
