"""What belongs together stays together, is drawn in many forms, and moves from call to call."""

from __future__ import annotations

import random

import pytest
import torch

from worker.judge.inputs import indices, ordered
from worker.judge.inputs.ordered import ASCENDING, SHUFFLED, STRICTLY_ASCENDING, drawn, move_some

FORMS = ("uniform", "zipf", "hot", "edges", "duplicates", "nearly_sorted")
OFFSETS = torch.tensor([0, *sorted(random.Random(1).choices(range(20_000), k=200)), 20_000])
KEYS = torch.tensor(sorted(random.Random(2).sample(range(4_000), 1_000)))


def draw(like: torch.Tensor, kind: str, form: str, seed: int = 1) -> torch.Tensor:
    found = drawn(like, kind, form, torch.Generator().manual_seed(seed))
    assert found.shape == like.shape and found.dtype == like.dtype
    return found


@pytest.mark.parametrize("form", FORMS)
def test_offsets_ascend_from_where_they_began_to_where_they_ended(form: str) -> None:
    found = draw(OFFSETS, ASCENDING, form)
    assert (found.diff() >= 0).all() and found[0] == 0 and found[-1] == 20_000
    assert not torch.equal(found, OFFSETS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [3, 65, 129, 1_000])
def test_no_draw_leaves_its_ends_or_falls(form: str, count: int) -> None:
    """Sums of shares that are rounded up once led to offsets of -1, in one draw of some twenty."""
    like = torch.arange(count) * 32
    for seed in range(100):
        found = draw(like, ASCENDING, form, seed)
        assert found[0] == 0 and found[-1] == like[-1] and (found.diff() >= 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_sums_that_are_rounded_otherwise_do_not_fall(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a device may add them up: a last digit more or less here and there."""
    exact = ordered._upto

    def rough(steps: torch.Tensor, stretch: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(steps.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 0.5
        return exact(steps, stretch, starts) * (1 + 1e-14 * noise)

    monkeypatch.setattr(ordered, "_upto", rough)
    stretches = torch.cat([torch.arange(0, 6_400, 64), torch.arange(5, 3_205, 32)])
    for kind, least in ((ASCENDING, 0), (STRICTLY_ASCENDING, 1)):
        for seed in range(30):
            found = draw(stretches, kind, form, seed)
            assert all((part.diff() >= least).all() for part in found.split(100))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_no_two_keys_are_alike(form: str, dtype: torch.dtype) -> None:
    found = draw(KEYS.to(dtype), STRICTLY_ASCENDING, form)
    assert (found.diff() > 0).all() and found[0] == KEYS[0] and found[-1] == KEYS[-1]


@pytest.mark.parametrize("form", FORMS)
def test_each_stretch_of_borders_keeps_its_ends(form: str) -> None:
    stretches = [torch.randn(size).sort().values for size in (16, 1, 40, 2, 300)]
    found = draw(torch.cat(stretches), ASCENDING, form).split([16, 1, 40, 2, 300])
    assert all((part.diff() >= 0).all() and torch.isfinite(part).all() for part in found)
    assert found[0][0] == stretches[0][0] and found[-1][-1] == stretches[-1][-1]


def test_a_row_takes_nearly_all_or_all_are_alike_or_only_four_have_any() -> None:
    lengths = {form: draw(OFFSETS, ASCENDING, form).diff() for form in FORMS}
    assert max(int(draw(OFFSETS, ASCENDING, "hot", seed).diff().max()) for seed in range(5)) > 19_900
    assert lengths["nearly_sorted"].max() - lengths["nearly_sorted"].min() <= 1
    assert 1 <= (lengths["duplicates"] > 0).sum() <= 12
    assert 1_000 < lengths["zipf"].max() < 20_000 and lengths["uniform"].max() < 1_500


def test_no_row_of_many_is_so_long_that_a_block_would_work_on_it_for_seconds() -> None:
    like = torch.arange(0, 65_537) * 1_024
    for form in FORMS:
        lengths = draw(like, ASCENDING, form).diff()
        assert lengths.max() <= 258 * 1_024 and lengths.sum() == like[-1]
    assert draw(like, ASCENDING, "hot").diff().max() > 200 * 1_024


def test_keys_are_not_as_evenly_spread_as_a_search_may_hope() -> None:
    """Between a straight line and the keys lie more places than a search around it would look at."""
    found = draw(KEYS, STRICTLY_ASCENDING, "hot").double()
    line = torch.linspace(float(found[0]), float(found[-1]), 1_000)
    assert (found - line).abs().max() > 1_000


@pytest.mark.parametrize("kind", [ASCENDING, STRICTLY_ASCENDING, SHUFFLED])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_short_ones_stay_valid(kind: str, count: int) -> None:
    like = torch.arange(count) * 3
    for form in (*FORMS, indices.EXAMPLE):
        found = draw(like, kind, form)
        move_some(found, kind, random.Random(1))
        if kind == SHUFFLED:
            assert torch.equal(found.sort().values, like)
        else:
            assert torch.equal(found[:1], like[:1]) and torch.equal(found[-1:], like[-1:])
            assert (found.diff() >= (kind == STRICTLY_ASCENDING)).all()


def test_what_is_shuffled_keeps_its_values() -> None:
    like = torch.randint(100, (64,))
    found = draw(like, SHUFFLED, "uniform")
    assert torch.equal(found.sort().values, like.sort().values) and not torch.equal(found, like)
    moved = found.clone()
    move_some(moved, SHUFFLED, random.Random(1))
    assert torch.equal(moved.sort().values, like.sort().values)


def test_two_that_are_shuffled_change_places() -> None:
    moved = torch.arange(64)
    move_some(moved, SHUFFLED, random.Random(1))
    assert (moved != torch.arange(64)).sum() == 4  # two pairs of 64


@pytest.mark.parametrize(
    ("like", "kind"), [(OFFSETS, ASCENDING), (KEYS, STRICTLY_ASCENDING), (torch.randn(400).sort().values, ASCENDING)]
)
def test_a_few_elements_move_between_their_neighbours(like: torch.Tensor, kind: str) -> None:
    moved = like.clone()
    move_some(moved, kind, random.Random(3))
    changed = moved != like
    assert 1 <= changed.sum() <= 8
    assert (moved.diff() >= (1 if kind == STRICTLY_ASCENDING else 0)).all()
    assert moved[0] == like[0] and moved[-1] == like[-1]


def test_stretches_stay_apart_when_elements_move() -> None:
    stretches = torch.cat([torch.arange(0, 400, 10) + base for base in (0, 7, 3)])
    for seed in range(50):
        moved = stretches.clone()
        move_some(moved, STRICTLY_ASCENDING, random.Random(seed))
        assert all((part.diff() > 0).all() for part in moved.split(40))
        assert torch.equal(moved[[0, 39, 40, 79, 80, 119]], stretches[[0, 39, 40, 79, 80, 119]])


def test_what_does_not_lie_in_one_piece_moves_too() -> None:
    like = torch.arange(0, 800, 2).reshape(2, 200).t()
    moved = like.clone(memory_format=torch.preserve_format)
    move_some(moved, SHUFFLED, random.Random(1))
    assert moved.stride() == like.stride() and (moved != like).any()
    assert torch.equal(moved.sort(dim=0).values.flatten().sort().values, like.flatten().sort().values)
