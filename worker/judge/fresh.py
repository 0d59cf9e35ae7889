"""New values for every timed call, at the cost of a copy.

A kernel that keys a cache on a pointer, an object, a shape or a hash of the contents never sees the same contents
twice. Values come from the checked cases: each tensor is rolled by a random amount and a few random chunks of it are
moved, so that they keep their distribution (and with it the case's tolerance) without a random number per element.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch

from problems.catalog import Domain
from worker.judge import inputs as families
from worker.judge.exhibits import Exhibit
from worker.judge.truth import Case
from worker.runner.mixing import Mix
from worker.runner.values import tensors_of

_CHUNKS = 3
_MIX_RANGE = {"real": (-2.0, 2.0), "positive": (0.1, 2.0), "unit": (0.1, 0.9)}


class Fresh:
    """Fresh values for one workload."""

    def __init__(self, exhibit: Exhibit, domains: Mapping[str, Domain], rng: random.Random) -> None:
        self.sources = [case for case in exhibit.cases if case.finite and case.family != "special"]
        arguments = zip(exhibit.instance.arguments, exhibit.instance.like, strict=True)
        kinds = {name: families.kind_of(value, domains.get(name)) for name, value in arguments}
        self._free = [
            kinds[name] != "fixed" and isinstance(value, torch.Tensor)
            for name, value in zip(exhibit.instance.arguments, exhibit.instance.like, strict=True)
            for _tensor in tensors_of((value,))
        ]
        self.mix = _mix_of(exhibit.instance.arguments, exhibit.instance.like, kinds)
        self._rng = rng

    def choose(self) -> tuple[Case, int]:
        """A source and a seed for `fill`."""
        return self._rng.choice(self.sources), self._rng.randrange(1 << 30)

    def fill(self, targets: list[torch.Tensor], source: Case, seed: int) -> None:
        """Write the values that belong to `seed` into `targets` (shapes and dtypes of the inputs)."""
        rng = random.Random(seed)
        for target, value, free in zip(targets, tensors_of(source.inputs), self._free, strict=True):
            if free and value.is_contiguous() and target.is_contiguous() and value.numel() > 1:
                _roll_into(target.view(-1), value.view(-1), rng)
            else:
                target.copy_(value)


def _roll_into(target: torch.Tensor, source: torch.Tensor, rng: random.Random) -> None:
    count = source.numel()
    cut = rng.randrange(count)
    target[: count - cut].copy_(source[cut:])
    target[count - cut :].copy_(source[:cut])
    size = max(1, count // 64)
    for _chunk in range(_CHUNKS):
        start, origin = rng.randrange(count - size + 1), rng.randrange(count - size + 1)
        target[start : start + size].copy_(source[origin : origin + size])


def _mix_of(names: tuple[str, ...], like: tuple[Any, ...], kinds: dict[str, str]) -> Mix | None:
    """The largest contiguous float input that may be drawn: one element of every row of it arrives with the call."""
    tensors = []
    index = 0
    for name, value in zip(names, like, strict=True):
        for tensor in tensors_of((value,)):
            usable = tensor.is_floating_point() and tensor.is_contiguous() and tensor.numel() > 1
            if usable and kinds[name] in _MIX_RANGE and isinstance(value, torch.Tensor):
                tensors.append((tensor.numel(), index, tensor, kinds[name]))
            index += 1
    if not tensors:
        return None
    _size, index, tensor, kind = max(tensors, key=lambda item: item[:2])
    stride = tensor.shape[-1] if tensor.shape[-1] > 1 else max(1, tensor.numel() // 64)
    low, high = _MIX_RANGE[kind]
    return Mix(index, max(stride, tensor.numel() // 65_536), low, high)
