"""Operations in their seats: autograd functions that call the problem's operation where a model would run its own."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from worker.judge.dynamics.model import Transformer, Weights
from worker.judge.dynamics.seats import Operation, Seat, embedding_forward, is_float


def fill(seat: Seat, operation: Operation) -> Transformer:
    """The model that the seat belongs to, with `operation` in it."""
    if seat.kind == "embedding_gradient":
        return Transformer(seat.dtype, embed=lambda masters, tokens: _embed(seat, operation, masters, tokens))
    if seat.kind == "loss":
        return Transformer(seat.dtype, loss=lambda logits, labels: _loss(seat, operation, logits, labels))
    return Transformer(seat.dtype, layer=lambda weights, stream: _layer(seat, operation, weights, stream))


class _EmbeddingGradient(torch.autograd.Function):
    """The embedding's forward is the judge's; its backward is one call of the operation."""

    @staticmethod
    def forward(
        ctx: Any, table: torch.Tensor, gain: torch.Tensor, tokens: torch.Tensor, seat: Seat, operation: Operation
    ) -> torch.Tensor:
        ctx.seat, ctx.operation = seat, operation
        ctx.save_for_backward(table, gain, tokens)
        scale = gain if len(seat.streams) > 3 else None
        return embedding_forward(seat, table.to(seat.dtype).float(), scale, tokens)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        table, gain, tokens = ctx.saved_tensors
        provided = [dy, tokens, table, gain][: len(ctx.seat.streams)]
        outputs = ctx.operation(tuple(ctx.seat.with_streams(provided)))
        dgain = outputs[1].float() if len(outputs) > 1 else None
        return outputs[0].float(), dgain, None, None, None


def _embed(seat: Seat, operation: Operation, masters: Weights, tokens: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = _EmbeddingGradient.apply(  # type: ignore[no-untyped-call]
        masters["table"], masters["table_gain"], tokens, seat, operation
    )
    return found


class _Call(torch.autograd.Function):
    """Forward is a call with zero cotangents, backward a call with the true one. Takes the streams, returns the first
    output."""

    @staticmethod
    def forward(ctx: Any, seat: Seat, operation: Operation, *streams: torch.Tensor) -> torch.Tensor:
        ctx.seat, ctx.operation = seat, operation
        ctx.save_for_backward(*streams)
        forward = getattr(operation, "forward", operation)  # of a candidate a call is what it is
        return forward(seat.cotangents(seat.with_streams(list(streams)), None))[0].float()

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        seat, streams = ctx.seat, ctx.saved_tensors
        arguments = seat.cotangents(seat.with_streams(list(streams)), dy)
        outputs = ctx.operation(arguments) if seat.instance.backward else _gradients_by_reference(seat, arguments, dy)
        found: list[torch.Tensor | None] = []
        for place, stream in zip(seat.streams, streams, strict=True):
            if not stream.is_floating_point():
                found.append(None)
                continue
            gradient = seat.gradient_of(place, outputs).reshape(-1)[: stream.numel()]
            found.append(gradient.reshape(stream.shape).to(stream.dtype))
        return (None, None, *found)


def _gradients_by_reference(seat: Seat, arguments: tuple[Any, ...], dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A call's outputs and gradients for a problem that has only a forward: the reference's own."""
    leaves = [value.detach().clone().requires_grad_() if is_float(value) else value for value in arguments]
    floats = [leaf for leaf in leaves if is_float(leaf)]
    with torch.enable_grad():
        result = seat.instance.model(*leaves)
    first = result[0] if isinstance(result, tuple | list) else result
    flat = F.pad(dy.to(first.dtype).reshape(-1), (0, first.numel() - dy.numel()))
    gradients = torch.autograd.grad(first, floats, flat.reshape(first.shape), allow_unused=True)
    return tuple(
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(floats, gradients, strict=True)
    )


def _layer(seat: Seat, operation: Operation, weights: Weights, stream: torch.Tensor) -> torch.Tensor:
    inputs = [stream @ weights[f"seat_in{place}"] for place in range(len(seat.streams))]
    result: torch.Tensor = _Call.apply(seat, operation, *inputs)  # type: ignore[no-untyped-call]
    rows = stream.shape[0] * stream.shape[1]
    wide = result.reshape(-1, result.shape[-1])[:rows].reshape(*stream.shape[:2], -1)
    return wide.to(stream.dtype) @ weights["seat_out"]


def _loss(seat: Seat, operation: Operation, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _Call.apply(seat, operation, logits, labels)  # type: ignore[no-untyped-call]
    return result.reshape(())
