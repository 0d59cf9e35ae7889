"""Fresh values for every timed call, at about the price of a copy.

A kernel that keeps the answer to values it has seen, or that recognises them by a sum or a prefix, must not gain by
it. So a timed call never meets the values of another: every argument is rolled by a random number of rows, and two
stretches of it are overwritten from another case, or from elsewhere in the same. Whole rows move, so that each keeps
its family: a row of half N and half 1e4 + N would be worse conditioned than the rows that its tolerance was calibrated
on. Then each real number comes nearer to its row's first by a part of its own, or a kernel that keeps the result of
each row, and knows it again, would skip a matrix product. (Nearer to zero, a row of 1e4 + N would be spread over
thousands.) Of what has an order of its own (offsets, sorted keys) single elements move.

    freshener = Freshener(case.inputs, instance.arguments, domains, rng)   # once: it looks at the values
    freshener.write(places, case.inputs, others, rng)                      # for every call: hardly more than copies
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from problems.catalog import Domain
from worker.judge.inputs import families, ordered, real_values

_STRETCHES = 2
_LARGEST_STRETCH = 8
"""A stretch is up to an eighth of the argument."""
_LEAST_FACTOR = 0.75
"""Of the distance to the row's first number 0.75 to 1 is left: other values by far more than any tolerance."""
_STARTS = 4096
"""Where in the factors a call begins: one of so many places."""


class Freshener:
    """How the arguments of one problem may be changed without leaving their domains."""

    def __init__(
        self, inputs: tuple[Any, ...], names: tuple[str, ...], domains: Mapping[str, Domain], rng: random.Random
    ) -> None:
        """`inputs` is any valid set of arguments, such as a prepared case's. `rng`: for the factors of real numbers,
        which are the same in all calls of `write`."""
        self._moves = [_move(value, domains.get(name)) for value, name in zip(inputs, names, strict=True)]
        self._factors = [
            _factors(value, rng) if move in ("vary", "scale") else None
            for value, move in zip(inputs, self._moves, strict=True)
        ]

    @property
    def changes(self) -> bool:
        """Whether any argument can be changed at all."""
        return any(move != "stay" for move in self._moves)

    def write(
        self, out: Sequence[Any], source: Sequence[Any], others: Sequence[Sequence[Any]], rng: random.Random
    ) -> None:
        """Write new valid values into the tensors of `out`, made from those of `source` and of `others`.

        All are argument lists of one shape, on one device; `out` must not share memory with the others. An argument
        that has to stay (`fixed`, masks, whatever is no tensor) is copied as it is in `source`.
        """
        for place, move in enumerate(self._moves):
            if not isinstance(out[place], torch.Tensor):
                continue
            given = [other[place] for other in others]
            factors = self._factors[place]
            if move == "scale":  # a triangular or symmetric matrix keeps its form
                assert factors is not None
                start = rng.randrange(_STARTS)
                scales = factors[start : start + out[place].shape[-1]]
                torch.mul(rng.choice([source[place], *given]), scales[:, None] * scales, out=out[place])
            elif move == "stay":
                out[place].copy_(source[place])
            elif move in ordered.KINDS:
                out[place].copy_(source[place])
                ordered.move_some(out[place], move, rng)
            else:
                rows = _roll(out[place], source[place], given, rng, apart=move == "index")
                if factors is not None:
                    _vary(rows, factors, rng.randrange(_STARTS))


def freshen(
    inputs: tuple[Any, ...],
    names: tuple[str, ...],
    domains: Mapping[str, Domain],
    others: Sequence[tuple[Any, ...]],
    rng: random.Random,
    out: Sequence[Any] | None = None,
) -> Sequence[Any]:
    """New valid arguments from prepared ones, written into `out` (new tensors when None), which is returned."""
    if out is None:
        out = [torch.empty_like(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    Freshener(inputs, names, domains, rng).write(out, inputs, others, rng)
    return out


def _move(value: Any, domain: Domain | None) -> str:
    kind = families.kind_of(value, domain)
    if kind == "fixed":
        return "stay"
    if kind in families.SPREAD:
        return kind
    if kind == "real" and real_values.structure(value):
        return "scale"
    # Torch multiplies no 8-bit floats, and a vector is rows of one number.
    wide = kind in ("real", "positive") and value.element_size() > 1 and value.dim() > 1
    return "vary" if wide else "roll"


def _factors(like: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """One for each place of the rows' windows, see `_vary`: little more than a row and a column of them."""
    (rows,) = _as_rows([like], apart=False)
    count = rows.shape[0] + rows[:1].numel() + _STARTS
    generator = torch.Generator(device=like.device).manual_seed(rng.randrange(1 << 40))
    empty = torch.empty(count, dtype=like.dtype, device=like.device)
    return empty.uniform_(_LEAST_FACTOR, 1.0, generator=generator)


def _vary(rows: torch.Tensor, factors: torch.Tensor, start: int) -> None:
    """Each row by the factors from one place on, the next row's one further."""
    windows = factors.as_strided((rows.shape[0], rows[:1].numel()), (1, 1), start)
    first = rows[..., :1].clone()
    torch.lerp(first, rows, windows if rows.dim() == 2 else windows.reshape(rows.shape), out=rows)


def _roll(
    out: torch.Tensor, source: torch.Tensor, others: Sequence[torch.Tensor], rng: random.Random, *, apart: bool
) -> torch.Tensor:
    """`out` = `source` rolled by whole rows, with stretches from the others: four copies and no temporary. `apart`: of
    a single row the elements move; indices have no conditioning to lose. Returns the rows of `out`."""
    into, values, *rest = _as_rows([out, source, *others], apart=apart)
    rows = values.shape[0]
    by = rng.randrange(1, rows) if rows > 1 else 0
    into[by:].copy_(values[: rows - by])
    if by:
        into[:by].copy_(values[rows - by :])
    for _ in range(_STRETCHES if rest else 0):
        length = rng.randint(1, max(1, rows // _LARGEST_STRETCH))
        start, at = (rng.randint(0, rows - length) for _ in range(2))
        into[at : at + length].copy_(rng.choice(rest)[start : start + length])
    return into


def _as_rows(tensors: list[torch.Tensor], *, apart: bool) -> list[torch.Tensor]:
    """Views whose first dimension is what moves: the rows in memory where all are dense and ordered alike (a row is
    the innermost dimension, or one element of a vector), else the largest dimension but the last."""
    first = tensors[0]
    if first.dim() == 0:
        return [tensor.reshape(1) for tensor in tensors]
    if all(_dense_like(tensor, first) for tensor in tensors):
        stride, size = min(zip(first.stride(), first.shape, strict=True))
        row = size if first.dim() > 1 and stride == 1 and not (apart and first.numel() == size) else 1
        return [
            tensor.as_strided((tensor.numel() // row, row), (row, 1), tensor.storage_offset()) for tensor in tensors
        ]
    outer = first.shape[:-1] or first.shape
    return [tensor.movedim(outer.index(max(outer)), 0) for tensor in tensors]


def _dense_like(tensor: torch.Tensor, first: torch.Tensor) -> bool:
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return span == tensor.numel() and tensor.stride() == first.stride()
