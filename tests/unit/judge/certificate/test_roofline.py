"""The roofline takes its ceiling from what is multiplied."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from worker.judge.certificate.roofline import multiplied


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ([{torch.bfloat16: 100}, {torch.float32: 10}], torch.bfloat16),
        ([{torch.float32: 100, torch.bfloat16: 1}], torch.float32),
        ([{torch.float8_e4m3fn: 100, torch.float16: 1}], torch.float16),
        ([{}], torch.float64),
    ],
)
def test_the_type_of_which_most_is_multiplied(counted: list[dict[torch.dtype, int]], expected: torch.dtype) -> None:
    assert multiplied(Counter(each) for each in counted) == expected
