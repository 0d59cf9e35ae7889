"""Seats: how a problem's operation becomes part of a transformer that trains.

A *call* of the problem (`Operation`) takes all its inputs and returns all its outputs; a seat builds those inputs from
what the model has at hand and hands the outputs on to autograd. The shapes are those of one of the problem's workloads,
because a kernel may be specialised. Three kinds:

    embedding_gradient   forward(dy, ids, table[, weight]) -> dtable[, dweight]: the backward of the input embedding,
                         with or without an RMSNorm behind it
    layer                a problem with a backward whose first float input and first output are of one shape: a residual
                         branch of the model
    loss                 a problem with a backward, (logits, target) -> scalar: the model's loss
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from worker.judge.dynamics.model import Shape
from worker.judge.numerics.twin import unmoved
from worker.judge.reference.problem import Instance, call_reference

Operation = Callable[[tuple[Any, ...]], tuple[torch.Tensor, ...]]

_LENGTHS = (128, 16)
"""Longest and shortest sequences that a batch is cut into."""
_MIN_TOKENS, _MAX_CLASSES = 64, 64
_WIDTHS = {"cpu": 32, "cuda": 256}
_VOCABULARY = 1000
_EPSILONS = (1e-6, 1e-5, 1e-8, 0.0)


class NoSeat(Exception):
    """The problem has no place in a transformer. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A place in the model for one problem at one workload's sizes."""

    kind: str
    instance: Instance
    inputs: tuple[Any, ...]
    """A full argument list; what the model does not provide stays as it is here."""
    outputs: tuple[torch.Tensor, ...]
    """The reference's outputs for `inputs`: shapes and dtypes."""
    streams: tuple[int, ...]
    """Positions of the inputs that the model provides: dy, ids, table(, weight); x(, residual, ...); logits, target."""
    epsilon: float = 0.0
    """embedding_gradient: what RMSNorm adds to the mean square."""

    @property
    def tokens(self) -> int:
        """Tokens per batch that one call can take."""
        if self.kind == "embedding_gradient":
            return int(self.inputs[self.streams[1]].numel())
        first: torch.Tensor = self.inputs[self.streams[0]]
        return first.numel() // first.shape[-1]

    @property
    def batch(self) -> tuple[int, int]:
        """(sequences, length) of a batch: all tokens where they divide well; what is left over is padded."""
        longest, shortest = min(_LENGTHS[0], self.tokens), min(_LENGTHS[1], self.tokens)
        length = next((size for size in range(longest, shortest - 1, -1) if self.tokens % size == 0), min(64, longest))
        return self.tokens // length, length

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        found: torch.dtype = self.inputs[self.streams[0]].dtype
        if self.outputs[0].device.type == "cpu":
            return torch.float32  # the blocks are only company there, and 16-bit products take a CPU five times as long
        return found if found in (torch.bfloat16, torch.float16) else torch.float32

    @property
    def shape(self) -> Shape:
        """The model that this seat fits into."""
        width = _WIDTHS[self.outputs[0].device.type]
        if self.kind == "embedding_gradient":
            vocabulary, table_width = self.inputs[self.streams[2]].shape
            return Shape(width, vocabulary, table_width, classes=min(vocabulary, _MAX_CLASSES))
        features = self.inputs[self.streams[0]].shape[-1]
        if self.kind == "loss":
            return Shape(width, _VOCABULARY, width, classes=features)
        return Shape(
            width, _VOCABULARY, width, classes=_MAX_CLASSES, seat_width=features, seat_inputs=len(self.streams)
        )

    def with_streams(self, values: list[torch.Tensor]) -> list[Any]:
        """The argument list with what the model provides put in: cast, and padded with zeros to the seat's size."""
        arguments = list(self.inputs)
        for place, value in zip(self.streams, values, strict=True):
            like: torch.Tensor = self.inputs[place]
            flat = value.detach().to(like.dtype).reshape(-1)
            arguments[place] = F.pad(flat, (0, like.numel() - flat.numel())).reshape(like.shape)
        return arguments

    def cotangents(self, arguments: list[Any], first: torch.Tensor | None) -> tuple[Any, ...]:
        """The argument list with the first output's cotangent put in (padded), the others zero."""
        at = self.instance.forward_inputs
        for place in range(at, len(arguments)):
            arguments[place] = torch.zeros_like(arguments[place])
        if first is not None and at < len(arguments):
            like: torch.Tensor = self.inputs[at]
            flat = first.detach().to(like.dtype).reshape(-1)
            arguments[at] = F.pad(flat, (0, like.numel() - flat.numel())).reshape(like.shape)
        return tuple(arguments)

    def gradient_of(self, place: int, outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The gradient of forward's input `place` among a call's outputs: they follow forward's own outputs, one per
        float input."""
        own = self.inputs[: self.instance.forward_inputs]
        floats = [index for index, value in enumerate(own) if is_float(value)]
        results = len(outputs) - len(floats) - len(self.instance.parameters)
        return outputs[results + floats.index(place)]


def find_seat(kind: str | None, instance: Instance, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> Seat:
    """The seat of the declared kind, or of the kind that the problem's shape shows. Raises NoSeat."""
    kinds = [kind] if kind else ["loss", "layer"] if instance.backward else ["embedding_gradient"]
    reasons = []
    for tried in kinds:
        try:
            seat = _FINDERS[tried](instance, inputs, outputs)
        except NoSeat as missing:
            reasons.append(str(missing))
            continue
        if seat.tokens < _MIN_TOKENS:
            raise NoSeat(f"a call takes {seat.tokens} tokens; training needs at least {_MIN_TOKENS}")
        return seat
    raise NoSeat("; ".join(reasons))


def _find_embedding(instance: Instance, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> Seat:
    """Roles by shape; where dy and the table are of one shape, both ways are tried against the reference's values."""
    floats = [place for place, value in enumerate(inputs) if is_float(value)]
    ids = [place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor) and place not in floats]
    if len(ids) != 1 or instance.backward or outputs[0].dim() != 2 or not is_float(outputs[0]):
        raise NoSeat("it is no embedding gradient: forward takes no (dy, ids, table) with the gradient of the table")
    width = outputs[0].shape[1]
    gain = [place for place in floats if inputs[place].shape == (width,)]
    rows = inputs[ids[0]].numel() * width
    for table in (place for place in floats if inputs[place].shape == outputs[0].shape):
        cotangents = [place for place in floats if inputs[place].numel() == rows and place != table]
        if len(cotangents) == 1 and len(gain) <= 1 and len(outputs) == 1 + len(gain):
            seat = _with_epsilon(
                Seat("embedding_gradient", instance, inputs, outputs, (cotangents[0], ids[0], table, *gain))
            )
            if seat is not None and _vanishes_with(cotangents[0], instance, inputs):
                return seat
    raise NoSeat("it is no embedding gradient: its outputs are not those of an embedding, plain or with RMSNorm")


def _vanishes_with(cotangent: int, instance: Instance, inputs: tuple[Any, ...]) -> bool:
    """Whether all outputs are zero where the cotangent is, as a gradient's are. Two million rows added into a thousand
    hide what they are added to from a comparison of sizes; in the seat it would be trained with as if it were one."""
    given = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    given[cotangent].zero_()
    with unmoved(instance.model):
        return not any(bool(output.any()) for output in call_reference(instance.call, tuple(given)))


def _with_epsilon(seat: Seat) -> Seat | None:
    """The seat whose forward is the one that the reference is the gradient of, if one is."""
    arguments = [value.double() if is_float(value) else value for value in seat.inputs]
    own = getattr(seat.instance.model, "eps", None)
    for epsilon in (own, *_EPSILONS) if isinstance(own, float) else _EPSILONS:
        found = Seat(seat.kind, seat.instance, seat.inputs, seat.outputs, seat.streams, epsilon)
        dy, ids, table, *gain = [arguments[place] for place in seat.streams]
        leaves = [leaf.clone().requires_grad_() for leaf in (table, *gain)]
        with torch.enable_grad():
            result = embedding_forward(found, leaves[0], leaves[1] if gain else None, ids)
        gradients = torch.autograd.grad(result, leaves, dy.reshape(result.shape))
        worst = max(
            float((ours - theirs).norm() / ours.norm().clamp_min(1e-30))
            for ours, theirs in zip(gradients, seat.outputs, strict=True)
        )
        if worst < 0.05:  # the reference may round on its way; a wrong forward is off by 0.3 and more
            return found
    return None


def embedding_forward(seat: Seat, table: torch.Tensor, gain: torch.Tensor | None, ids: torch.Tensor) -> torch.Tensor:
    """Rows of the table, with RMSNorm and its gain where the problem has them: ids.shape + (width,)."""
    rows = F.embedding(ids, table)
    if gain is None:
        return rows
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + seat.epsilon) * gain


def _find_layer(instance: Instance, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> Seat:
    own = inputs[: instance.forward_inputs]
    floats = [place for place, value in enumerate(own) if is_float(value)]
    if not floats or not is_float(outputs[0]) or inputs[floats[0]].shape != outputs[0].shape:
        raise NoSeat("it is no layer: forward's first float input and first output differ in shape")
    first = inputs[floats[0]]
    if first.dim() < 2:
        raise NoSeat("it is no layer: its first input is not made of rows")
    same = tuple(place for place in floats if inputs[place].shape == first.shape)
    return Seat("layer", instance, inputs, outputs, same)


def _find_loss(instance: Instance, inputs: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> Seat:
    own = inputs[: instance.forward_inputs]
    if len(own) != 2 or not instance.backward or outputs[0].numel() != 1:
        raise NoSeat("it is no loss: a loss takes (logits, target), returns one number, and has a backward")
    logits, target = own
    rows = is_float(logits) and logits.dim() == 2 and isinstance(target, torch.Tensor)
    if not rows or target.is_floating_point() or target.numel() != logits.shape[0]:
        raise NoSeat("it is no loss: it does not take (rows, classes) logits and one class per row")
    return Seat("loss", instance, inputs, outputs, (0, 1))


_FINDERS = {"embedding_gradient": _find_embedding, "layer": _find_layer, "loss": _find_loss}


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
