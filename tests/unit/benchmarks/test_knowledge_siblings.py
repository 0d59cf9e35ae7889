"""The comparison of siblings, on two made-up spaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import knowledge_siblings
from benchmarks.knowledge_siblings import compare, read, siblings


def recorded(folder: Path, name: str, best: int, tunable: str = "BLOCK") -> None:
    values = {tunable: list(range(1, 17)), "WAYS": [1, 2, 4]}
    rows = [
        [[block, ways], [100.0 + 10 * abs(block - best) + ways, 50.0]] for block in range(1, 17) for ways in (1, 2, 4)
    ]
    body = {"name": name, "values": values, "constraints": [], "defaults": {tunable: 1, "WAYS": 4}, "latency_us": rows}
    (folder / f"{name}.json").write_text(json.dumps(body))


def test_who_is_told_what_won_for_a_sibling_is_there_with_the_first_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knowledge_siblings, "SEEDS", 3)
    recorded(tmp_path, "layernorm.a", best=13)
    recorded(tmp_path, "residual_rmsnorm.b", best=13)
    recorded(tmp_path, "softmax.c", best=13)
    recorded(tmp_path, "layernorm.d", best=13, tunable="OTHER")
    spaces = [read(path) for path in sorted(tmp_path.glob("*.json"))]
    pairs = [(solved.name, new.name) for solved, new in siblings(spaces)]
    assert pairs == [("layernorm.a", "residual_rmsnorm.b"), ("residual_rmsnorm.b", "layernorm.a")]
    found = compare(spaces[0], spaces[2])
    assert found["told"] == [1, 1, 1]
    assert found["cold_median"] > 1
    assert found["best_gain"] == pytest.approx(((220 + 4) / 101) ** 0.5, abs=1e-3)
