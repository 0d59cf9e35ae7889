"""Values of timed calls: made alike on both sides, new for every number, and judged in full when in doubt."""

from __future__ import annotations

import random

import pytest
import torch

from tests.redteam.honest.problems import OWN
from tests.redteam.problems import source_of
from worker.judge.exhibits import Exhibit, Exhibits
from worker.judge.reference.problem import Problem
from worker.judge.timing.fresh import Fresh
from worker.judge.timing.recheck import recheck

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y):
        return torch.softmax(x + y, -1)

def get_inputs():
    return [torch.randn(33, 65), torch.randn(33, 65)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def exhibit() -> Exhibit:
    return Exhibits(Problem(PROBLEM, "rows"), "cpu", "cpu", 7).workloads[0]


def test_the_inputs_of_a_call_can_be_made_again(exhibit: Exhibit) -> None:
    fresh = Fresh(exhibit, random.Random(1))
    source, seed = fresh.choose()
    slot = [torch.empty_like(value) for value in source.inputs]
    fresh.fill(slot, source, seed)
    for number in (17, 23):
        fresh.mix_into(slot, number)
    again = fresh.inputs(source, seed, [17, 23])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(again, slot, strict=True))
    assert not all(
        torch.equal(mine, theirs) for mine, theirs in zip(fresh.inputs(source, seed, [17]), slot, strict=True)
    )


def test_a_result_in_doubt_is_judged_on_the_values_of_its_call(exhibit: Exhibit) -> None:
    fresh = Fresh(exhibit, random.Random(2))
    source, seed = next(found for found in iter(fresh.choose, None) if found[0].family == "normal")  # sees precision
    inputs = fresh.inputs(source, seed, [5])
    right = torch.softmax(inputs[0] + inputs[1], -1)
    assert recheck(exhibit, source, inputs, (right,)) == ""
    assert "output0" in recheck(exhibit, source, inputs, (right.roll(1, 0),))
    assert "output0" in recheck(exhibit, source, inputs, (right.bfloat16().float(),))


def test_a_reference_that_answers_nan_in_whole_rows_has_sources_too() -> None:
    exhibit = Exhibits(Problem(source_of("masked_softmax"), "masked_softmax"), "cpu", "cpu", 7).workloads[0]
    assert not any(case.finite for case in exhibit.cases)
    assert Fresh(exhibit, random.Random(3)).sources


@pytest.mark.parametrize(
    ("rows", "timed"),
    [
        ("torch.randn(64, 8)", ["listed", "listed_mixed"]),
        ("torch.ones(64, 8, dtype=torch.bool)", ["listed", "listed_mixed"]),
    ],
)
def test_indices_are_timed_as_the_workload_spreads_them_and_verified_in_other_ways_too(
    rows: str, timed: list[str]
) -> None:
    source = PROBLEM.replace("torch.softmax(x + y, -1)", "torch.zeros(9, 8).index_add(0, y, x.float())")
    source = source.replace("torch.randn(33, 65), torch.randn(33, 65)", f"{rows}, torch.arange(64) % 9 // 8 * 7")
    exhibit = Exhibits(Problem(source, "scatter"), "cpu", "cpu", 7).workloads[0]
    assert [case.family for case in exhibit.timed] == timed
    assert {"uniform", "duplicates", "special"} & {case.family for case in exhibit.cases}
    fresh = Fresh(exhibit, random.Random(5))
    for source_case, seed in (fresh.choose() for _call in range(3)):
        slot = [torch.empty_like(value) for value in source_case.inputs]
        fresh.fill(slot, source_case, seed)
        assert set(slot[1].tolist()) == {0, 7} and 40 < int((slot[1] == 0).sum()) < 64


def test_what_may_not_be_drawn_is_of_two_draws() -> None:
    source = PROBLEM.replace(
        "torch.softmax(x + y, -1)",
        "x.new_zeros(9, 8).index_add(0, torch.bucketize(torch.arange(64), y, right=True), x)",
    )
    source = source.replace(
        "torch.randn(33, 65), torch.randn(33, 65)", "torch.randn(64, 8), torch.randint(64, (8,)).sort()[0]"
    )
    source += 'SPEC = {"domains": {"y": "fixed"}}\n'
    exhibit = Exhibits(Problem(source, "segments"), "cpu", "cpu", 7).workloads[0]
    first, second = exhibit.timed
    assert not torch.equal(first.inputs[1], second.inputs[1])
    kept = exhibit.instance.model(second.inputs[0], first.inputs[1])
    assert not second.judge((kept,))[0].passed, "offsets of the first call"


def test_one_number_is_no_distribution() -> None:
    source = PROBLEM.replace("softmax(x + y, -1)", "softmax(x * y, -1)")
    source = source.replace("torch.randn(33, 65), torch.randn(33, 65)", "torch.randn(33, 65), torch.tensor([3])")
    exhibit = Exhibits(Problem(source, "scaled"), "cpu", "cpu", 7).workloads[0]
    assert len(exhibit.timed) > 3 and "listed" not in {case.family for case in exhibit.cases}


def test_families_in_which_zeros_would_pass_are_not_timed() -> None:
    """Large scores, two of which are nearly equal: attention's rows are then whatever the rounding makes of them."""
    exhibits = Exhibits(Problem(OWN["small_attention_causal"], "attention"), "cpu", "cpu", 7)
    for exhibit in exhibits.workloads:
        doubtful = {case.family for case in exhibit.cases if case.tolerances[0].threshold >= 1}
        timed = {case.family for case in Fresh(exhibit, random.Random(4)).sources}
        assert "shifted" in doubtful
        assert timed and not timed & doubtful
