"""Every Triton recipe computes what its reference does, in the interpreter, and compiles for Hopper, without a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from problems.catalog import bundled
from search import tunables
from tests.unit.builtin.references import BY_NAME, RECOGNISED, REFERENCES
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


def unsmoothed_cross_entropy() -> str:
    """The bundled loss without the one workload that smooths its labels: a recipe's smoothing is the same for all."""
    source = bundled()["cross_entropy"].source
    found, count = re.subn(
        r'        \{\n            "name": "smoothed_bf16",.*?\n        \},\n', "", source, flags=re.DOTALL
    )
    assert count == 1 and "wide_bf16" in found and "small_bf16" in found
    return found


@pytest.mark.exhaustive
def test_recipes_compile_for_hopper_at_the_sizes_of_real_workloads(tmp_path: Path) -> None:
    request = [{"name": name, "source": problem.source} for name, problem in bundled().items()]
    names = ("group_norm", "rope", "transpose", "embedding", "column_sum", "mse")
    request += [{"name": f"reference_{name}", "source": BY_NAME[name].source} for name in names]
    request.append({"name": "unsmoothed", "source": unsmoothed_cross_entropy()})
    rows = run("tests.support.compiled", request, TRITON_CACHE_DIR=str(tmp_path))
    assert {row["recipe"] for row in rows} == {recipe.name for recipe in RECIPES}
    assert {row["problem"]: row["family"] for row in rows if row["problem"] in bundled()} == RECOGNISED
    # A stack is where registers spill to: nothing may, at the values that a candidate starts with.
    assert not [row for row in rows if not row["cubin_bytes"] or row["shared_bytes"] > 227 * 1024 or row["stack_bytes"]]
    assembly = {path.stem: path.read_text() for path in tmp_path.rglob("*.ptx")}
    assert "wgmma.mma_async" in assembly["_attention"] and "wgmma.mma_async" in assembly["_matmul"]
    assert any("cp.async.bulk.tensor" in path.read_text() for path in tmp_path.rglob("_matmul.ptx"))
    for kernel in ("_once", "_stream", "_scan", "_losses"):
        assert any("ld.global.v4" in path.read_text() for path in tmp_path.rglob(f"{kernel}.ptx")), kernel


LONG_ROWS = """
import torch
from torch import nn
from torch.nn import functional as F

SPEC = {{"workloads": [
    {{"name": "long", "for": "gpu", "params": {{"rows": 64, "cols": {cols}}}}},
    {{"name": "odd", "for": "gpu", "params": {{"rows": 63, "cols": {odd}}}}},
]}}

class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(cols)), nn.Parameter(torch.ones(cols))

    def forward(self, x, r):
        return {body}

def get_inputs(rows, cols):
    return [torch.randn(rows, cols) for _ in range(2)]

def get_init_inputs(cols):
    return [cols]
"""

ROWS_HELD = {
    "torch.softmax(x, -1)": 32768,
    "(x - r).pow(2).mean(-1).mean()": 32768,
    "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * self.w": 16384,
    "F.layer_norm(x, (x.shape[-1],), self.w, self.b)": 16384,
    "F.kl_div(torch.log_softmax(x, -1), torch.softmax(r, -1), reduction='sum')": 16384,
    "F.layer_norm(x, (x.shape[-1],), self.w, self.b) + 0 * r": 8192,
}
"""What is computed, and the longest row that is held in registers for it."""


@pytest.mark.parametrize(("body", "longest"), ROWS_HELD.items(), ids=["1", "1_in_all", "2", "3", "2_in_all", "4"])
def test_the_more_values_of_a_row_are_held_the_shorter_it_may_be(body: str, longest: int) -> None:
    source = LONG_ROWS.format(cols=1000, odd=999, body=body)
    written = [
        write_candidate(recipe, match, source)
        for match in recognise(source, "nvidia-h100")
        for recipe in RECIPES
        if recipe.family == match.family and recipe.name in ("rows_once", "full_rows")
    ]
    spaces = [tunables.read_space(each) for each in written]
    assert [space.defaults["ONE_PASS"] for space in spaces if space] == [longest]


@pytest.mark.exhaustive
def test_no_length_of_a_row_spills(tmp_path: Path) -> None:
    request = [
        {"name": f"case{place}_{cols}", "source": LONG_ROWS.format(cols=cols, odd=cols - 1, body=body)}
        for place, body in enumerate(ROWS_HELD)
        for cols in (8192, 16384, 32768)
    ]
    rows = run("tests.support.compiled", request, TRITON_CACHE_DIR=str(tmp_path))
    assert {row["problem"] for row in rows} == {each["name"] for each in request}
    assert not [row for row in rows if row["stack_bytes"]]


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
