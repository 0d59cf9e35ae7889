"""Every Triton and CUDA recipe on a real device: all references, types and layouts, the bundled problems at full size.

pytest -m gpu tests/gpu/test_recipes.py -n 12      # most of the time is compilation
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from problems.catalog import bundled
from tests.support.interpreted import LIMITS, SMALL, Case, load
from tests.unit.builtin.references import RECOGNISED, REFERENCES
from worker.builtin import cuda, triton
from worker.builtin.expressions import Unmatched
from worker.builtin.families import recognise
from worker.builtin.trace import Workload, workloads
from worker.runner import kernelwright

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HARDWARE = "nvidia-h100"
LANGUAGES = {"triton": triton, "cuda": cuda}


@pytest.fixture(autouse=True)
def _standard_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates import `kernelwright`."""
    monkeypatch.setitem(sys.modules, "kernelwright", kernelwright)


def candidates(source: str, name: str, language: str, folder: Path) -> list[ModuleType]:
    """A module for every recipe that fits."""
    found = []
    package = LANGUAGES[language]
    for match in recognise(source, HARDWARE, name):
        for recipe in (recipe for recipe in package.RECIPES if recipe.family == match.family):
            try:
                text = package.write_candidate(recipe, match, source)
            except Unmatched:
                continue
            found.append(load(text, f"{name}_{language}_{recipe.name}", folder))
    return found


def worst(case: Case, candidate: ModuleType, dtype: torch.dtype, gaps: bool, honest: float = 0.0) -> str | None:
    """What is wrong, if anything is. `honest`: an error that the reference itself makes in this type; the worst of many
    millions of elements is further off than the limit, which is for small shapes."""
    error = case.compare(candidate, dtype, gaps, device="cuda")
    return None if error <= max(LIMITS[dtype], 2 * honest) else f"{candidate.__name__} {dtype} gaps={gaps}: {error:.2e}"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: reference.name)
def test_small_shapes(reference: object, language: str, tmp_path: Path) -> None:
    name, source = reference.name, reference.source  # type: ignore[attr-defined]
    cases = [Case(source, workload) for workload in workloads(source, HARDWARE)]
    problems = []
    for candidate in candidates(source, name, language, tmp_path):
        problems += [worst(case, candidate, torch.float32, False) for case in cases]
        problems.append(worst(cases[-1], candidate, torch.bfloat16, True))
        changed = {key: value for key, value in SMALL.items() if key in candidate.TUNABLES}
        candidate.__dict__.update(changed)
        if language == "triton":
            problems.append(worst(cases[0], candidate, torch.float16, False))
    assert not [problem for problem in problems if problem]


FULL = [
    pytest.param(problem.source, problem.name, workload, id=f"{problem.name}-{workload.name}")
    for problem in (bundled()[name] for name in RECOGNISED)
    for workload in problem.spec.workloads_for(HARDWARE)
]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("source", "name", "workload"), FULL)
def test_full_size(source: str, name: str, workload: object, language: str, tmp_path: Path) -> None:
    params: dict[str, object] = workload.params  # type: ignore[attr-defined]
    with torch.device("cuda"):
        case = Case(source, Workload("full", tuple(params.items())))
    dtype = getattr(torch, str(params.get("dtype", "float32")))
    honest = case.own_error(dtype, "cuda")
    problems = [
        worst(case, candidate, dtype, False, honest) for candidate in candidates(source, name, language, tmp_path)
    ]
    assert not [problem for problem in problems if problem]


def test_rows_beyond_32_bit_offsets(tmp_path: Path) -> None:
    """More than 2^31 elements: an offset kept in 32 bits would wrap."""
    rows, cols = 2**15 + 3, 2**16
    x = torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16)
    source = bundled()["softmax"].source
    for language, candidate in itertools.chain.from_iterable(
        [(language, each) for each in candidates(source, "softmax", language, tmp_path)] for language in LANGUAGES
    ):
        found = candidate.ModelNew()(x)
        for row in (0, rows // 2, rows - 1):
            truth = torch.softmax(x[row].double(), -1)
            torch.testing.assert_close(found[row].double(), truth, rtol=2e-2, atol=1e-7, msg=language)
        del found
