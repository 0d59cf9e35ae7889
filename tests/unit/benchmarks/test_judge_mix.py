"""The mix of `benchmarks.judge` and what makes its candidates bad."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from benchmarks.judge.faults import FAULTS
from benchmarks.judge.mix import BAD_SHARE, COUNT, QUICK_COUNT, interleaved, mix
from benchmarks.judge.planted_kernels import PROBLEM, bytes_moved, kernel
from benchmarks.kernelbench_protocol import Refused, compare, judge

HONEST = """import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        return torch.relu(x + self.bias)
"""
PARAMS = {"rows": 7, "cols": 33}


@pytest.mark.parametrize(("hardware", "quick"), [("cpu", False), ("cpu", True), ("nvidia-h100", False)])
def test_sixty_percent_are_bad_from_the_beginning_on(hardware: str, quick: bool) -> None:
    count = QUICK_COUNT if quick else COUNT
    items = mix(hardware, count, quick=quick)
    assert len(items) == len({item.id for item in items}) == count
    assert sum(item.bad for item in items) == round(BAD_SHARE * count)
    half = items[: count // 2]
    assert 0.5 <= sum(item.bad for item in half) / len(half) <= 0.7
    assert len({item.problem for item in items}) <= (2 if quick else 4)


def test_the_mix_is_the_same_every_time() -> None:
    assert mix("cpu", 12, quick=True) == mix("cpu", 12, quick=True)


def test_interleaving_keeps_both_orders() -> None:
    items = mix("cpu", 10, quick=True)
    bad, good = [item for item in items if item.bad], [item for item in items if not item.bad]
    again = interleaved(bad, good)
    assert [item for item in again if item.bad] == bad and [item for item in again if not item.bad] == good


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"cut-off", "does-not-compile"}))
def test_a_fault_leaves_a_file_that_defines_the_candidate(fault: str) -> None:
    source = FAULTS[fault](HONEST, PROBLEM)
    tree = ast.parse(source)
    named = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert "ModelNew" in named or "ModelNew = Model" in source
    assert source != HONEST


def test_an_answer_that_was_cut_off_is_no_python() -> None:
    with pytest.raises(SyntaxError):
        ast.parse(FAULTS["cut-off"](HONEST, PROBLEM))


def test_what_does_not_compile_has_something_to_break() -> None:
    assert "tl.stored(" in FAULTS["does-not-compile"]("tl.store(p, v)", PROBLEM)
    with pytest.raises(ValueError, match="neither"):
        FAULTS["does-not-compile"](HONEST, PROBLEM)


def _protocol(tmp_path: Path, source: str) -> dict[str, object]:
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "candidate.py").write_text(source)
    return judge(tmp_path, PARAMS, "cpu")


def test_the_protocol_accepts_an_honest_candidate(tmp_path: Path) -> None:
    found = _protocol(tmp_path, HONEST)
    assert found["accepted"], found
    assert found["candidate_us"] and found["reference_us"]


@pytest.mark.parametrize(
    ("fault", "accepted"),
    [
        ("zeros", False),
        ("raises", False),
        ("wrong-shape", False),
        ("wrong-dtype", False),
        ("inputs-in-bf16", False),
        ("replays-after-12-calls", True),  # five checks, then nobody looks
        ("torch-instead", True),  # right values are all that it asks for
        ("spoils-its-input", True),  # the reference has run by then
    ],
)
def test_what_the_protocol_sees(tmp_path: Path, fault: str, accepted: bool) -> None:
    found = _protocol(tmp_path, FAULTS[fault](HONEST, PROBLEM))
    assert found["accepted"] is accepted, found
    assert accepted or found["reason"]


def test_the_protocols_tolerance_depends_on_the_type() -> None:
    exact = torch.ones(4)
    compare((exact,), (exact + 5e-5,), 0)
    with pytest.raises(Refused, match="not close"):
        compare((exact,), (exact + 5e-4,), 0)
    compare((exact.half(),), ((exact + 5e-3).half(),), 0)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_slow_version_moves_three_percent_more(on_gpu: bool) -> None:
    rows, cols = (16640, 4096) if on_gpu else (1024, 1024)
    fast, slow = (bytes_moved(rows, cols, extra, on_gpu=on_gpu) for extra in (0.0, 0.03))
    assert fast == 8 * rows * cols
    assert slow / fast == pytest.approx(1.03, abs=5e-4)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_two_versions_differ_in_one_number(on_gpu: bool) -> None:
    fast, slow = kernel(0.0, on_gpu=on_gpu), kernel(0.03, on_gpu=on_gpu)
    ast.parse(fast)
    assert fast.replace("EXTRA = 0.0\n", "EXTRA = 0.03\n", 1) == slow
