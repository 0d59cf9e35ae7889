"""Honest ways to compute the same operation: what a candidate's training is compared with.

They differ by what honest kernels differ in and by nothing else: the order of summation (rows permuted, summed in
chunks), the width of the arithmetic (fp32, fp64, the reference as it is), and unbiased rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from worker.judge.dynamics.seats import Operation, Seat, is_float
from worker.judge.reference.problem import call_reference

ROUNDING = {torch.float64: 2.0**-50, torch.float32: 2.0**-20, torch.float16: 2.0**-12, torch.bfloat16: 2.0**-9}
"""Relative rounding noise of an honest kernel by its output's type: 16 fp32 units, or half a unit of a 16-bit type (the
same floors below which the judge's numerics never put an accept anchor)."""


def honest_operations(seat: Seat, count: int, seed: int) -> list[Operation]:
    """`count` of them, all different; the same ones for the same seed. Every second one is noisy.

    Without noisy ones among them, a kernel whose 16-bit results are rounded another way lies 3,600 standard deviations
    from runs that differ in fp32's last bits only (measured), so both kinds are half of every null.
    """
    made: list[Operation] = []
    while len(made) < count:
        turn = len(made)
        if turn % 2:
            made.append(_jittered(seat, seed + turn))
        elif turn == 0 or seat.kind != "embedding_gradient":
            made.append((_rounded(seat, torch.float32), _rounded(seat, torch.float64), _eager(seat))[turn // 2 % 3])
        elif turn % 4:
            made.append(_permuted(seat, seed + turn))
        else:
            made.append(_chunked(seat, 2 + turn))
    return made


class Honest:
    """An honest operation. In a layer's or a loss's seat its forward alone is called where nobody wants gradients: with
    those of nothing a step with 16,384 rows of rmsnorm_residual took two busy cores 30 s, not 24."""

    def __init__(self, whole: Operation, forward: Operation) -> None:
        """`forward`: takes the same arguments, and returns the first outputs."""
        self._whole, self.forward = whole, forward

    def __call__(self, arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        return self._whole(arguments)


def exactly(seat: Seat, dtype: torch.dtype) -> Honest:
    """The reference with every float input and parameter widened to `dtype`, its outputs not rounded back."""
    model = copy.deepcopy(seat.instance.model).to(dtype)
    return _called(seat, model, lambda value: value.to(dtype))


def _called(seat: Seat, model: torch.nn.Module, widened: Callable[[torch.Tensor], torch.Tensor]) -> Honest:
    """A model as an operation; its float inputs come `widened`."""
    call, inputs = seat.instance.callable(model), seat.instance.forward_inputs

    def wide(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(widened(value) if is_float(value) else value for value in arguments)

    def forward(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        return call_reference(model, wide(arguments[:inputs]))

    return Honest(lambda arguments: call_reference(call, wide(arguments)), forward)


def _then(operation: Honest, change: Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]) -> Honest:
    """What comes out of an operation, changed."""
    return Honest(
        lambda arguments: change(operation(arguments)), lambda arguments: change(operation.forward(arguments))
    )


def _cast(seat: Seat, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """In the types of the reference's outputs, or of the first of them."""
    return tuple(output.to(like.dtype) for output, like in zip(outputs, seat.outputs[: len(outputs)], strict=True))


def _rounded(seat: Seat, dtype: torch.dtype) -> Honest:
    return _then(exactly(seat, dtype), lambda outputs: _cast(seat, outputs))


def _eager(seat: Seat) -> Honest:
    """The reference as it is, in the problem's own types."""
    return _called(seat, seat.instance.model, lambda value: value)


def _jittered(seat: Seat, seed: int) -> Honest:
    """fp32 results with unbiased relative noise of an honest kernel's size."""
    generator = torch.Generator(device=seat.outputs[0].device).manual_seed(seed)

    def noisy(outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        moved = []
        for output, like in zip(outputs, seat.outputs[: len(outputs)], strict=True):
            noise = torch.randn(output.shape, generator=generator, device=output.device)
            moved.append(output * (1 + ROUNDING.get(like.dtype, 0.0) * noise))
        return _cast(seat, tuple(moved))

    return _then(exactly(seat, torch.float32), noisy)


def _permuted(seat: Seat, seed: int) -> Operation:
    """An embedding gradient over its tokens in another order."""
    wide = exactly(seat, torch.float32)
    generator = torch.Generator().manual_seed(seed)

    def operation(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        order = torch.randperm(seat.tokens, generator=generator).to(seat.outputs[0].device)
        return _cast(seat, wide(_tokens_taken(seat, arguments, order, seat.tokens)))

    return operation


def _chunked(seat: Seat, chunks: int) -> Operation:
    """An embedding gradient summed over chunks of its tokens."""
    wide = exactly(seat, torch.float32)

    def operation(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        parts = torch.arange(seat.tokens, device=seat.outputs[0].device).chunk(chunks)
        sums = [wide(_tokens_taken(seat, arguments, part, seat.tokens)) for part in parts]
        return _cast(seat, tuple(torch.stack(terms).sum(0) for terms in zip(*sums, strict=True)))

    return operation


def _tokens_taken(seat: Seat, arguments: tuple[Any, ...], which: torch.Tensor, tokens: int) -> tuple[Any, ...]:
    """The arguments of an embedding gradient for some of its tokens, padded with zero gradients to the seat's size."""
    dy, ids = seat.streams[:2]
    taken = list(arguments)
    for place in (dy, ids):
        value: torch.Tensor = arguments[place]
        rows = value.reshape(tokens, -1)
        kept = torch.zeros_like(rows)
        kept[: len(which)] = rows[which]
        taken[place] = kept.reshape(value.shape)
    return tuple(taken)


def accumulated_in(seat: Seat, arguments: tuple[Any, ...], dtype: torch.dtype) -> torch.Tensor:
    """What the gradient of the table would be with running sums kept in `dtype`, to name the cause of a deviation."""
    dy, ids, table, *gain = [arguments[place] for place in seat.streams]
    rows = table.float()[ids.reshape(-1)].requires_grad_()
    with torch.enable_grad():
        result = rows
        if gain:
            result = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + seat.epsilon) * gain[0].float()
        (each,) = torch.autograd.grad(result, rows, dy.float().reshape(result.shape))
    return _running_sums(each, ids.reshape(-1).long(), table.shape[0], dtype).float()


def _running_sums(terms: torch.Tensor, ids: torch.Tensor, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """(rows, width): per row, terms added one after the other in `dtype`, the k-th terms of all rows at once; torch's
    own index_add_ widens inside, so it cannot show this."""
    order = torch.argsort(ids, stable=True)
    sorted_ids, sorted_terms = ids[order], terms[order].to(dtype)
    places = torch.arange(len(ids), device=ids.device)
    starts = torch.searchsorted(sorted_ids, torch.arange(rows, device=ids.device))
    turn = places - starts[sorted_ids]
    by_turn = torch.argsort(turn, stable=True)
    sums = torch.zeros(rows, terms.shape[1], dtype=dtype, device=ids.device)
    for part in torch.split(by_turn, torch.bincount(turn).tolist()):
        at = sorted_ids[part]
        sums[at] = sums[at] + sorted_terms[part]
    return sums
