"""The comparison of siblings, on two made-up spaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import knowledge_siblings
from benchmarks.knowledge_siblings import compare, siblings, summary
from benchmarks.tuning.problems import problem
from benchmarks.tuning.spaces import recorded


def record(folder: Path, name: str, best: int, tunable: str = "BLOCK") -> None:
    values = {tunable: list(range(1, 17)), "WAYS": [1, 2, 4]}
    rows = [
        [[block, ways], [100.0 + 10 * abs(block - best) + ways, 50.0]] for block in range(1, 17) for ways in (1, 2, 4)
    ]
    body = {"name": name, "values": values, "constraints": [], "defaults": {tunable: 1, "WAYS": 4}}
    body |= {"workloads": ["small", "large"], "latency_us": rows}
    (folder / f"{name}.json").write_text(json.dumps(body))


def test_who_is_told_what_won_for_a_sibling_is_there_with_the_first_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knowledge_siblings, "SEEDS", 3)
    record(tmp_path, "layernorm.a", best=13)
    record(tmp_path, "rmsnorm_residual.b", best=13)
    record(tmp_path, "softmax.c", best=13)
    record(tmp_path, "layernorm.d", best=13, tunable="OTHER")
    spaces = list(recorded(tmp_path))
    pairs = [(solved.name, new.name) for solved, new in siblings(spaces)]
    assert pairs == [("layernorm.a", "rmsnorm_residual.b"), ("rmsnorm_residual.b", "layernorm.a")]
    found = compare(spaces[0], spaces[2])
    assert [run["told"] for run in found["runs"]] == [1, 1, 1]
    assert all(run["cold"] > 1 and run["reachable"] for run in found["runs"])
    assert summary([found]) | {"pairs_in_half": 1, "pairs_behind": 0, "told_median": 1} == summary([found])
    assert found["best_gain"] == pytest.approx(((220 + 4) / 101) ** 0.5, abs=1e-3)


def test_who_is_told_of_a_poor_configuration_begins_with_the_recipe_as_it_is_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knowledge_siblings, "SEEDS", 1)
    record(tmp_path, "layernorm.a", best=13)
    record(tmp_path, "rmsnorm_residual.b", best=1)
    found = compare(*recorded(tmp_path))
    (run,) = found["runs"]
    assert found["best_gain"] < 1.03 and run["told"] == 2, (
        "its best is far off here, the recipe as written near the best"
    )
    assert run["gained"] > 1.3 and not run["reachable"]
    total = summary([found])
    assert total["reachable"] == total["pairs"] == 0 and total["told_median_to_the_best"] == 2


@pytest.mark.parametrize(
    ("name", "original", "operation"),
    [
        ("log_softmax", "softmax", "torch.log_softmax(x"),
        ("rmsnorm", "rmsnorm_residual", "h = x\n"),
        ("cumsum_reversed", "cumsum", ".flip(self.dim).cumsum("),
    ],
)
def test_a_sibling_is_a_bundled_problem_with_another_operation(name: str, original: str, operation: str) -> None:
    found, bundled = problem(name), problem(original)
    assert operation in found.source and operation not in bundled.source
    assert found.name == name and found.spec.op_family == bundled.spec.op_family
