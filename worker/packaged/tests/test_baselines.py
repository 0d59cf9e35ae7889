"""The baselines that calls get on which no kernel was surely faster. Skipped off the certified machines."""

from __future__ import annotations

import pytest
import torch

from .. import baselines
from ..table import Row, in_order
from .tolerances import SLOWER, check, judged_by, made, outpaced, wide


@pytest.mark.parametrize("row", SLOWER)
def test_a_baseline_is_right_and_its_results_outlive_the_next_calls(row: Row) -> None:
    module, inputs = outpaced(row)
    with torch.no_grad():
        module(*inputs)  # a CUDA graph is recorded in the second call
        mine, truths = module(*inputs), judged_by(module)(*wide(inputs))
        before = [output.clone() for output in in_order(mine)]
        for _repeat in range(2):
            module(*made(row)[1])
    assert (type(mine) if row.container else None) is row.container
    torch.testing.assert_close(in_order(mine), before, rtol=0, atol=0, equal_nan=True)
    check(row, [f"output{place}" for place in range(len(before))], mine, truths)
    assert row.number not in baselines.FAILED
