"""The truth of one workload's reference, and the cases that a candidate is judged on."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from problems.catalog import Domain, Precision
from worker.judge.inputs import families
from worker.judge.numerics.calibration import Calibration
from worker.judge.numerics.case import PARKED_BYTES, Case
from worker.judge.numerics.hot_rows import row_hits
from worker.judge.numerics.specials import Specials
from worker.judge.numerics.tolerance import relaxed
from worker.judge.numerics.twin import Twin, copied, same_bits, unmoved
from worker.judge.reference.problem import Instance, Problem
from worker.judge.reference.randomness import refuse_random
from worker.runner.values import tensors_of

_FEWEST = 2
"""Cases that are made whatever memory they take."""


class Truth:
    """What one workload's reference should give, and how far off honest arithmetic is."""

    def __init__(self, instance: Instance, precision: Precision, domains: Mapping[str, Domain]) -> None:
        self.instance, self.precision, self.domains = instance, precision, domains
        self._twin = Twin(instance, precision)

    def with_state(self, state: Mapping[str, torch.Tensor]) -> Truth:
        """The truth of the same reference with some parameters replaced."""
        model = copy.deepcopy(self.instance.model)
        model.load_state_dict(dict(state), strict=False)
        return self._of(model)

    def in_eval(self) -> Truth:
        """The truth of the same reference in `eval()`, where batch statistics and the like are others."""
        return self._of(copy.deepcopy(self.instance.model).eval())

    def _of(self, model: torch.nn.Module) -> Truth:
        return Truth(replace(self.instance, model=model), self.precision, self.domains)

    def case(self, family: str, inputs: tuple[Any, ...]) -> Case:
        """The truth, the eager result and the tolerances for these inputs. Raises ReferenceFailed."""
        # The reference is handed copies: one that writes into its arguments must not change what candidates see.
        handed = copied(inputs)
        eager = self._twin.eager(handed)
        changed = tuple(
            isinstance(value, torch.Tensor) and not same_bits(value, after)
            for value, after in zip(inputs, handed, strict=True)
        )
        del handed
        truth = self._twin.results(inputs)
        specials = Specials(self._twin, inputs) if family == families.SPECIAL else None
        nans = [exact.isnan() for exact in truth] if specials else []
        if specials:
            truth = specials.without_idle(truth)
        hits = tuple(self._hits(inputs, exact) for exact in truth)
        limits = Calibration(self._twin, inputs, truth, eager, hits).tolerances()
        unsure = specials.unsure(truth, nans, limits) if specials else ()
        return Case(family, inputs, truth, eager, limits, self._names(len(truth)), hits, changed, unsure)

    def _hits(self, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor | None:
        params = self.instance.workload.params
        limits = {name: domain.limit(params) for name, domain in self.domains.items() if domain.kind == "index"}
        bounds = {name: limit for name, limit in limits.items() if limit is not None}
        return row_hits(inputs, self.instance.arguments, bounds, output)

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


def prepare_cases(
    problem: Problem, truth: Truth, device: str, seed: int, count: int, budget_bytes: float = math.inf
) -> list[Case]:
    """Up to `count` cases of different families, most powerful first; `special` (NaN, infinities) comes last if at all.
    Two more, after the first, may have indices, and what may not be drawn, of two draws of the file's own get_inputs.

    Where more than `_FEWEST` of them would not fit into `budget_bytes`, the least powerful are left out, but `special`
    is not: no other has NaN. A family that lies outside of the reference's domain is left out; with none left, the
    file's own inputs are used. Raises ReferenceFailed when the reference is random or fails.
    """
    instance, domains = truth.instance, truth.domains
    generator = torch.Generator(device=device).manual_seed(seed)
    cases: list[Case] = []
    first, *others = families.applicable(instance.arguments, domains, instance.like)
    listed = families.as_listed(instance.arguments, domains, instance.like)
    count, fewest = count + len(listed), _FEWEST + len(listed)
    fitting = count
    for family in (first, *listed, *others):
        if len(cases) == count:
            break
        if len(cases) >= fitting and family != families.SPECIAL:
            continue
        if family == families.OWN:
            drawn = problem.example_inputs(instance, device, seed)
        else:
            like = _another(problem, instance, device, seed + 1) if family == families.LISTED_MIXED else instance.like
            drawn = families.draw(like, instance.arguments, domains, instance.workload.params, family, generator)
        case = truth.case(family, drawn)
        if case.finite or family == families.SPECIAL:
            fitting = max(fewest, int(min(count, budget_bytes / case.nbytes)))
            cases.append(case.parked() if case.nbytes > PARKED_BYTES else case)
    if not any(case.finite for case in cases):
        cases = [truth.case(families.OWN, problem.example_inputs(instance, device, seed + step)) for step in range(2)]
    with unmoved(instance.model):
        case = cases[0]
        refuse_random(problem, instance, case.inputs, tuple(map(case.honest, range(len(case.eager)))))
    return _relaxed(cases)


def _another(problem: Problem, instance: Instance, device: str, seed: int) -> tuple[Any, ...]:
    """Another draw of the file's own get_inputs; the one that is there where sizes are drawn too."""
    drawn = problem.example_inputs(instance, device, seed)
    sizes = [[(each.shape, each.dtype, each.stride()) for each in tensors_of(one)] for one in (drawn, instance.like)]
    return drawn if sizes[0] == sizes[1] else instance.like


def _relaxed(cases: list[Case]) -> list[Case]:
    """Families that cannot see precision get at least the tolerance of the strictest that can."""
    if not cases:
        return cases
    seeing = [
        min((case.tolerances[index].threshold for case in cases if case.tolerances[index].sees_precision), default=0.0)
        for index in range(len(cases[0].tolerances))
    ]
    return [
        replace(
            case, tolerances=tuple(relaxed(limit, wide) for limit, wide in zip(case.tolerances, seeing, strict=True))
        )
        for case in cases
    ]
