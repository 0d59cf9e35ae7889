"""Every Triton recipe computes what its reference does, in the interpreter, and compiles for Hopper, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from problems.catalog import bundled
from search import tunables
from tests.unit.builtin.references import BY_NAME, REFERENCES
from worker.builtin.expressions import Unmatched
from worker.builtin.families import recognise
from worker.builtin.triton import RECIPES, write_candidate

pytest.importorskip("triton")

ROOT = Path(__file__).parents[4]

HALF_PRODUCT = """
import torch
from torch import nn
from torch.nn import functional as F

SPEC = {"workloads": [
    {"name": "even", "for": "gpu", "params": {"m": 48, "k": 32, "n": 64}},
    {"name": "odd", "for": "gpu", "params": {"m": 37, "k": 29, "n": 51}},
    {"name": "thin", "for": "gpu", "params": {"m": 3, "k": 130, "n": 18}},
]}

class Model(nn.Module):
    def __init__(self, k, n):
        super().__init__()
        self.linear = nn.Linear(k, n, dtype=torch.float16)

    def forward(self, x, r):
        return F.gelu(self.linear(x)) + r

def get_inputs(m, k, n):
    return [torch.randn(m, k).half() / k**0.5, torch.randn(m, n).half()]

def get_init_inputs(k, n):
    return [k, n]
"""


def run(module: str, request: list[dict[str, str]], **variables: str) -> list[dict[str, Any]]:
    """One of the programs beside these tests, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **variables},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def of_families(*families: str) -> list[dict[str, str]]:
    return [{"name": each.name, "source": each.source} for each in REFERENCES if each.family in families]


@pytest.mark.parametrize(
    "families",
    [
        ("pointwise", "transpose"),
        pytest.param(("rope", "embedding"), marks=pytest.mark.exhaustive),
        pytest.param(("softmax", "layer_norm", "group_norm"), marks=pytest.mark.exhaustive),
        pytest.param(("rms_norm", "rowwise", "row_reduction"), marks=pytest.mark.exhaustive),
        pytest.param(("column_reduction", "full_reduction", "scan", "cross_entropy"), marks=pytest.mark.exhaustive),
        pytest.param(("matmul", "attention"), marks=pytest.mark.exhaustive),
    ],
    ids=lambda families: "-".join(families[:2]),
)
def test_recipes_compute_what_their_references_do(families: tuple[str, ...]) -> None:
    request = of_families(*families)
    rows = run("tests.support.interpreted", request)
    wrong = [row for row in rows if not row["error"] <= row["limit"]]
    assert not wrong
    tried = {row["candidate"] for row in rows}
    untouched = [each["name"] for each in request if not any(name.startswith(each["name"] + "_") for name in tried)]
    assert not untouched, "references that no recipe took"


def test_products_of_half_precision_go_through_the_copy_engine_and_stay_right() -> None:
    rows = run("tests.support.interpreted", [{"name": "half", "source": HALF_PRODUCT}])
    assert {row["candidate"] for row in rows} == {"half_matmul_descriptors", "half_matmul_tiles"}
    assert not [row for row in rows if not row["error"] <= row["limit"]]


@pytest.mark.exhaustive
def test_recipes_compile_for_hopper_at_the_sizes_of_real_workloads(tmp_path: Path) -> None:
    # Of the suite those that recipes are meant for; others may look like one of them and end as launch errors.
    suite = ("attention_causal", "bias_gelu_scale_residual", "cumsum", "layernorm", "matmul_bias_gelu",
             "rmsnorm_residual", "softmax", "embedding_grad_rmsnorm_backward")  # fmt: skip
    request = [{"name": name, "source": bundled()[name].source} for name in suite]
    names = ("group_norm", "rope", "transpose", "embedding", "column_sum", "mse", "cross_entropy")
    request += [{"name": name, "source": BY_NAME[name].source} for name in names]
    rows = run("tests.support.compiled", request, TRITON_CACHE_DIR=str(tmp_path))
    assert {row["recipe"] for row in rows} == {recipe.name for recipe in RECIPES}
    # A stack is where registers spill to: nothing may, at the values that a candidate starts with.
    assert not [row for row in rows if not row["cubin_bytes"] or row["shared_bytes"] > 227 * 1024 or row["stack_bytes"]]
    assembly = {path.stem: path.read_text() for path in tmp_path.rglob("*.ptx")}
    assert "wgmma.mma_async" in assembly["_attention"] and "wgmma.mma_async" in assembly["_matmul"]
    assert any("cp.async.bulk.tensor" in path.read_text() for path in tmp_path.rglob("_matmul.ptx"))
    for kernel in ("_once", "_stream", "_scan"):
        assert any("ld.global.v4" in path.read_text() for path in tmp_path.rglob(f"{kernel}.ptx")), kernel


def candidates() -> list[tuple[str, str]]:
    """A candidate of every recipe."""
    found: dict[str, str] = {}
    sources = [*(each.source for each in REFERENCES), HALF_PRODUCT]
    for source in sources:
        for match in recognise(source, "nvidia-h100"):
            for recipe in RECIPES:
                if recipe.family == match.family and recipe.name not in found:
                    try:
                        found[recipe.name] = write_candidate(recipe, match, source)
                    except Unmatched:
                        continue
    return list(found.items())


CANDIDATES = candidates()


def test_there_are_recipes_for_every_kind_of_problem() -> None:
    assert len(RECIPES) >= 12
    assert {name for name, _ in CANDIDATES} == {recipe.name for recipe in RECIPES}
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)


@pytest.mark.parametrize(("name", "source"), CANDIDATES, ids=[name for name, _ in CANDIDATES])
def test_a_candidate_declares_a_space_that_its_own_values_lie_in(name: str, source: str) -> None:
    space = tunables.parse_space(source)
    assert space is not None
    assert space.size >= 4
    assert space.allows(space.defaults)
    other = next(each for each in space.configurations() if each != space.defaults)
    assert tunables.parse_space(tunables.with_values(source, other)) is not None


def test_float32_products_keep_their_precision_unless_the_problem_gives_it_away() -> None:
    source = BY_NAME["mm"].source
    match = recognise(source, "nvidia-h100")[0]
    recipe = next(recipe for recipe in RECIPES if recipe.name == "matmul_tiles")
    assert 'PRECISION = "ieee"' in write_candidate(recipe, match, source)
    loose = source.replace("SPEC = {", "SPEC = {'precision': {'tf32': True}, ", 1)
    assert 'PRECISION = "tf32"' in write_candidate(recipe, match, loose)
