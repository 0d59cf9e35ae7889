"""A timed result that differs from eager's by more than usual is judged in full, on the very values of its call.

What is usual was calibrated on the prepared values. Rows that were repeated and elements that arrived with the call may
condition a result worse: of 215 honest candidates three differed from eager by 1 to 2 times the bound (measured).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from worker.judge.exhibits import Exhibit
from worker.judge.numerics.case import Case


def recheck(exhibit: Exhibit, source: Case, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> str:
    """Why these outputs are wrong for these inputs, or nothing.

    `source`: the case that the inputs were made from; its thresholds hold at least.
    """
    case = exhibit.truth.case(source.family, inputs)
    wider = tuple(
        replace(mine, threshold=max(mine.threshold, theirs.threshold), element=max(mine.element, theirs.element))
        for mine, theirs in zip(case.tolerances, source.tolerances, strict=True)
    )
    found = zip(case.names, replace(case, tolerances=wider).judge(outputs), strict=True)
    return next((f"{name}: {comparison.reason}" for name, comparison in found if not comparison.passed), "")
