"""FlashInfer Trace and SOL-ExecBench as types: a definition, its workloads, a solution, a trace of one run.

The field names are those of the two projects' documentation. SOL-ExecBench began as FlashInfer Trace and differs in
this: an axis may be an expression, inputs may come from a function of the reference (`custom`), float64 and packed
float4 are types, and a solution names `languages` and one of its own two targets. Unknown fields are kept: both
formats grow, and what is read here is never written back changed.
"""

from __future__ import annotations

import ast
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

Name = Annotated[str, Field(min_length=1)]


class Part(BaseModel):
    """What all have in common. Written without fields that are null, where null says nothing."""

    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="strings")
    _telling_nulls: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        return {name: value for name, value in fields.items() if value is not None or name in self._telling_nulls}


class ConstAxis(Part):
    type: Literal["const"] = "const"
    value: Annotated[int, Field(ge=0)]
    description: str | None = None


class VarAxis(Part):
    """Its value comes with each workload."""

    type: Literal["var"] = "var"
    description: str | None = None


class ExprAxis(Part):
    """SOL-ExecBench: computed from other axes."""

    type: Literal["expr"] = "expr"
    expression: Name
    description: str | None = None


Axis = Annotated[ConstAxis | VarAxis | ExprAxis, Field(discriminator="type")]


class DType(StrEnum):
    """Element types; float64 and the packed float4 are SOL-ExecBench's alone."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT4_E2M1 = "float4_e2m1"
    FLOAT4_E2M1FN_X2 = "float4_e2m1fn_x2"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    BOOL = "bool"


class TensorSpec(Part):
    """`shape` names axes; null is a Python scalar, an empty list a tensor without dimensions."""

    _telling_nulls: ClassVar[frozenset[str]] = frozenset({"shape"})

    shape: list[Name] | None
    dtype: DType
    description: str | None = None


class Definition(Part):
    """What is computed: named inputs and outputs over named axes, and `reference`, whose `run` computes it."""

    name: Name
    op_type: Name | None = None
    axes: dict[Name, Axis]
    inputs: dict[Name, TensorSpec]
    outputs: dict[Name, TensorSpec]
    reference: Name
    tags: list[Name] | None = None
    description: str | None = None
    constraints: list[Name] | None = None
    custom_inputs_entrypoint: Name | None = None
    """SOL-ExecBench: the function of the reference that makes all inputs."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        tensors = [*self.inputs.items(), *self.outputs.items()]
        for name, tensor in tensors:
            for axis in tensor.shape or ():
                if axis not in self.axes:
                    raise ValueError(f'"{name}" has the axis "{axis}", which axes does not define')
        if both := self.inputs.keys() & self.outputs.keys():
            raise ValueError(f'"{sorted(both)[0]}" is both an input and an output')
        takes = parameters_of(self.reference, "run")
        if takes != list(self.inputs):
            raise ValueError(f"run takes {', '.join(takes) or 'nothing'}, but the inputs are {', '.join(self.inputs)}")
        return self


def parameters_of(source: str, function: str) -> list[str]:
    """The parameters of a top-level function, read and not run. Raises ValueError when there is none."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"reference is no Python: {error}") from error
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    raise ValueError(f"reference has no top-level function {function}")


class RandomInput(Part):
    type: Literal["random"] = "random"


class ScalarInput(Part):
    type: Literal["scalar"] = "scalar"
    value: bool | int | float


class SafetensorsInput(Part):
    type: Literal["safetensors"] = "safetensors"
    path: Name
    tensor_key: Name


class CustomInput(Part):
    """SOL-ExecBench: made by the definition's `custom_inputs_entrypoint`."""

    type: Literal["custom"] = "custom"


Input = Annotated[RandomInput | ScalarInput | SafetensorsInput | CustomInput, Field(discriminator="type")]


class Workload(Part):
    """One configuration of a definition: the values of its variable axes, and where each input comes from."""

    uuid: Name
    axes: dict[Name, Annotated[int, Field(ge=0)]]
    inputs: dict[Name, Input]


class SourceFile(Part):
    path: Name
    content: str


class BuildSpec(Part):
    """How a solution is built and called."""

    language: Literal["python", "triton", "cpp", "cuda"] | None = None
    """FlashInfer Trace."""
    languages: list[Name] | None = None
    """SOL-ExecBench: `pytorch`, `triton`, `cuda_cpp` and more."""
    target_hardware: Annotated[list[Name], Field(min_length=1)]
    entry_point: Annotated[str, Field(pattern=r"^[^:]+::[^:]+$")]
    dependencies: list[Name] = []
    destination_passing_style: bool = True
    """Whether outputs are passed as the last arguments, or returned."""
    binding: str | None = None

    @model_validator(mode="after")
    def _one_dialect(self) -> Self:
        if (self.language is None) == (self.languages is None):
            raise ValueError("a spec has either language (FlashInfer Trace) or languages (SOL-ExecBench)")
        return self


class Solution(Part):
    """An implementation of a definition, with all its files."""

    name: Name
    definition: Name
    author: Name
    spec: BuildSpec
    sources: Annotated[list[SourceFile], Field(min_length=1)]
    description: str | None = None

    @model_validator(mode="after")
    def _entry_is_there(self) -> Self:
        paths = [source.path for source in self.sources]
        if len(set(paths)) < len(paths):
            raise ValueError("two sources have the same path")
        if self.spec.entry_point.partition("::")[0] not in paths:
            raise ValueError(f"the entry point {self.spec.entry_point} is in none of the sources")
        return self


class Status(StrEnum):
    PASSED = "PASSED"
    INVALID_REFERENCE = "INVALID_REFERENCE"
    INCORRECT_SHAPE = "INCORRECT_SHAPE"
    INCORRECT_NUMERICAL = "INCORRECT_NUMERICAL"
    INCORRECT_DTYPE = "INCORRECT_DTYPE"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    COMPILE_ERROR = "COMPILE_ERROR"
    TIMEOUT = "TIMEOUT"


class Correctness(Part):
    """Errors; what was not measured is NaN, which both formats write as the string "NaN"."""

    max_relative_error: float
    max_absolute_error: float
    extra: dict[str, Any] | None = None


class Performance(Part):
    latency_ms: Annotated[float, Field(ge=0)]
    reference_latency_ms: Annotated[float, Field(ge=0)]
    speedup_factor: Annotated[float, Field(ge=0)]


class Environment(Part):
    hardware: Name
    libs: dict[str, str] = {}


class Evaluation(Part):
    """Which of the figures there are follows from the status."""

    status: Status
    environment: Environment
    timestamp: Name
    log: str = ""
    correctness: Correctness | None = None
    performance: Performance | None = None

    @model_validator(mode="after")
    def _figures_fit(self) -> Self:
        passed = self.status == Status.PASSED
        compared = passed or self.status == Status.INCORRECT_NUMERICAL
        for name, found, wanted in (("correctness", self.correctness, compared),
                                    ("performance", self.performance, passed)):  # fmt: skip
            if (found is not None) != wanted:
                raise ValueError(f"with status {self.status} there is {'' if wanted else 'no '}{name}")
        return self


class Trace(Part):
    """One run of a solution on a workload; without a solution and an evaluation it is only the workload."""

    _telling_nulls: ClassVar[frozenset[str]] = frozenset({"solution", "evaluation"})

    definition: Name
    workload: Workload
    solution: Name | None = None
    evaluation: Evaluation | None = None
