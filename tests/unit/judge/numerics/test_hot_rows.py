"""Rows that many ids hit: a bf16 sum is found in them and named, an fp32 one is not."""

from __future__ import annotations

import torch

from worker.judge.numerics.hot_rows import accumulation_fault, bucket_errors, hot_row_slices, row_hits

VOCAB, WIDTH, TOKENS = 256, 64, 4096


def scattered(skew: float, kept: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(bf16 result with sums kept in `kept`, fp64 truth, hits)."""
    generator = torch.Generator().manual_seed(7)
    weights = torch.arange(1, VOCAB + 1).float().pow(-skew)
    ids = torch.multinomial(weights, TOKENS, replacement=True, generator=generator)
    rows = torch.randn(TOKENS, WIDTH, generator=generator).bfloat16()
    truth = torch.zeros(VOCAB, WIDTH, dtype=torch.float64).index_add_(0, ids, rows.double())
    found = torch.zeros(VOCAB, WIDTH, dtype=kept)
    for place, row in zip(ids.tolist(), rows.to(kept), strict=True):  # index_add_ keeps bf16 sums in fp32 on a CPU
        found[place] += row
    hits = row_hits((rows, ids), ("rows", "ids"), {"ids": VOCAB}, truth)
    assert hits is not None and int(hits.sum()) == TOKENS
    return found.bfloat16(), truth, hits


def test_a_sum_kept_in_bf16_is_named() -> None:
    sentence = accumulation_fault(*scattered(1.1, torch.bfloat16))
    assert "accumulate it in float32" in sentence and "grows with the number of rows" in sentence


def test_a_sum_kept_in_fp32_is_not_even_on_uniform_ids() -> None:
    assert accumulation_fault(*scattered(1.1, torch.float32)) == ""
    assert accumulation_fault(*scattered(0.0, torch.float32)) == ""


def test_buckets_are_powers_of_two_and_leave_out_what_is_never_hit() -> None:
    hits = torch.tensor([0, 1, 2, 3, 9])
    truth = torch.ones(5, 16, dtype=torch.float64)
    wrong = truth.clone()
    wrong[0], wrong[4] = 7.0, 1.5
    assert bucket_errors(wrong, truth, hits) == [(1, 0.0, 1.0), (2, 0.0, 1.0), (8, 0.5, 1.0)]
    slices = hot_row_slices(wrong - truth, truth, hits)
    assert slices is not None and slices[1].tolist() == [0.0, 0.0, 0.5]


def test_a_bucket_of_few_elements_goes_with_a_colder_one() -> None:
    """A row of one element, added up from a thousand that cancel: any order of summation has an error of its own."""
    hits = torch.tensor([1] * 20 + [2] * 20 + [1024])
    truth = torch.ones(41, 1, dtype=torch.float64)
    truth[40] = 1e-6
    wrong = truth.clone()
    wrong[40] = 3e-5
    coldest, hottest = bucket_errors(wrong, truth, hits)
    assert coldest == (1, 0.0, 1.0) and hottest[0] == 2 and hottest[1] / hottest[2] < 1e-5
    assert bucket_errors(wrong[:3], truth[:3], hits[:3]) == []


def test_only_an_index_whose_bound_is_the_number_of_rows_counts() -> None:
    ids, rows = torch.tensor([0, 1, 1, -100]), torch.zeros(3, 2)
    assert row_hits((ids,), ("ids",), {"ids": 4}, rows) is None
    assert row_hits((ids,), ("ids",), {}, rows) is None
    assert row_hits((ids,), ("ids",), {"ids": 3}, torch.zeros(3)) is None
    hits = row_hits((ids,), ("ids",), {"ids": 3}, rows)
    assert hits is not None and hits.tolist() == [1, 2, 0]
