"""The text is Zipf-distributed, repeatable, and has something to learn."""

from __future__ import annotations

import pytest
import torch

from worker.judge.dynamics.text import COPY, EXPONENT, labels_of, zipf_tokens


def test_token_frequencies_follow_zipfs_law() -> None:
    tokens = zipf_tokens(400, 100, 1000, torch.Generator().manual_seed(1))
    counts = torch.bincount(tokens.flatten(), minlength=1000).double() / tokens.numel()
    expected = torch.arange(1, 1001).double() ** -EXPONENT
    expected /= expected.sum()
    assert tokens.shape == (400, 100)
    assert float(counts[0]) == pytest.approx(float(expected[0]), rel=0.1)
    assert float(counts[:10].sum()) == pytest.approx(float(expected[:10].sum()), rel=0.05)
    assert float(counts[500:].sum()) == pytest.approx(float(expected[500:].sum()), rel=0.15)


def test_half_of_the_tokens_repeat_the_one_before() -> None:
    tokens = zipf_tokens(200, 100, 5000, torch.Generator().manual_seed(2))
    repeated = float((tokens[:, 1:] == tokens[:, :-1]).double().mean())
    assert COPY < repeated < COPY + 0.1  # and a few by chance


def test_the_same_seed_gives_the_same_text() -> None:
    first, second = (zipf_tokens(4, 64, 100, torch.Generator().manual_seed(3)) for _turn in range(2))
    assert torch.equal(first, second)


def test_the_label_is_the_next_tokens_class() -> None:
    assert labels_of(torch.tensor([[5, 130, 7]]), 64).tolist() == [[2, 7, 5]]
