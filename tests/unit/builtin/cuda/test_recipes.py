"""CUDA recipes: their kernels run on the processor against float64, and the real compiler takes them for Hopper."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from search import tunables
from tests.support.cuda_on_cpu import Loader
from tests.support.interpreted import LIMITS, Case, load
from tests.unit.builtin.references import BY_NAME
from worker.builtin.cuda import RECIPES, write_candidate
from worker.builtin.expressions import Unmatched
from worker.builtin.families import recognise
from worker.builtin.trace import workloads
from worker.runner import kernelwright

pytestmark = pytest.mark.skipif(kernelwright.cuda_home() is None, reason="CUDA's headers are not installed")

# (reference, recipe, values that make a small shape walk the longer path)
TRIED = [
    ("bias_gelu", "pointwise_packs", {"THREADS": 64, "UNROLL": 2}),
    ("masked", "pointwise_packs", {"THREADS": 32, "UNROLL": 1}),
    ("batch_norm", "pointwise_packs", {"THREADS": 32, "UNROLL": 1}),
    ("softmax", "rows_block", {"THREADS": 64}),
    ("layer_norm", "rows_block", {"THREADS": 64, "PER_THREAD": 0}),
    ("residual_rms_norm", "rows_warp", {"WARPS": 2}),
    ("row_max", "rows_warp", {"WARPS": 2, "PER_THREAD": 0}),
    ("cross_entropy_ignored", "cross_entropy_block", {"THREADS": 64}),
    ("cumsum", "scan_block", {"THREADS": 64}),
]

SAMPLE = ("batch_norm", "softmax", "row_max", "cumsum")
"""One of each way to walk the data."""


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader]:
    """`kernelwright.load_cuda` as candidates import it, building for the processor."""
    stand_in = ModuleType("kernelwright")
    found = Loader(tmp_path)
    stand_in.load_cuda = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kernelwright", stand_in)
    yield found


def written(reference: str, recipe: str) -> str:
    source = BY_NAME[reference].source
    for match in recognise(source, "nvidia-h100"):
        for each in RECIPES:
            if each.name == recipe and each.family == match.family:
                return write_candidate(each, match, source)
    raise AssertionError(f"{recipe} does not take {reference}")


@pytest.mark.parametrize(
    ("reference", "recipe", "values"),
    [pytest.param(*each, marks=() if each[0] in SAMPLE else pytest.mark.exhaustive) for each in TRIED],
    ids=[f"{reference}-{recipe}" for reference, recipe, _ in TRIED],
)
def test_a_kernel_computes_what_its_reference_does(
    reference: str, recipe: str, values: dict[str, int], loader: Loader, tmp_path: Path
) -> None:
    candidate = load(written(reference, recipe), "candidate", tmp_path)
    assert values.keys() <= candidate.TUNABLES.keys()
    candidate.__dict__.update(values)
    source = BY_NAME[reference].source
    for workload in workloads(source, "nvidia-h100")[:2]:
        case = Case(source, workload)
        assert case.compare(candidate, torch.float32, False) <= LIMITS[torch.float32]
    assert case.compare(candidate, torch.bfloat16, True) <= LIMITS[torch.bfloat16]
    assert loader.sources


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_cuda_compiler_takes_the_kernels(recipe: object, loader: Loader, tmp_path: Path) -> None:
    """What was built for the processor builds for sm_90a too, without spills where a row fits in registers."""
    if kernelwright.nvrtc() is None and kernelwright.cuda_tool("nvcc") is None:
        pytest.skip("no CUDA compiler")
    reference, name, _ = next(each for each in TRIED if each[1] == recipe.name)  # type: ignore[attr-defined]
    candidate = load(written(reference, name), "candidate", tmp_path)
    macros = {f"T{k}": "float" for k in range(6)} | {"TI": "long long", "TL": "float", "TO": "float", "VEC": 4}
    macros |= {"INDEX": "unsigned", "THREADS": 256, "UNROLL": 4, "LANES": 32 if name == "rows_warp" else 256}
    macros |= {"ROWS": 4 if name == "rows_warp" else 1, "HELD": 4, "SMOOTHED": 1, "MEAN": 1}
    source = "".join(f"#define {key} {value}\n" for key, value in macros.items()) + candidate.SOURCE
    cubin, log = kernelwright.compile_cuda(source, ("-Xptxas=-v",), "sm_90a", tmp_path)
    assert cubin.stat().st_size > 0
    assert "spill stores" not in log or " 0 bytes spill stores" in log


def test_every_recipe_is_tried_and_declares_a_space(loader: Loader) -> None:
    assert len(RECIPES) >= 3
    assert {recipe.name for recipe in RECIPES} == {name for _, name, _ in TRIED}
    for reference, recipe, _ in TRIED:
        space = tunables.parse_space(written(reference, recipe))
        assert space is not None and space.size >= 4 and space.allows(space.defaults)


@pytest.mark.parametrize("reference", ["reverse_cumsum", "cumprod", "masked_cumsum"])
def test_scans_of_another_kind_are_refused(reference: str) -> None:
    source = BY_NAME[reference].source
    scan = next(recipe for recipe in RECIPES if recipe.family == "scan")
    match = next(match for match in recognise(source, "nvidia-h100") if match.family == "scan")
    with pytest.raises(Unmatched):
        write_candidate(scan, match, source)
