"""Run Triton candidates in Triton's interpreter and compare them with their references in float64.

A program of its own, because the interpreter is for a whole process. It is the runner's, which checks every access:

    python -m tests.support.interpreted < request.json > findings.json

The request is a list of {"name", "source"}; the findings are one row per recipe, workload and variation.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from worker.builtin.expressions import Unmatched
from worker.builtin.families import recognise
from worker.builtin.trace import Workload, call_accepting, load_source, workloads
from worker.builtin.triton import RECIPES, write_candidate
from worker.runner.triton_interpret import use_interpreter

HARDWARE = "nvidia-h100"

LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""The largest |error| / (|truth| + root mean square of the truth): some units in the last place of each type."""

SMALL = {
    "BLOCK": 16, "TILE": 32, "COLUMNS": 16, "ONE_PASS": 16, "PROGRAMS": 2, "BM": 32, "BN": 16, "BK": 16, "GROUP": 2,
    "BF": 16, "BL": 16,
}  # fmt: skip
"""Tile sizes that make small shapes take many tiles, so that every loop and every edge is walked."""


def load(source: str, name: str, folder: Path) -> ModuleType:
    """The candidate as a module; Triton reads kernels back from the file."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between neighbours."""
    if not tensor.is_floating_point() or tensor.dim() == 0:
        return tensor
    return tensor.repeat_interleave(2, -1)[..., ::2]


def error(found: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest error, relative to the truth's size there and on the whole; infinite where shapes or NaNs differ."""
    if found.shape != truth.shape:
        return float("inf")
    if not truth.numel():
        return 0.0
    found, truth = found.double(), truth.double()
    same = (found == truth) | (found.isnan() & truth.isnan())
    finite = truth[truth.isfinite()]
    size = finite.square().mean().sqrt() if finite.numel() else torch.tensor(1.0)
    ratio = torch.where(same, 0.0, (found - truth).abs() / (truth.abs() + size + 1e-30))
    return float(torch.nan_to_num(ratio, nan=float("inf")).max())


class Case:
    """One reference on one workload: its inputs, its parameters redrawn, and the truth in float64."""

    def __init__(self, source: str, workload: Workload) -> None:
        self.namespace = load_source(source)
        self.params = dict(workload.params)
        torch.manual_seed(0)
        self.inputs = list(call_accepting(self.namespace["get_inputs"], self.params))
        self.init = call_accepting(self.namespace["get_init_inputs"], self.params)
        self.model = self.namespace["Model"](*self.init)
        for parameter in self.model.parameters():
            torch.nn.init.normal_(parameter)

    def compare(self, candidate: ModuleType, dtype: torch.dtype, gaps: bool, device: str = "cpu") -> float:
        """The candidate's error against the truth for these very inputs."""
        ours = candidate.ModelNew(*self.init)
        ours.load_state_dict(self.model.state_dict())
        return self._error(ours, dtype, gaps, device)

    def own_error(self, dtype: torch.dtype, device: str = "cpu") -> float:
        """The reference's own error in this type."""
        return self._error(copy.deepcopy(self.model), dtype, False, device)

    def _error(self, ours: torch.nn.Module, dtype: torch.dtype, gaps: bool, device: str) -> float:
        inputs = [each.to(device, dtype) if each.is_floating_point() else each.to(device) for each in self.inputs]
        model = copy.deepcopy(self.model).to(device, dtype)
        ours = ours.to(device, dtype)
        with torch.no_grad():
            truth = model.double()(*(each.double() if each.is_floating_point() else each for each in inputs))
            found = ours(*(apart(each) if gaps else each.clone() for each in inputs))
        truths = truth if isinstance(truth, tuple | list) else (truth,)
        founds = found if isinstance(found, tuple | list) else (found,)
        if len(truths) != len(founds) or any(f.is_floating_point() and f.dtype is not dtype for f in founds):
            return float("inf")
        return max(error(f, t) for f, t in zip(founds, truths, strict=True))


VARIATIONS: tuple[tuple[str, torch.dtype, bool, dict[str, int]], ...] = (
    ("small", torch.float32, False, SMALL),
    ("half", torch.float16, True, SMALL),
    ("bfloat16", torch.bfloat16, False, {}),
)
"""(name, dtype, gaps, tunables) of what is tried on one workload; all workloads are tried plainly."""


def examine(name: str, source: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Every recipe that fits the reference, on every workload."""
    cases = [(workload.name, Case(source, workload)) for workload in workloads(source, HARDWARE)]
    for match in recognise(source, HARDWARE, name):
        for recipe in (recipe for recipe in RECIPES if recipe.family == match.family):
            try:
                text = write_candidate(recipe, match, source)
            except Unmatched:
                continue
            yield from _try(f"{name}_{recipe.name}", text, cases, folder)


def _try(name: str, text: str, cases: list[tuple[str, Case]], folder: Path) -> Iterator[dict[str, Any]]:
    candidate = load(text, name, folder)
    runs = [(workload, case, "plain", torch.float32, False, {}) for workload, case in cases]
    runs += [(*cases[-2], *variation) for variation in VARIATIONS]
    for workload, case, variation, dtype, gaps, tunables in runs:
        changed = {key: value for key, value in tunables.items() if key in candidate.TUNABLES}
        before = {key: getattr(candidate, key) for key in changed}
        candidate.__dict__.update(changed)
        worst = case.compare(candidate, dtype, gaps)
        candidate.__dict__.update(before)
        yield {"candidate": name, "workload": workload, "variation": variation, "error": worst, "limit": LIMITS[dtype]}


def main() -> None:
    use_interpreter()
    warnings.simplefilter("ignore")  # numpy's remarks about infinities: the kernels mean them
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for each in json.load(sys.stdin) for row in examine(each["name"], each["source"], Path(folder))]
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
