"""Build a recipe's candidate in this process and compare it with the reference in float64."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from search import tunables
from tests.unit.builtin.references import BY_NAME
from worker.builtin.cpp import RECIPES, write_candidate
from worker.builtin.cpp.recipe import Recipe
from worker.builtin.families import Match, recognise
from worker.builtin.trace import call_accepting, load_source, workloads
from worker.runner import kernelwright

Tensors = list[torch.Tensor]
Change = Callable[[torch.Tensor], torch.Tensor]


def strided(t: torch.Tensor) -> torch.Tensor:
    """The same values, every other element in memory."""
    return torch.stack([t, t], dim=-1)[..., 0]


def far_from_zero(t: torch.Tensor) -> torch.Tensor:
    return t + 1e3 if t.is_floating_point() else t


def large(t: torch.Tensor) -> torch.Tensor:
    return t * 30 if t.is_floating_point() else t


def candidate_source(source: str, recipe: str, **values: int) -> str:
    """The candidate of one recipe, with other values of its tunables if asked for."""
    match, found = next(pair for pair in offers(source) if pair[1].name == recipe)
    written = write_candidate(found, match, source)
    return tunables.with_values(written, values) if values else written


@functools.cache
def offers(source: str) -> tuple[tuple[Match, Recipe], ...]:
    """Every recipe that fits a reference."""
    return tuple((m, r) for m in recognise(source, "cpu") for r in RECIPES if r.family == m.family)


def load(candidate: str) -> type[torch.nn.Module]:
    """Run a candidate's source and return its ModelNew."""
    sys.modules["kernelwright"] = kernelwright
    namespace: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(candidate, "candidate", "exec"), namespace)
    model: type[torch.nn.Module] = namespace["ModelNew"]
    return model


@dataclass(frozen=True)
class Case:
    """One workload with drawn parameters and inputs."""

    name: str
    model: torch.nn.Module
    new: torch.nn.Module
    inputs: Tensors

    def outputs(self, change: Change | None = None) -> tuple[Tensors, Tensors, Tensors]:
        """(candidate, eager, float64 truth) on the inputs, changed if asked."""
        inputs = [change(t) if change and t.dim() else t for t in self.inputs]
        exact = [t.double() if t.is_floating_point() else t for t in inputs]
        with torch.no_grad():
            found, eager = as_list(self.new(*inputs)), as_list(self.model(*inputs))
            truth = as_list(self.model.double()(*exact))
            self.model.float()
        return found, eager, truth


def cases(source: str, new: type[torch.nn.Module], only: Sequence[str] = ()) -> list[Case]:
    """The reference's workloads with random parameters, shared by both models."""
    namespace = load_source(source)
    found = []
    for workload in workloads(source, "cpu"):
        if only and workload.name not in only:
            continue
        torch.manual_seed(3)
        params: Mapping[str, object] = dict(workload.params)
        init = call_accepting(namespace["get_init_inputs"], params)
        model, candidate = namespace["Model"](*init), new(*init)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter))
        candidate.load_state_dict(model.state_dict(), strict=True)
        found.append(Case(workload.name, model, candidate, call_accepting(namespace["get_inputs"], params)))
    return found


def as_list(result: Any) -> Tensors:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def relative_error(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Root mean square error over that of the truth; non-finite places are compared apart."""
    mask = torch.isfinite(truth)
    gap = torch.where(mask, found.double(), 0.0) - torch.where(mask, truth, 0.0)
    size = torch.where(mask, truth, 0.0).pow(2).mean().sqrt().clamp_min(1e-30)
    return float(gap.nan_to_num(1e30, 1e30, 1e30).pow(2).mean().sqrt() / size)


def assert_honest(case: Case, change: Change | None = None) -> None:
    """The candidate has the reference's shapes and dtypes, and at most four times eager's error (or 4 ulp)."""
    for found, eager, truth in zip(*case.outputs(change), strict=True):
        assert (found.shape, found.dtype) == (eager.shape, eager.dtype), case.name
        assert found.is_contiguous()
        if found.dtype == torch.bool:
            assert torch.equal(found, eager)
            continue
        allowed = max(4 * relative_error(eager, truth), 2.5e-7)
        assert relative_error(found, truth) <= allowed, case.name


def of(name: str, recipe: str, only: str = "", values: dict[str, int] | None = None) -> list[Case]:
    """The cases of a named reference for one recipe."""
    source = BY_NAME[name].source
    return cases(source, load(candidate_source(source, recipe, **(values or {}))), [only] if only else ())
