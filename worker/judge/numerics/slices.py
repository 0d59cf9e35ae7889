"""Errors of an output against its fp64 truth, in slices and in single elements, a part of the rows at a time.

What is compared at once takes half a gigabyte for each tensor on the way, but for single rows that are longer, and rows
of odd lengths above 65,536, of which 1,024 are compared at once. The 402 million numbers of the triangle update's
largest output took 15 to 18 GiB of an H100 beside the judge's cases when they were compared as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from worker.judge.numerics.hot_rows import MIN_ELEMENTS

_PIECE = 1 << 26
"""Elements that are compared at once."""
_BLOCK = 1024


def pieces(output: torch.Tensor, truth: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(output, truth) as rows of the last dimension, some at a time: whole blocks, but for the last piece."""
    last = truth.shape[-1] if truth.dim() else 1
    if not truth.numel():
        return
    together = _BLOCK // math.gcd(_BLOCK, last)
    step = max(1, _PIECE // (last * together)) * together
    yield from zip(*(torch.split(side.reshape(-1, last), step) for side in (output, truth)), strict=True)


def parts_of(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Tensors of one shape as numbers in a row, some at a time; none of empty ones."""
    if tensors[0].numel():
        yield from zip(*(torch.split(tensor.reshape(-1), _PIECE) for tensor in tensors), strict=True)


def errors(output: torch.Tensor, truth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(error, truth) in fp64, 0 where the truth is not finite; both are nobody else's."""
    finite = torch.isfinite(truth)
    return (output.to(torch.float64) - truth).masked_fill_(~finite, 0.0), torch.where(finite, truth, 0.0)


def slices(output: torch.Tensor, truth: torch.Tensor) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """(name, rms error, rms truth) for every kind of slice that has enough elements to average, the whole first."""
    found = []
    for result, exact in pieces(output, truth):
        share = exact.numel() / truth.numel()
        found.append([_means(side.square_(), share) for side in errors(result, exact)])
    error, scale = (_joined([sides[place] for sides in found]) for place in (0, 1))
    rows, last = (truth.numel() // truth.shape[-1], truth.shape[-1]) if truth.dim() else (1, 1)
    usable = {
        "whole": True,
        "row": last >= MIN_ELEMENTS,
        "column": rows >= MIN_ELEMENTS,
        "block": truth.numel() >= 2 * _BLOCK,
    }
    return [(name, error[name].sqrt(), scale[name].sqrt()) for name, enough in usable.items() if enough]


def _means(squares: torch.Tensor, share: float) -> dict[str, torch.Tensor]:
    """Mean squares of a piece of the rows; of the whole and of columns its `share` of them."""
    blocks = squares.numel() // _BLOCK
    return {
        "whole": share * squares.mean().reshape(1),
        "row": squares.mean(1),
        "column": share * squares.mean(0),
        "block": squares.reshape(-1)[: blocks * _BLOCK].reshape(-1, _BLOCK).mean(1),
    }


def _joined(means: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    joined = {name: torch.cat([part[name] for part in means]) for name in ("row", "block")}
    return joined | {name: torch.stack([part[name] for part in means]).sum(0) for name in ("whole", "column")}


def elements(output: torch.Tensor, truth: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(truth, error's size, scale of the row) as rows, a piece at a time; 0 where either is not finite. They are nobody
    else's."""
    scale = _scales(output, truth)
    first = 0
    for result, exact in pieces(output, truth):
        y, usable = _finite(result, exact)
        e = (result.to(torch.float64) - exact).masked_fill_(~usable, 0.0).abs_()
        yield y, e, scale[first : first + len(y)]
        first += len(y)


def sized(values: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(value, scale of the row) of a tensor alone, likewise."""
    scale = _scales(values, values)
    first = 0
    for part, _same in pieces(values, values):
        yield _finite(part, part)[0], scale[first : first + len(part)]
        first += len(part)


def _scales(output: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """The rms of each row, [rows, 1]: the whole's where rows are short, and no less than a thousandth of the median."""
    squares = [_finite(result, exact)[0].square_().mean(1) for result, exact in pieces(output, truth)]
    means = torch.cat(squares) if squares else truth.new_zeros(1)
    last = truth.shape[-1] if truth.dim() else 1
    scale = (means if last >= MIN_ELEMENTS else means.mean().expand(means.numel())).sqrt().reshape(-1, 1)
    return scale.clamp_min(max(1e-3 * float(scale.median()), torch.finfo(torch.float32).tiny))


def _finite(output: torch.Tensor, truth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The truth with 0 where it or the output is not finite, and where both are."""
    usable = torch.isfinite(truth) & torch.isfinite(output)
    return torch.where(usable, truth, 0.0), usable
