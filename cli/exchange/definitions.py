"""From calls of a problem to definitions: which dimensions are axes, which of them are constant, and the reference.

A definition is a pure function of its inputs, so a module's parameters become inputs like any other, named as in its
state dict. Workloads whose modules or types differ cannot share a definition: each kind gets its own.

Dimensions that have the same sizes in all workloads are one axis. It has the name of the workload parameter with these
sizes; else it is called by its size. It is constant when nothing varies it, or when it is given to the constructor.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from cli.errors import CliError
from cli.exchange.trace_models import (
    Axis,
    ConstAxis,
    Definition,
    DType,
    RandomInput,
    ScalarInput,
    TensorSpec,
    VarAxis,
    Workload,
    parameters_of,
)

_SPACE: Final = uuid.UUID("6d0f8c8e-5a2c-5b1d-9f7e-2f1a7c3b9e40")
"""Ids of workloads are made of a problem's hash and a workload's name, so that exporting twice gives the same ones."""


class Unexportable(CliError):
    """{problem} cannot be described in this format: {why}"""

    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Tensor:
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Scalar:
    value: bool | int | float

    @property
    def dtype(self) -> str:
        """What the formats call a Python number."""
        return {bool: "bool", int: "int64", float: "float32"}[type(self.value)]


Value = Tensor | Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """One workload of a problem: its parameters, those of them that the constructor takes, and what a call is of."""

    workload: str
    params: Mapping[str, Any]
    fixed: tuple[str, ...]
    init: tuple[Any, ...]
    inputs: Mapping[str, Value]
    state: Mapping[str, Value]
    outputs: tuple[Value, ...]

    @property
    def kind(self) -> tuple[Any, ...]:
        """Calls of one kind can share a definition."""
        values = [*self.inputs.items(), *self.state.items(), *enumerate(self.outputs)]
        return repr(self.init), tuple((name, _kind(value)) for name, value in values)


@dataclass(frozen=True, slots=True)
class Described:
    """A definition with its workloads by the names that the problem gives them, and how a module is called."""

    definition: Definition
    workloads: Mapping[str, Workload]
    init: tuple[Any, ...]
    arguments: tuple[str, ...]
    """Inputs that are forward's arguments."""
    state: Mapping[str, str]
    """Names in the state dict, by the inputs that they are."""
    tensor: str
    """An input that is a tensor: it says on which device everything is."""


def _kind(value: Value) -> tuple[Any, ...]:
    return ("scalar", value.dtype) if isinstance(value, Scalar) else (len(value.shape), value.dtype)


def describe(calls: Sequence[Call], source: str, name: str, op_family: str, summary: str = "") -> list[Described]:
    """The definitions of a problem. Raises Unexportable."""
    kinds: dict[tuple[Any, ...], list[Call]] = {}
    for call in calls:
        kinds.setdefault(call.kind, []).append(call)
    groups = list(kinds.values())
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
    # Names become those of files, and a problem may call its workloads anything.
    plain, kind = _word(name), _word(op_family)
    names = [f"{plain}_{digest[:8]}" + (f"_{_word(group[0].workload)}" if len(groups) > 1 else "") for group in groups]
    try:
        return [
            _described(group, source, digest, each, kind, summary) for group, each in zip(groups, names, strict=True)
        ]
    except ValueError as error:
        raise Unexportable(problem=name, why=error) from error


def _described(calls: list[Call], source: str, digest: str, name: str, kind: str, summary: str) -> Described:
    first = calls[0]
    _check(first, source)
    axes = _Axes(calls)
    arguments = tuple(first.inputs)
    state: dict[str, str] = {}
    for each in first.state:
        state[_free(_identifier(each), {*first.inputs, *state})] = each
    tensor = next(name for name, value in [*first.inputs.items(), *zip(state, first.state.values(), strict=True)]
                  if isinstance(value, Tensor))  # fmt: skip
    inputs = {each: axes.spec([call.inputs[each] for call in calls]) for each in arguments}
    inputs |= {each: axes.spec([call.state[known] for call in calls]) for each, known in state.items()}
    one = len(first.outputs) == 1
    outputs = {
        _free("output" if one else f"output{place}", inputs): axes.spec([call.outputs[place] for call in calls])
        for place in range(len(first.outputs))
    }
    definition = Definition(
        name=name,
        op_type=kind,
        description=summary or None,
        axes=axes.found,
        inputs=inputs,
        outputs=outputs,
        reference=_reference(source, first, arguments, state, tensor),
        tags=["source:kernelwright"],
    )
    workloads = {call.workload: _workload(call, axes, place, digest, state) for place, call in enumerate(calls)}
    return Described(definition, workloads, first.init, arguments, state, tensor)


def _check(call: Call, source: str) -> None:
    """Raises ValueError for what a definition cannot say."""
    known = set(DType)
    for name, value in [*call.inputs.items(), *call.state.items(), *(("an output", each) for each in call.outputs)]:
        if value.dtype not in known:
            raise ValueError(f"{name} is {value.dtype}, which is none of its types")
    if not any(isinstance(each, Tensor) for each in (*call.inputs.values(), *call.state.values())):
        raise ValueError("no input is a tensor")
    if not all(isinstance(each, Tensor) for each in call.outputs):
        raise ValueError("forward returns something that is no tensor")
    if not _literal(call.init):
        raise ValueError("get_init_inputs returns something other than numbers, strings and lists of them")
    try:
        parameters_of(source, "run")
    except ValueError:
        return
    raise ValueError("the problem has a function called run, which is the name of the reference's entry point")


def _literal(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_literal(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


@dataclass(slots=True)
class _Axes:
    """Finds the axes of the calls of one kind while their tensors are described."""

    calls: list[Call]
    found: dict[str, Axis] = field(default_factory=dict)
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def spec(self, values: Sequence[Value]) -> TensorSpec:
        """The description of one input or output, given its value in each call."""
        dtype = DType(values[0].dtype)
        shapes = [value.shape for value in values if isinstance(value, Tensor)]
        if not shapes:
            return TensorSpec(shape=None, dtype=dtype)
        shape: list[str] = []
        for sizes in zip(*shapes, strict=True):
            shape.append(self._axis(sizes, shape))
        return TensorSpec(shape=shape, dtype=dtype)

    def _axis(self, sizes: tuple[int, ...], beside: Sequence[str]) -> str:
        """The axis of these sizes. A square tensor's two are told apart where two parameters have the size."""
        named = [name for name in self.calls[0].params if self._given(name) == sizes and self._usable(name)]
        name = next((each for each in named if each not in beside), named[0] if named else None)
        if name is None:
            known = [
                each for each, values in self.sizes.items() if values == sizes and each not in self.calls[0].params
            ]
            name = known[0] if known else self._new_name(sizes)
        constant = len(set(sizes)) == 1 and (name not in self.calls[0].params or name in self.calls[0].fixed)
        self.found.setdefault(name, ConstAxis(value=sizes[0]) if constant else VarAxis())
        self.sizes.setdefault(name, sizes)
        return name

    def _usable(self, name: str) -> bool:
        """An axis is called like no input."""
        return name.isidentifier() and name not in self.calls[0].inputs

    def _new_name(self, sizes: tuple[int, ...]) -> str:
        first = self.calls[0]
        taken = {*first.params, *first.inputs, *map(_identifier, first.state), *self.sizes}
        return _free(f"d{sizes[0]}" if len(set(sizes)) == 1 else "n", taken)

    def _given(self, name: str) -> tuple[Any, ...]:
        return tuple(call.params.get(name) if type(call.params.get(name)) is int else None for call in self.calls)

    def of(self, place: int) -> dict[str, int]:
        """The values of the variable axes in one call."""
        return {name: self.sizes[name][place] for name, axis in self.found.items() if isinstance(axis, VarAxis)}


def _workload(call: Call, axes: _Axes, place: int, digest: str, state: Mapping[str, str]) -> Workload:
    inputs = {
        name: ScalarInput(value=value.value) if isinstance(value, Scalar) else RandomInput()
        for name, value in call.inputs.items()
    }
    return Workload(
        uuid=str(uuid.uuid5(_SPACE, f"{digest} {call.workload}")),
        axes=axes.of(place),
        inputs={**inputs, **{name: RandomInput() for name in state}},
    )


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_") or "other"


def _identifier(name: str) -> str:
    plain = re.sub(r"\W", "_", name)
    return plain if plain.isidentifier() else f"_{plain}"


def _free(name: str, taken: Mapping[str, Any] | set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def functional(making: str, arguments: Sequence[str], state: Mapping[str, str]) -> str:
    """A function `run` that calls a module as a function of its arguments and its state.

    `making` are the indented lines that make `_module`; the state's values are then put in the place of its own.
    """
    given = ", ".join(f"{known!r}: {name}" for name, known in state.items())
    passed = "".join(f"{name}, " for name in arguments)
    return (
        f"def run({', '.join((*arguments, *state))}):\n"
        f"{making}"
        f"    return torch.func.functional_call(_module, {{{given}}}, ({passed}))\n"
    )


def _reference(source: str, call: Call, arguments: Sequence[str], state: Mapping[str, str], tensor: str) -> str:
    made = f"Model({', '.join(map(repr, call.init))})"
    making = f"    with {tensor}.device:\n        _module = {made}\n"
    return f"{source.rstrip()}\n\n\nimport torch\n\n\n{functional(making, arguments, state)}"
