"""Cases: inputs with their fp64 truth, the eager result, and the tolerance between honest and broken arithmetic.

Prepared once per problem and workload and reused for every candidate; the truth costs far more than the candidate.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from problems.catalog import Domain, Precision
from worker.judge import inputs as families
from worker.judge.numerics import Comparison, Tolerance, compare, degrade, slice_error, tolerance
from worker.judge.problem import Instance, Problem, call_reference
from worker.judge.verdict import ReferenceFailed


@dataclass(frozen=True, slots=True)
class Case:
    """One draw of inputs with everything needed to judge an output."""

    family: str
    inputs: tuple[Any, ...]
    truth: tuple[torch.Tensor, ...]
    """fp64 results on the already rounded inputs and parameters, so that both sides see the same bits."""
    eager: tuple[torch.Tensor, ...]
    tolerances: tuple[Tolerance, ...]
    names: tuple[str, ...]
    """What each output is called in reports: `output0`, or `grad:weight` for a gradient."""

    @property
    def finite(self) -> bool:
        """Whether this draw lies in the reference's domain: mostly finite (log of a negative number is not)."""
        return all(float(torch.isfinite(exact).double().mean()) > 0.999 for exact in self.truth if exact.numel())

    def judge(self, outputs: tuple[torch.Tensor, ...]) -> list[Comparison]:
        """Compare every output with its truth."""
        sides = zip(outputs, self.truth, self.eager, self.tolerances, strict=True)
        return [compare(output, truth, eager, limit) for output, truth, eager, limit in sides]


class Truth:
    """The fp64 twin of one workload's reference."""

    def __init__(self, instance: Instance, precision: Precision) -> None:
        self.instance, self.precision = instance, precision
        self._exact = copy.deepcopy(instance.model).to(torch.float64)

    def with_state(self, state: Mapping[str, torch.Tensor]) -> Truth:
        """The truth of the same reference with some parameters replaced."""
        model = copy.deepcopy(self.instance.model)
        model.load_state_dict(dict(state), strict=False)
        return Truth(replace(self.instance, model=model), self.precision)

    def case(self, family: str, inputs: tuple[Any, ...]) -> Case:
        """The truth, the eager result and the tolerances for these inputs. Raises ReferenceFailed."""
        # The reference is handed copies: one that writes into its arguments must not change what candidates see.
        eager = call_reference(self.instance.call, _copied(inputs))
        truth = self._evaluate(self._exact, inputs)
        degraded = self._evaluate(self._degraded(), self._degrade_all(inputs))
        limits = []
        for exact, honest, broken in zip(truth, eager, degraded, strict=True):
            if not honest.is_floating_point():
                limits.append(Tolerance(0.0, 0.0, 0.0, sees_precision=True))
                continue
            accept, _where = slice_error(honest, exact)
            reject, _where = slice_error(broken, exact)
            limits.append(tolerance(accept, reject, honest.dtype))
        return Case(family, inputs, truth, eager, tuple(limits), self._names(len(truth)))

    def _names(self, count: int) -> tuple[str, ...]:
        instance = self.instance
        if not instance.backward:
            return tuple(f"output{index}" for index in range(count))
        leaves = [
            name
            for name, value in zip(instance.arguments, instance.like[: instance.forward_inputs], strict=False)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        ]
        gradients = [f"grad:{name}" for name in (*leaves, *instance.parameters)]
        return (*(f"output{index}" for index in range(count - len(gradients))), *gradients)

    def _evaluate(self, model: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        wide = tuple(
            value.to(torch.float64) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for value in _copied(inputs)
        )
        return tuple(output.to(torch.float64) for output in call_reference(self.instance.callable(model), wide))

    def _degraded(self) -> torch.nn.Module:
        model = copy.deepcopy(self._exact)
        honest = dict(self.instance.model.named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(degrade(parameter, honest[name].dtype, tf32_allowed=self.precision.tf32))
        return model

    def _degrade_all(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            degrade(value, value.dtype, tf32_allowed=self.precision.tf32) if isinstance(value, torch.Tensor) else value
            for value in inputs
        )


def prepare_cases(
    problem: Problem, truth: Truth, domains: Mapping[str, Domain], device: str, seed: int, count: int
) -> list[Case]:
    """Up to `count` cases of different families, most powerful first; `special` (NaN, infinities) comes last if at all.

    A family that lies outside of the reference's domain is left out; with none left, the file's own inputs are used.
    Raises ReferenceFailed when the reference is random or fails.
    """
    instance = truth.instance
    generator = torch.Generator(device=device).manual_seed(seed)
    cases: list[Case] = []
    for family in families.applicable(instance.arguments, domains, instance.like):
        if len(cases) == count:
            break
        if family == families.OWN:
            drawn = problem.example_inputs(instance, device, seed)
        else:
            drawn = families.draw(
                instance.like, instance.arguments, domains, instance.workload.params, family, generator
            )
        case = truth.case(family, drawn)
        if case.finite or family == "special":
            cases.append(case)
    if not any(case.finite for case in cases):
        cases = [truth.case(families.OWN, problem.example_inputs(instance, device, seed + step)) for step in range(2)]
    _refuse_random(instance, cases[0])
    return cases


def _refuse_random(instance: Instance, case: Case) -> None:
    again = call_reference(instance.call, _copied(case.inputs))
    for index, (first, second) in enumerate(zip(case.eager, again, strict=True)):
        if first.shape != second.shape or not torch.allclose(
            first.double(), second.double(), rtol=1e-2, atol=1e-2, equal_nan=True
        ):
            raise ReferenceFailed(
                f"the reference is random: output {index} differs between two calls on the same inputs; "
                "remove dropout or random draws from forward"
            )


def _copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs)
