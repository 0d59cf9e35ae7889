"""Slices and single elements are the same whether they are compared in pieces or as a whole."""

from __future__ import annotations

import pytest
import torch

from worker.judge.numerics import slices
from worker.judge.numerics.comparison import compare, unsure_signs
from worker.judge.numerics.measures import bias, element_error, slice_error
from worker.judge.numerics.tolerance import tolerance

LIMIT = tolerance(1e-3, 1e-1, torch.float16)


@pytest.mark.parametrize(
    ("shape", "count"), [((64, 48, 33), 3), ((257, 100), 2), ((70_000,), 1), ((3, 5), 1), ((40, 1024), 40), ((), 1)]
)
def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], count: int) -> None:
    truth = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    output = (truth * 1.0001).half()
    if truth.numel() > 100:
        truth.view(-1)[7] = output.view(-1)[7] = torch.nan
        output.view(-1)[11] += 1
    whole = _all_of(output, truth)
    monkeypatch.setattr(slices, "_PIECE", 1024)
    assert len(list(slices.pieces(output, truth))) == count
    parts = _all_of(output, truth)
    assert [name for name, _value in parts] == [name for name, _value in whole]
    for (name, one), (_name, other) in zip(whole, parts, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=0, equal_nan=True), name


def test_numbers_near_the_end_of_fp16_may_be_infinite_in_any_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_PIECE", 1024)
    truth = torch.ones(4096, 64, dtype=torch.float64)
    truth[4000, 3] = 65_519.0
    output = truth.half()
    output[4000, 3] = torch.inf
    assert compare(output, truth, truth.half(), LIMIT).passed
    output[4000, 3], output[1, 1] = 65_504.0, torch.inf
    assert not compare(output, truth, truth.half(), LIMIT).passed


@pytest.mark.parametrize(
    ("place", "is_now", "reason"),
    [
        (3000, "nan", "NaN at 1 places where it is wrong (1 too many, 0 missing)"),
        (2001, "1.0", "infinity at 1 places where it is wrong (0 too many, 1 missing)"),
        (2001, "-inf", "an infinity has the wrong sign"),
        (7, "2.0", "NaN at 1 places where it is wrong (0 too many, 1 missing)"),
        (7, "nan", ""),
    ],
)
def test_special_values_are_wrong_in_any_piece(
    monkeypatch: pytest.MonkeyPatch, place: int, is_now: str, reason: str
) -> None:
    truth = torch.linspace(1, 2, 4096, dtype=torch.float64)
    truth[7], truth[2001] = torch.nan, torch.inf
    output = truth.half()
    output[place] = float(is_now)
    for piece in (slices._PIECE, 1000):
        monkeypatch.setattr(slices, "_PIECE", piece)
        assert compare(output, truth, truth.half(), LIMIT).reason == reason
    assert compare(output[:0], truth[:0], truth[:0].half(), LIMIT).passed


def _all_of(output: torch.Tensor, truth: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    kinds = slices.slices(output, truth)
    found = [(f"{name}, {side}", value) for name, *sides in kinds for side, value in zip("ey", sides, strict=True)]
    worst, where = slice_error(output, truth)
    factor = bias(output, truth)
    verdict = compare(output, truth, output, LIMIT)
    numbers = [worst, element_error(output, truth, torch.float16), verdict.element_excess, *(factor or ())]
    found.append((f"{where} {verdict.passed} {verdict.worst_slice}", torch.tensor(numbers)))
    return [*found, ("signs", unsure_signs(output.double(), truth, LIMIT).double())]
