"""Compiler seeds: Inductor's own kernels for the reference, made into a self-contained candidate.

    compiler_seed(source, "softmax", "cpu", "cpp")              one source for every shape that Inductor's code allows
    compiler_seed(source, "softmax", "nvidia-h100", "triton")   kernels for each workload's shapes, chosen at the call

On the CPU dimensions stay symbols: the code is as fast as for fixed ones to within some 10 %, and one kernel serves all
workloads. On a GPU Inductor's best kernels need known sizes (a row that fits in registers is read once), so there is a
set for each workload. Either way, inputs that nothing was compiled for raise, and never meet a kernel made for others.

The parts: `compiler_capture` gets Inductor's code, `compiler_wrapper` reads and rewrites it, `compiler_cpp` and
`compiler_triton` write the kernels, `compiler_variants` the tests of inputs, and this module the candidate round them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from worker.builtin.candidate import candidate
from worker.builtin.compiler_capture import Capture, capture, graph_text
from worker.builtin.compiler_cpp import CppKernels
from worker.builtin.compiler_pretend import gpu_to_compile_for
from worker.builtin.compiler_problem import NoCompilerSeed, Signature, signature
from worker.builtin.compiler_triton import TritonKernels
from worker.builtin.compiler_variants import Test, local_names, state_expression, test_of
from worker.builtin.compiler_wrapper import VIEW, Launcher, Plain, Wrapper, parse_wrapper, rewrite
from worker.builtin.expressions import Unmatched
from worker.builtin.trace import TraceError, Workload, load_source, workloads

__all__ = ["NoCompilerSeed", "compiler_seed"]


def compiler_seed(problem_source: str, problem_name: str, hardware: str, language: str) -> str:
    """The source of a candidate made from Inductor's output code. Raises NoCompilerSeed."""
    if language == "cpp" and hardware == "cpu":
        return _Seed(problem_source, problem_name, hardware, CppKernels(), torch.device("cpu")).for_any_shape()
    if language == "triton":
        kernels = TritonKernels(interpreted=hardware == "cpu")
        with gpu_to_compile_for() as device:
            return _Seed(problem_source, problem_name, hardware, kernels, device).for_each_shape()
    raise NoCompilerSeed(f"Inductor writes no {language} for {hardware}")


class Kernels(Launcher, Protocol):
    """The kernels of a candidate, in one language."""

    @property
    def imports(self) -> tuple[str, ...]:
        """The imports that the kernels need."""

    @property
    def tunables(self) -> Mapping[str, Sequence[object]]:
        """Names and choices."""

    @property
    def defaults(self) -> Mapping[str, object]:
        """First values of the tunables."""

    def begin(self, workload: str) -> None:
        """The calls of this workload follow."""

    def instead(self, wrapper: Wrapper, code: str, names: Mapping[str, str], returns: str) -> Plain | None:
        """How to call Inductor's output when it cannot be rewritten; None when that is no way either."""

    def code(self) -> str:
        """The module-level Python that defines the kernels. Raises NoCompilerSeed when there are none."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """Inductor's code for one workload, and the test of the inputs that it is for."""

    capture: Capture
    init: str
    call: Plain
    test: Test


class _Seed:
    """One candidate in the making."""

    def __init__(self, source: str, name: str, hardware: str, kernels: Kernels, device: torch.device) -> None:
        try:
            self.namespace = load_source(source, name)
        except TraceError as error:
            raise NoCompilerSeed(str(error)) from error
        self.source = source
        self.kernels = kernels
        self.device = device
        self.workloads = [(w, signature(self.namespace, w)) for w in workloads(source, hardware)]
        keys = {key: None for _, given in self.workloads for key in (*given.state, *given.inputs)}
        self.names = local_names(keys)
        self.variants: list[_Variant] = []

    def for_any_shape(self) -> str:
        """Code with symbols for dimensions; for fixed shapes where Inductor needs them. Raises NoCompilerSeed."""
        # Sizes of the example steer Inductor's choices (what to run in parallel): the largest comes first.
        for workload, given in sorted(self.workloads, key=lambda pair: -pair[1].elements):
            if not self._served(workload, given, dynamic=True):
                self._add(workload, given)
        return self._write("any shapes that its conditions allow")

    def for_each_shape(self) -> str:
        """Code for the shapes of each workload. Raises NoCompilerSeed."""
        for workload, given in self.workloads:
            if not self._served(workload, given, dynamic=False):
                self.variants.append(self._variant(workload, given, dynamic=False))
        return self._write("the shapes of " + ", ".join(variant.capture.workload for variant in self.variants))

    def _add(self, workload: Workload, given: Signature) -> None:
        try:
            variant = self._variant(workload, given, dynamic=True)
            if not variant.test.accepts(self._values(given)):
                raise NoCompilerSeed("Inductor's conditions do not hold for its own example")
        except NoCompilerSeed:
            variant = self._variant(workload, given, dynamic=False)
        self.variants.append(variant)

    def _variant(self, workload: Workload, given: Signature, *, dynamic: bool) -> _Variant:
        captured = capture(self.namespace, workload, self.device, dynamic=dynamic)
        wrapper = parse_wrapper(captured.code)
        if (len(wrapper.parameters), wrapper.outputs) != (len(captured.arguments), captured.outputs):
            raise NoCompilerSeed("Inductor's call takes or returns other things than forward")
        names = {ours: self.names[a.key] for ours, a in zip(wrapper.parameters, captured.arguments, strict=True)}
        self.kernels.begin(workload.name)
        try:
            call = rewrite(wrapper, names, self.kernels, captured.returns)
        except NoCompilerSeed:
            instead = self.kernels.instead(wrapper, captured.code, names, captured.returns)
            if instead is None:
                raise
            call = instead
        return _Variant(captured, given.init, call, test_of(captured, self.names, call.used))

    def _served(self, workload: Workload, given: Signature, *, dynamic: bool) -> bool:
        """Whether there is code for this workload. Raises NoCompilerSeed when it only looks so to a call.

        What the constructor was told may be in the code, where a call cannot see it: the computations must be the same.
        """
        variant = next((v for v in self.variants if v.test.accepts(self._values(given))), None)
        if variant is None:
            return False
        if variant.init != given.init and variant.capture.graph != graph_text(
            self.namespace, workload, dynamic=dynamic
        ):
            raise NoCompilerSeed(f"{workload.name} and {variant.capture.workload} differ in what no input shows")
        return True

    def _values(self, given: Signature) -> dict[str, object]:
        return {self.names[key]: value for key, value in (given.state | given.inputs).items()}

    def _write(self, what_for: str) -> str:
        read = {name for variant in self.variants for name in (*variant.call.used, *variant.test.parameters)}
        inputs = {self.names[key]: key for key in self.workloads[0][1].inputs}
        passed = dict(inputs)
        for _, given in self.workloads:
            passed |= {self.names[key]: state_expression(key) for key in given.state if self.names[key] in read}
        try:
            return candidate(
                self.source,
                plan=f"Inductor's own kernels (torch {torch.__version__}) for {what_for}.",
                imports=self.kernels.imports,
                tunables=self.kernels.tunables,
                defaults=self.kernels.defaults,
                constraints=(),
                kernel=self._module(list(passed)),
                returns=f"_run({', '.join(passed.values())})",
            )
        except Unmatched as error:
            raise NoCompilerSeed(str(error)) from error

    def _module(self, parameters: Sequence[str]) -> str:
        parts = [self.kernels.code()]
        if any("_view" in variant.call.used for variant in self.variants):
            parts.append(VIEW)
        dispatch = []
        for index, variant in enumerate(self.variants):
            test, call = f"_is_for_{index}", f"_call_{index}"
            parts += [variant.test.function(test), self._function(call, variant, parameters)]
            dispatch.append(f"if {test}({', '.join(variant.test.parameters)}):")
            dispatch.append(f"    return {call}({', '.join(self._taken(variant, parameters))})")
        lines = [*self._contiguous(parameters), *dispatch, f"raise NotImplementedError({_REFUSAL!r})"]
        run = "\n    ".join([f"def _run({', '.join(parameters)}):", *lines])
        return "\n\n".join([*parts, f"@torch.no_grad()\n{run}\n"])

    def _function(self, name: str, variant: _Variant, parameters: Sequence[str]) -> str:
        taken = self._taken(variant, parameters)
        lines = [f"# Workload {variant.capture.workload}."]
        if "device" in variant.call.used:
            lines.append(f"device = {taken[0]}.device")
        body = [line for text in (*lines, *variant.call.lines) for line in text.splitlines()]
        return "\n    ".join([f"def {name}({', '.join(taken)}):", *body]) + "\n"

    @staticmethod
    def _taken(variant: _Variant, parameters: Sequence[str]) -> list[str]:
        return [name for name in parameters if name in variant.call.used]

    def _contiguous(self, parameters: Sequence[str]) -> list[str]:
        """Statements that make contiguous what is so in every example."""
        strided = {self.names[a.key] for v in self.variants for a in v.capture.arguments if not a.contiguous}
        tensors = {self.names[a.key] for v in self.variants for a in v.capture.arguments} - strided
        return [f"{name} = {name}.contiguous()" for name in parameters if name in tensors]


_REFUSAL = "these kernels were compiled for other shapes, dtypes or layouts"
