"""Indices, family by family: the example's own, uniform, Zipf with hot rows, duplicates, both ends of the range, one
that most are, and in order but for three.

Uniform ids hide low-precision accumulation: in an embedding gradient (V = 32,000, 16,384 tokens) the worst row of a
bf16 accumulation is 2 times as wrong as an honest one on uniform ids, and 25 to 175 times on Zipf ids (measured).
"""

from __future__ import annotations

import torch

_RANKED = 1 << 20
"""Zipf ranks beyond a million have no weight that matters; a larger range spreads its million over all of it."""
_HOT_SHARE = 0.05
_HOTTEST_SHARE = 0.7
"""Of one index: what 16 bits count in 98,304 of them is too little, and a sample does not call it constant."""
_STRAYS = 3
EXAMPLE = "example"
"""The family of the example's own indices."""


def indices(like: torch.Tensor, limit: int | None, family: str, generator: torch.Generator) -> torch.Tensor:
    """Integers from 0 to below `limit` (or, without one, in the example's own range) in `like`'s shape.

    Negative examples are markers (an ignored target, a padded token): their places are moved, their values kept.
    Raises ValueError where there is nothing to name: on a GPU an index into no rows ends the judge's context.
    """
    if limit == 0 and like.numel():
        raise ValueError(f"{like.numel()} indices and nothing that they could name")
    if family == EXAMPLE:
        return like.clone()
    low = int(like.min())
    bound = max(limit if limit is not None else int(like.max()) + 1, 1)
    drawn = _draw(like.numel(), bound, family, generator, like.device)
    if limit is None and low > 0:  # a range that does not start at zero, such as codes from 1
        drawn = low + drawn % (bound - low)
    drawn = drawn.reshape(like.shape).to(like.dtype)
    if low >= 0:
        return drawn
    moved = like.reshape(-1)[torch.randperm(like.numel(), generator=generator, device=like.device)].reshape(like.shape)
    return torch.where(moved < 0, moved, drawn)


def _draw(count: int, bound: int, family: str, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    if family == "zipf":
        return zipf(count, bound, generator, device)
    drawn = torch.randint(bound, (count,), generator=generator, device=device)
    if family == "duplicates":
        few = drawn[: 4 if int(drawn[0]) % 2 else 1]  # one id everywhere, or four
        return few[torch.randint(few.numel(), (count,), generator=generator, device=device)]
    if family == "hot":
        return torch.where(torch.rand(count, generator=generator, device=device) < _HOTTEST_SHARE, drawn[:1], drawn)
    if family == "nearly_sorted":
        ordered = drawn.sort().values
        places = torch.randint(count, (_STRAYS,), generator=generator, device=device)
        ordered[places] = torch.randint(bound, (_STRAYS,), generator=generator, device=device)
        return ordered
    if family == "edges":
        ends = torch.tensor([0, bound - 1], device=device)
        at = torch.rand(count, generator=generator, device=device) < 0.5
        return torch.where(at, ends[drawn % 2], drawn)
    return drawn


def zipf(count: int, bound: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """`count` ids below `bound` with weight rank^-s, s from 1.05 to 1.2; which ids are frequent is random. 5 % more go
    to the most frequent one, as padding and end-of-text tokens do."""
    exponent = 1.05 + 0.15 * float(torch.rand(1, generator=generator, device=device))
    ranked = min(bound, _RANKED)
    weights = torch.arange(1, ranked + 1, dtype=torch.float64, device=device).pow_(-exponent).cumsum_(0)
    aim = torch.rand(count, generator=generator, device=device, dtype=torch.float64) * weights[-1]
    ranks = torch.searchsorted(weights, aim).clamp_max_(ranked - 1)
    ranks[torch.rand(count, generator=generator, device=device) < _HOT_SHARE] = 0
    ids = torch.randperm(ranked, generator=generator, device=device)
    if bound > ranked:
        ids = ids * (bound // ranked)
    return ids[ranks]
