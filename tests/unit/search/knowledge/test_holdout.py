"""The dice of the hold-out."""

from __future__ import annotations

from search.knowledge.holdout import ITEM_LEFT_OUT_ONE_IN, WITHOUT_ONE_IN, item_dice, retrieval_on


def test_each_block_of_five_has_one_proposal_without_retrieval() -> None:
    for seed in range(40):
        without = [ordinal for ordinal in range(100) if not retrieval_on(f"p {seed}", ordinal)]
        assert [ordinal // WITHOUT_ONE_IN for ordinal in without] == list(range(20))


def test_no_place_is_preferred_and_the_dice_fall_the_same_again() -> None:
    places = [o % WITHOUT_ONE_IN for seed in range(400) for o in range(5) if not retrieval_on(f"p {seed}", o)]
    assert all(50 <= places.count(place) <= 115 for place in range(WITHOUT_ONE_IN))
    assert places == [o % WITHOUT_ONE_IN for seed in range(400) for o in range(5) if not retrieval_on(f"p {seed}", o)]


def test_items_are_left_out_one_by_one() -> None:
    out = [item_dice("p 0", ordinal)(f"item {n}") for ordinal in range(50) for n in range(40)]
    assert 0.08 <= sum(out) / len(out) <= 0.12
    assert ITEM_LEFT_OUT_ONE_IN == 10
    assert item_dice("p 0", 3)("item 1") == item_dice("p 0", 3)("item 1")
