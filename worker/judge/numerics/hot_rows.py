"""Rows of a scatter by how often they were hit: where a sum kept in too narrow a type shows, and a sentence for it.

In an embedding gradient, rows that one token hits are as right in bf16 as in fp32; rows that thousands hit are not.
Such rows are too few for any average over the tensor, so they make slices of their own (a bucket per power of two), and
an error that grows with the number of hits names its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

MIN_ELEMENTS = 16
"""A slice has at least so many, or its error is not compared. In rows of one element, eager's error of a single sum
that cancels is anything from 0.02 to 0.6, and no yardstick for another order of summation (measured)."""
_GROWTH = 4.0
"""The hottest bucket's error over the coldest's from which the growth is worth naming: honest kernels have about 1."""

_SEQUENTIAL = 64 * 2.0**-24
"""What one fp32 sum of many thousand terms in sequence costs: not too narrow a type."""


def row_hits(
    inputs: tuple[Any, ...], names: tuple[str, ...], bounds: Mapping[str, int], output: torch.Tensor
) -> torch.Tensor | None:
    """How often each row (dimension 0) of `output` is named by an index argument, or None when none selects its rows.

    `bounds` holds the exclusive bound of every index argument (`InferredDomain.bound`, or a declared one's limit). An
    argument selects rows when its bound is their number.
    """
    if output.dim() < 2:
        return None
    for value, name in zip(inputs, names, strict=True):
        if bounds.get(name) == output.shape[0] and isinstance(value, torch.Tensor):
            ids = value.reshape(-1)
            ids = ids[(ids >= 0) & (ids < output.shape[0])]
            return torch.bincount(ids.to(torch.int64), minlength=output.shape[0])
    return None


def bucket_errors(output: torch.Tensor, truth: torch.Tensor, hits: torch.Tensor) -> list[tuple[int, float, float]]:
    """(fewest hits, rms error, rms truth) of the rows hit 1, 2-3, 4-7, ... times; rows without a hit are left out.

    A bucket with too few elements to average goes with the next colder one, and is left out where there is none: a
    single sum may cancel. `output` and the fp64 `truth` are [rows, ...]; places where either is not finite are left
    out.
    """
    usable = torch.isfinite(truth) & torch.isfinite(output)
    e = torch.where(usable, output.to(torch.float64) - truth, 0.0).reshape(truth.shape[0], -1).square().mean(1)
    y = torch.where(usable, truth, 0.0).reshape(truth.shape[0], -1).square().mean(1)
    bucket = torch.log2(hits.clamp_min(1).double()).floor().long()
    found = []
    rows = torch.zeros_like(hits, dtype=torch.bool)
    for number in range(int(bucket.max()), -1, -1):
        rows |= (bucket == number) & (hits > 0)
        if int(rows.sum()) * truth[0].numel() >= MIN_ELEMENTS:
            found.append((1 << number, float(e[rows].mean().sqrt()), float(y[rows].mean().sqrt())))
            rows.zero_()
    return found[::-1]


def hot_row_slices(
    e: torch.Tensor, y: torch.Tensor, hits: torch.Tensor
) -> tuple[str, torch.Tensor, torch.Tensor] | None:
    """The buckets as one more kind of slice for `numerics`: (name, rms error, rms truth)."""
    found = bucket_errors(e + y, y, hits)
    if not found:
        return None
    errors, scales = (torch.tensor([row[place] for row in found], dtype=torch.float64) for place in (1, 2))
    return "rows by hits, bucket", errors, scales


def accumulation_fault(output: torch.Tensor, truth: torch.Tensor, hits: torch.Tensor) -> str:
    """A sentence when the relative error grows with the number of hits, which is what a sum that is kept in too narrow
    a type does; nothing otherwise."""
    found = [(least, error / scale) for least, error, scale in bucket_errors(output, truth, hits) if scale > 0]
    if len(found) < 2:
        return ""
    (few, low), (many, high) = found[0], max(found[1:], key=lambda row: row[1])
    rounding = max(torch.finfo(output.dtype).eps / 4, _SEQUENTIAL)  # a row that is hit once may even be exact
    if high <= _GROWTH * max(low, rounding) or many < 8:
        return ""
    return (
        f"the error grows with the number of rows added into one, from {low:.1e} at {few} to {high:.1e} at {many} and "
        "more: the sum is kept in too narrow a type, accumulate it in float32"
    )
