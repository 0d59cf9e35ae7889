"""Tensors whose values belong together: offsets, sorted keys, borders of buckets (`ascending`), lists of slots or of
lengths (`shuffled`). They are drawn so that what a reference takes for granted of them holds.

What ascends is taken apart where the example falls: it keeps the first and the last value of each such stretch, and
what lies between is drawn anew, still ascending. So offsets still end where the tensor does that they cut up, borders
of many features in one tensor ascend within each, and lists of documents, one behind the other, stay lists. What is
shuffled keeps its values, so that lengths still have their sum.

Until 28 November such tensors were get_inputs' own alone, and it was accepted that a table of keys is kept from an
earlier call and known by 16 of them, that keys are looked for as if evenly spread, and that rows end after 2,048 or
8,192 elements where no row of get_inputs is longer.
"""

from __future__ import annotations

import math
import random

import torch

from worker.judge.inputs import indices

ASCENDING, STRICTLY_ASCENDING, SHUFFLED = "ascending", "strictly_ascending", "shuffled"
KINDS = (ASCENDING, STRICTLY_ASCENDING, SHUFFLED)
_MOVED = 8
"""At most so many single elements move from call to call: who samples 16 of 1,000 keys misses all 8 in 7 of 8 calls."""
_SHARE = 32
"""And no more than one of so many."""
_FEW_STEPS = 4.0
_LARGEST_STEP = 256.0
"""A step is at most about so many times as large as the mean one. That is all of the way where a CPU's workloads have
128 rows; of 65,536 with 67 million elements in all, one with all of them would keep one of 132 multiprocessors busy for
seconds in each call of a kernel that gives a row to a block, as honest ones do."""
_STEEP, _SKEWED = 16.0, 1.5
"""Steps are drawn as u^-16 (the largest is nearly all of the way) and u^-1.5 (a few are most of it), u in (0, 1)."""


def drawn(like: torch.Tensor, kind: str, family: str, generator: torch.Generator) -> torch.Tensor:
    """New values in `like`'s shape, by a family of indices: steps alike (nearly_sorted), one that is nearly all of the
    way (hot, edges), four (duplicates), skewed (zipf), or as even draws leave them (uniform)."""
    if family == indices.EXAMPLE or like.numel() < 2:
        return like.clone()
    if kind == SHUFFLED:
        places = torch.randperm(like.numel(), generator=generator, device=like.device)
        return like.reshape(-1)[places].reshape(like.shape)
    return _ascending(like.reshape(-1), kind, family, generator).reshape(like.shape)


def _ascending(like: torch.Tensor, kind: str, family: str, generator: torch.Generator) -> torch.Tensor:
    count, device, integral = like.numel(), like.device, not like.is_floating_point()
    wide = like.double()
    steps = wide.diff()
    falls = steps <= 0 if kind == STRICTLY_ASCENDING else steps < 0
    stretch = torch.zeros(count, dtype=torch.int64, device=device)
    stretch[1:] = falls.cumsum(0)
    place = torch.arange(count, device=device)
    starts = torch.cat([place[:1], place[1:][falls]])
    ends = torch.cat([starts[1:] - 1, place[-1:]])
    place = place - starts[stretch]
    sizes = (ends - starts)[stretch]

    size = _log_steps(family, sizes, generator)
    # Each stretch by its own largest: among u^-16 those of another would round all of a stretch away.
    largest = torch.full((starts.numel(),), -torch.inf, dtype=torch.float64, device=device)
    largest.scatter_reduce_(0, stretch, size, "amax")
    shares = torch.where(place > 0, torch.exp(size - largest[stretch]), 0.0)
    shares /= _upto(shares, stretch, starts)[ends][stretch].clamp_min(1e-300)
    most = math.inf if kind == STRICTLY_ASCENDING else _LARGEST_STEP  # gaps between keys are nobody's work
    kept = shares.clamp_max(most / sizes.clamp_min(1))
    upto = _upto(kept, stretch, starts)
    # What was too much is for all alike; rounded sums may leave less than nothing, and then offsets fell below zero.
    left = (1.0 - upto[ends][stretch]).clamp_min(0.0)
    share = (upto + left * place / sizes.clamp_min(1)).clamp_max(1.0)
    # A device adds up in pieces, whose roundings may leave a sum smaller than the one before: never here.
    share = (stretch + share).cummax(0).values - stretch

    least = 1 if integral and kind == STRICTLY_ASCENDING else 0
    room = (wide[ends] - wide[starts])[stretch] - least * sizes
    risen = (share * room).floor() if integral else share * room
    found = wide[starts][stretch] + least * place + risen
    found[ends] = wide[ends]  # whatever rounding did to the sum of the shares
    return found.to(like.dtype)


def _upto(steps: torch.Tensor, stretch: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Running sums within each stretch. A stretch's first step is zero."""
    summed = steps.cumsum(0)
    return summed - summed[starts][stretch]


def _log_steps(family: str, sizes: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The logarithm of each step's size, in any unit. `sizes`: how many steps the stretch of each has."""
    even = torch.rand(sizes.shape, generator=generator, device=sizes.device, dtype=torch.float64).clamp_min_(1e-12)
    if family == "nearly_sorted":
        return torch.zeros_like(even)
    if family in ("hot", "edges"):
        return -_STEEP * even.log()
    if family == "duplicates":
        return torch.where(even * sizes < _FEW_STEPS, 0.0, -40.0).double()
    if family == "zipf":
        return -_SKEWED * even.log()
    return torch.log(-even.log() + 1e-12)


def move_some(values: torch.Tensor, kind: str, rng: random.Random) -> None:
    """Move single elements of `values`, in place and without waiting for a device: what ascends anywhere between its
    neighbours, of a list two that change places, and an index becomes another one of them. Nothing happens where there
    is no room."""
    flat = values.view(-1) if values.is_contiguous() else values.reshape(-1)
    count = flat.numel()
    wanted = max(1, min(_MOVED, count // _SHARE))
    if kind == "index":
        if count >= 2:
            chosen = rng.sample(range(count), 2 * min(wanted, count // 2))
            one, other = torch.tensor(chosen, device=flat.device).chunk(2)
            flat[one] = flat[other]
    elif kind == SHUFFLED:
        if count >= 2:
            chosen = rng.sample(range(count), 2 * min(wanted, count // 2))
            one = torch.tensor(chosen, device=flat.device)
            flat[one] = flat[one.roll(len(chosen) // 2)]
    elif count >= 3:
        # Every other place, so that no two that move are neighbours.
        odd = rng.randrange(2) if count > 3 else 0
        places = range(1 + odd, count - 1, 2)
        at = torch.tensor(rng.sample(places, min(wanted, len(places))), device=flat.device)
        shares = torch.tensor([rng.random() for _ in range(at.numel())], dtype=torch.float64, device=flat.device)
        flat[at] = _between(flat[at - 1], flat[at], flat[at + 1], shares, strict=kind == STRICTLY_ASCENDING)
    if flat.data_ptr() != values.data_ptr():
        values.copy_(flat.reshape(values.shape))


def _between(
    low: torch.Tensor, own: torch.Tensor, high: torch.Tensor, shares: torch.Tensor, *, strict: bool
) -> torch.Tensor:
    """`shares` of the way from `low` to `high`; where a stretch begins or ends at `own` it stays."""
    inside = (low < own) & (own < high) if strict else (low <= own) & (own <= high)
    if own.is_floating_point():
        return torch.where(inside, (low + shares * (high.double() - low.double())).to(own.dtype), own)
    ends = 1 if strict else 0
    room = (high - low + 1 - 2 * ends).double()
    return torch.where(inside, low + ends + (shares * room).floor().to(own.dtype), own)
