"""What is made of measured configurations: which one is judged, and when a dispatch table pays."""

from __future__ import annotations

import pytest

from search.configurations import Measured, as_trials, best, plan_dispatch, worth_judging

OWN = {"BLOCK": 64}
SMALL, LARGE = ["float32", 8, 8], ["float32", 4096, 8]
SIGNATURES = {"small": [SMALL], "large": [LARGE]}


def measured(block: int, small: float, large: float) -> Measured:
    return Measured({"BLOCK": block}, {"small": small, "large": large})


def test_the_gain_is_the_geometric_mean_and_a_failure_has_none() -> None:
    assert measured(1, 2.0, 0.5).gain == pytest.approx(1.0)
    assert Measured({"BLOCK": 1}).gain is None
    assert [trial.speedup for trial in as_trials([Measured({"BLOCK": 1}), measured(2, 4.0, 1.0)])] == [None, 2.0]


def test_the_fastest_is_judged_unless_it_is_known_or_no_better_than_noise() -> None:
    found = [measured(1, 1.2, 1.2), measured(2, 1.5, 1.5), Measured({"BLOCK": 3})]
    assert best(found) == found[1]
    assert worth_judging(found, [OWN]) == found[1]
    assert worth_judging(found, [OWN, {"BLOCK": 2}]) is None
    assert worth_judging([*found, measured(4, 1.51, 1.51)], [OWN, {"BLOCK": 2}]) is None
    assert worth_judging([measured(5, 1.005, 1.005)], [OWN]) is None
    assert worth_judging([Measured({"BLOCK": 3})], [OWN]) is None
    assert worth_judging([], [OWN]) is None


def test_one_is_not_true() -> None:
    assert worth_judging([Measured({"FAST": True}, {"w": 2.0})], [{"FAST": 1}]) is not None


def test_workloads_that_want_different_configurations_get_a_table() -> None:
    found = [measured(1, 1.5, 0.9), measured(2, 0.9, 1.4), measured(3, 1.2, 1.2)]
    plan = plan_dispatch(found, OWN, SIGNATURES)
    assert plan is not None
    assert plan.fallback == {"BLOCK": 3}
    assert plan.choices == {(tuple(SMALL),): {"BLOCK": 1}, (tuple(LARGE),): {"BLOCK": 2}}
    assert plan.gain == pytest.approx((1.5 / 1.2 * 1.4 / 1.2) ** 0.5)


def test_the_kernel_as_it_is_may_win_a_workload() -> None:
    plan = plan_dispatch([measured(1, 1.5, 0.8)], OWN, SIGNATURES)
    assert plan is not None
    assert (plan.fallback, plan.choices) == ({"BLOCK": 1}, {(tuple(LARGE),): OWN})


@pytest.mark.parametrize(
    ("found", "signatures"),
    [
        ([measured(1, 1.5, 1.49), measured(2, 1.4, 1.5)], SIGNATURES),
        ([measured(1, 1.5, 0.9), measured(2, 0.9, 1.4)], {"small": [SMALL], "large": [SMALL]}),
        ([Measured({"BLOCK": 1})], SIGNATURES),
        ([], {}),
    ],
    ids=["too little", "cannot be told apart", "nothing worked", "nothing known"],
)
def test_no_table_where_it_does_not_pay(found: list[Measured], signatures: dict[str, list[list[str | int]]]) -> None:
    assert plan_dispatch(found, OWN, signatures) is None
