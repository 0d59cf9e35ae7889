"""From a definition with its workloads to a problem file of our own: `run` inside a `Model`, and a SPEC.

Nothing of it is run here. What the file cannot say is refused, or its workload is left out, each with the reason:
values from files (their shapes alone would change what is computed) and random integers (no format says from which
range).
"""

from __future__ import annotations

import ast
import keyword
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from cli.errors import CliError
from cli.exchange.trace_models import (
    ConstAxis,
    CustomInput,
    Definition,
    DType,
    ExprAxis,
    Input,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    TensorSpec,
    VarAxis,
    Workload,
)
from problems.catalog import ProblemError, outline

_OURS: Final = frozenset({"Model", "SPEC", "get_inputs", "get_init_inputs"})
_DRAWN: Final = frozenset({DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN,
                           DType.FLOAT8_E5M2})  # fmt: skip
_ARITHMETIC: Final = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Add, ast.Sub, ast.Mult,
                      ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.UAdd, ast.USub, ast.Load)  # fmt: skip
MOST: Final = 8
"""Workloads of a problem, unless more are asked for: each is judged and timed for every candidate."""


class Unimportable(CliError):
    """{definition} cannot become a problem: {why}"""

    exit_code: ClassVar[int] = 2


class _Unusable(Exception):
    """Why a workload is left out."""


@dataclass(frozen=True, slots=True)
class ProblemFile:
    """A problem's source, with the workloads that it has not, by their uuid, and why."""

    name: str
    source: str
    workloads: tuple[str, ...]
    left_out: Mapping[str, str]


def problem_file(definition: Definition, workloads: Sequence[Workload], most: int = MOST) -> ProblemFile:
    """The problem. Raises Unimportable."""
    try:
        return _problem_file(definition, workloads, most)
    except (_Unusable, ProblemError) as error:
        raise Unimportable(definition=definition.name, why=error) from error


def _problem_file(definition: Definition, workloads: Sequence[Workload], most: int) -> ProblemFile:
    _check(definition)
    needed = [name for name, axis in definition.axes.items() if isinstance(axis, VarAxis)]
    needed += [name for name, spec in definition.inputs.items() if spec.shape is None]
    if not workloads and needed:
        raise _Unusable(f"{', '.join(needed)} have no values: give its workloads with --workloads")
    left_out: dict[str, str] = {}
    usable: dict[str, dict[str, float]] = {}
    for workload in workloads or [Workload(uuid="default", axes={}, inputs=_all_random(definition))]:
        try:
            params = _params(definition, workload)
        except _Unusable as why:
            left_out[workload.uuid] = str(why)
            continue
        if params in usable.values():
            left_out[workload.uuid] = "another workload has the same sizes"
        else:
            usable[workload.uuid] = params
    if not usable:
        raise _Unusable("; ".join(f"workload {uuid}: {why}" for uuid, why in list(left_out.items())[:3]))
    chosen = _spread(usable, most)
    left_out |= dict.fromkeys(usable.keys() - chosen.keys(), f"one of more than {most}")
    named = dict(zip(_names(chosen), chosen.values(), strict=True))
    source = _source(definition, named)
    outline(source, definition.name)
    return ProblemFile(definition.name, source, tuple(named), left_out)


def _all_random(definition: Definition) -> dict[str, RandomInput]:
    return dict.fromkeys(definition.inputs, RandomInput())


def _check(definition: Definition) -> None:
    for name in (*definition.axes, *definition.inputs):
        if not name.isidentifier() or keyword.iskeyword(name):
            raise _Unusable(f'"{name}" is no name that Python knows')
    if both := definition.axes.keys() & definition.inputs.keys():
        raise _Unusable(f'"{sorted(both)[0]}" is both an axis and an input')
    for name, axis in definition.axes.items():
        if isinstance(axis, ExprAxis):
            _check_expression(name, axis.expression, definition)
    if taken := _OURS & _bound(definition.reference):
        raise _Unusable(f"its reference defines {sorted(taken)[0]}, which a problem defines itself")


def _check_expression(name: str, expression: str, definition: Definition) -> None:
    try:
        nodes = list(ast.walk(ast.parse(expression, mode="eval")))
    except (SyntaxError, ValueError) as error:
        raise _Unusable(f'the axis "{name}" is {expression!r}, which is no expression') from error
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    known = {each for each, axis in definition.axes.items() if not isinstance(axis, ExprAxis)}
    numbers = all(isinstance(node.value, int | float) for node in nodes if isinstance(node, ast.Constant))
    if not all(isinstance(node, _ARITHMETIC) for node in nodes) or not numbers or names - known:
        raise _Unusable(f'the axis "{name}" is {expression!r}: only other axes, numbers and arithmetic are understood')


def _bound(source: str) -> set[str]:
    """The names that a module binds at its top level by classes, functions and plain assignments."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return found


def _params(definition: Definition, workload: Workload) -> dict[str, float]:
    """What get_inputs is called with for a workload. Raises _Unusable."""
    params: dict[str, float] = {}
    for name, axis in definition.axes.items():
        if isinstance(axis, VarAxis):
            if not workload.axes.get(name):
                raise _Unusable(f'it gives no size to "{name}"')
            params[name] = workload.axes[name]
    for name, spec in definition.inputs.items():
        given = workload.inputs.get(name)
        if given is None:
            raise _Unusable(f'it has no input "{name}"')
        if isinstance(given, SafetensorsInput | CustomInput):
            came = "a file" if isinstance(given, SafetensorsInput) else "a function"
            raise _Unusable(f'the values of "{name}" come from {came}')
        if spec.shape is None:
            if not isinstance(given, ScalarInput):
                raise _Unusable(f'"{name}" is a number, and it gives none')
            params[name] = given.value
        else:
            _check_drawn(name, spec, given)
    return params


def _check_drawn(name: str, spec: TensorSpec, given: Input) -> None:
    if not isinstance(given, RandomInput):
        raise _Unusable(f'"{name}" is a tensor, and it gives a number')
    if spec.dtype not in _DRAWN and spec.dtype != DType.BOOL:
        raise _Unusable(f'nothing says which {spec.dtype} values "{name}" may have')


def _spread(usable: Mapping[str, dict[str, float]], most: int) -> dict[str, dict[str, float]]:
    """At most so many, from the smallest to the largest."""
    ordered = sorted(usable.items(), key=lambda item: math.prod(value for value in item[1].values() if value > 1))
    if len(ordered) > most:
        step = (len(ordered) - 1) / max(1, most - 1)
        ordered = [ordered[round(place * step)] for place in range(most)]
    return dict(ordered)


def _names(chosen: Mapping[str, dict[str, float]]) -> list[str]:
    """Names that say the sizes, where that is short and tells the workloads apart."""
    sizes = ["_".join(f"{name}{value}" for name, value in params.items() if type(value) is int) or "default"
             for params in chosen.values()]  # fmt: skip
    telling = len(set(sizes)) == len(sizes) and max(map(len, sizes)) <= 60
    return sizes if telling else [f"w{place}" for place in range(len(sizes))]


def _source(definition: Definition, workloads: Mapping[str, Mapping[str, float]]) -> str:
    """The file: the reference first, because it may begin with imports from __future__."""
    takes = ", ".join(definition.inputs)
    params = ", ".join(next(iter(workloads.values())))
    about = " ".join((definition.description or definition.name).split())
    rows = [f"        {{'name': {name!r}, 'params': {dict(params)!r}}}," for name, params in workloads.items()]
    lines = [
        f"# From the definition {' '.join(definition.name.split())}: `run` is all of it, as it came.",
        definition.reference.strip("\n"),
        "",
        "",
        "import torch",
        "from torch import nn",
        "",
        "SPEC = {",
        f"    'summary': {about[:200]!r},",
        f"    'op_family': {(definition.op_type or 'other')!r},",
        "    'workloads': [",
        *rows,
        "    ],",
        "}",
        "",
        "",
        "class Model(nn.Module):",
        f"    def forward(self, {takes}):",
        f"        return run({takes})",
        "",
        "",
        f"def get_inputs({params}):",
        *_sizes(definition),
        "    return [",
        *(f"        {_drawn(name, spec)}," for name, spec in definition.inputs.items()),
        "    ]",
        "",
        "",
        "def get_init_inputs():",
        "    return []",
        "",
    ]
    return "\n".join(lines)


def _sizes(definition: Definition) -> Iterator[str]:
    for name, axis in definition.axes.items():
        if isinstance(axis, ConstAxis):
            yield f"    {name} = {axis.value}"
    for name, axis in definition.axes.items():
        if isinstance(axis, ExprAxis):
            yield f"    {name} = int({axis.expression})"


def _drawn(name: str, spec: TensorSpec) -> str:
    if spec.shape is None:
        return name
    shape = f"({', '.join(spec.shape)}{',' if len(spec.shape) == 1 else ''})"
    if spec.dtype == DType.BOOL:
        return f"torch.randint(0, 2, {shape}).bool()"
    drawn = f"torch.randn({shape})"
    return drawn if spec.dtype == DType.FLOAT32 else f"{drawn}.to(torch.{spec.dtype.value})"
