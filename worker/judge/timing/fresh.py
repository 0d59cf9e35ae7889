"""New values for every timed call of one workload, at the cost of a copy; the last few of them with the call itself.

A kernel that keys a cache on a pointer, an object, a shape or a hash of the contents never sees the same contents
twice, but for what may not be drawn (offsets, masks): that is of one of two draws.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from worker.judge.exhibits import Exhibit
from worker.judge.inputs import families, real_values
from worker.judge.inputs.freshening import Freshener
from worker.judge.numerics.case import Case
from worker.runner.mixing import MOST, SPAN, Mix, Mixer
from worker.runner.values import tensors_of

_MIX_RANGE = {"real": (-2.0, 2.0), "positive": (0.1, 2.0), "unit": (0.1, 0.9)}


class Fresh:
    """Fresh values for one workload."""

    def __init__(self, exhibit: Exhibit, rng: random.Random) -> None:
        self.sources = exhibit.timed
        self._arguments, self._forward_inputs = exhibit.instance.arguments, exhibit.instance.forward_inputs
        self._freshener = Freshener(self.sources[0].inputs, self._arguments, exhibit.domains, rng)
        self.mix = _mix_of(exhibit)
        self._mixer = Mixer(self.mix, "cpu") if self.mix is not None else None
        self._rng = rng

    def choose(self) -> tuple[Case, int]:
        """A source and a seed for `fill`."""
        return self._rng.choice(self.sources), self._rng.randrange(1 << 30)

    def fill(self, targets: list[torch.Tensor], source: Case, seed: int) -> None:
        """Write the values that belong to `seed` into `targets`: the tensors of an argument list, in order.

        Rows are rolled, and a few are repeated elsewhere: all from one case, whose tolerance then still fits.
        """
        left = list(targets)
        out: list[Any] = []
        for value in source.inputs:
            held = tensors_of((value,))
            mine, left = left[: len(held)], left[len(held) :]
            if isinstance(value, torch.Tensor):
                out.append(mine[0])
                continue
            out.append(value)  # a list of tensors stays as the case has it
            for target, tensor in zip(mine, held, strict=True):
                target.copy_(tensor)
        self._freshener.write(out, source.inputs, [source.inputs], random.Random(seed))

    def fill_inputs(self, targets: list[torch.Tensor], source: Case, seed: int) -> None:
        """The same of forward's own inputs; cotangents are left as they are."""
        own = len(tensors_of(source.inputs[: self._forward_inputs]))
        kept = [tensor.clone() for tensor in targets[own:]]
        self.fill(targets, source, seed)
        for target, tensor in zip(targets[own:], kept, strict=True):
            target.copy_(tensor)

    def inputs(self, source: Case, seed: int, numbers: Sequence[int]) -> tuple[Any, ...]:
        """The argument list that `fill` and, in turn, the values of these numbers make, in tensors of its own."""
        # In the slot's strides: what are rows, and what of them is changed, hangs on those.
        targets = [
            torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            for like in tensors_of(source.inputs)
        ]
        self.fill(targets, source, seed)
        if self.mix is not None:
            mixer = Mixer(self.mix, str(targets[self.mix.tensor].device))
            for number in numbers:
                mixer.apply(targets, number)
        left = iter(targets)
        return tuple(_rebuilt(value, left) for value in source.inputs)

    def mix_into(self, tensors: list[torch.Tensor], number: int) -> None:
        """On a CPU: write the values that arrive with the call."""
        if self._mixer is not None:
            self._mixer.apply(tensors, number)


def _rebuilt(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """An argument like `value`, of the next tensors."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, list | tuple):
        return type(value)(_rebuilt(item, tensors) for item in value)
    if isinstance(value, dict):
        return {key: _rebuilt(item, tensors) for key, item in value.items()}
    return value


def _mix_of(exhibit: Exhibit) -> Mix | None:
    """The largest contiguous float input that may be drawn: elements of its rows arrive with the call."""
    tensors = []
    index = 0
    for name, value in zip(exhibit.instance.arguments, exhibit.instance.like, strict=True):
        for tensor in tensors_of((value,)):
            kind = families.kind_of(value, exhibit.domains.get(name))
            if _mixable(value, kind):
                tensors.append((tensor.numel(), index, tensor, kind))
            index += 1
    if not tensors:
        return None
    _size, index, tensor, kind = max(tensors, key=lambda item: item[:2])
    stride = tensor.shape[-1] if tensor.shape[-1] > 1 else max(1, tensor.numel() // 64)
    low, high = _MIX_RANGE[kind]
    return Mix(index, max(stride, -(-min(tensor.numel(), SPAN) // MOST)), low, high)


def _mixable(value: Any, kind: str) -> bool:
    if not isinstance(value, torch.Tensor) or kind not in _MIX_RANGE or value.numel() < 2 or not value.is_contiguous():
        return False
    return value.is_floating_point() and not real_values.structure(value)
