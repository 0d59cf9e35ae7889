"""Bundled problems fitted to a request: types, sizes, names; and the file that comes of it is a problem."""

from __future__ import annotations

from typing import Any

import pytest

from problems.catalog import bundled, outline
from search.requests.deriving import Fitted, fit
from search.requests.understanding import understand


def fitted(name: str, text: str, hardware: str = "nvidia-h100") -> Fitted:
    return fit(bundled()[name], understand(text), hardware)


def params(found: Fitted) -> list[dict[str, Any]]:
    return [dict(workload.params) for workload in found.problem.spec.workloads]


def test_what_asks_for_nothing_is_the_bundled_problem_itself() -> None:
    found = fitted("softmax", "a fast softmax")
    assert found.problem is bundled()["softmax"]


def test_a_type_reaches_every_workload_and_its_name() -> None:
    found = fitted("rmsnorm_residual", "bf16")
    assert found.problem.name == "rmsnorm_residual_bf16"
    assert {each["dtype"] for each in params(found)} == {"bfloat16"}
    assert [workload.name for workload in found.problem.spec.workloads][0] == "bf16_16384x4096"
    assert len(params(found)) == 5, "each shape once"
    assert all(workload.fits("nvidia-h100") for workload in found.problem.spec.workloads)


def test_sizes_come_first_and_the_other_shapes_stay() -> None:
    found = fitted("softmax", "128x1000", "cpu")
    assert params(found)[0] == {"rows": 128, "cols": 1000, "dtype": "float32"}
    assert params(found)[1:] == [dict(each.params) for each in bundled()["softmax"].spec.workloads_for("cpu")]


@pytest.mark.parametrize(
    ("name", "text", "param", "value"),
    [
        ("rmsnorm_residual", "hidden size 4096", "hidden", 4096),
        ("cross_entropy", "vocab=50000", "classes", 50000),
        ("attention_causal", "sequence length 2048", "length", 2048),
        ("softmax", "batch of 77", "rows", 77),
    ],
)
def test_sizes_are_found_by_their_usual_names(name: str, text: str, param: str, value: int) -> None:
    assert params(fitted(name, text, "cpu"))[0][param] == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("softmax", "4x4x4x4", "4x4x4x4 was not set"),
        ("softmax", "rows=0", "the sizes were not set"),
        ("softmax", "999999999x999999999", "the sizes were not set"),
    ],
)
def test_what_cannot_be_fitted_is_said(name: str, text: str, said: str) -> None:
    found = fitted(name, text, "cpu")
    assert found.problem is bundled()[name]
    assert any(said in note for note in found.notes)


@pytest.mark.parametrize("name", bundled())
@pytest.mark.parametrize("hardware", ["cpu", "nvidia-h100"])
def test_every_bundled_problem_can_be_fitted_and_only_its_spec_changes(name: str, hardware: str) -> None:
    original = bundled()[name]
    found = fitted(name, "fp16", hardware).problem
    assert found.name.startswith(name)
    assert outline(found.source, found.name) == found
    assert found.source.partition("\nclass Model")[2] == original.source.partition("\nclass Model")[2]
    assert (found.summary, found.op_family, found.spec.domains) == (
        original.summary,
        original.op_family,
        original.spec.domains,
    )
