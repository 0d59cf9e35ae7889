"""Seats: which problems fit where, and that a seat's gradients are the operation's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.unit.judge.dynamics.problems import LAYER, LOSS, embedding, reference, seat_of
from worker.judge.dynamics.honest import Honest, honest_operations
from worker.judge.dynamics.model import Transformer, Weights, initial_weights, normalised, plain_embedding
from worker.judge.dynamics.seating import fill
from worker.judge.dynamics.seats import NoSeat
from worker.judge.dynamics.text import labels_of, zipf_tokens


def gradients(
    model: Transformer, weights: Weights, batch: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, torch.Tensor]:
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    found = torch.autograd.grad(model(leaves, *batch), list(leaves.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(leaves, found, strict=True) if gradient is not None}


def test_an_embedding_gradient_is_recognised_with_its_epsilon() -> None:
    seat = seat_of(embedding())
    assert (seat.kind, seat.streams, seat.epsilon) == ("embedding_gradient", (0, 1, 2, 3), 1e-5)
    assert seat.tokens == 1024
    assert seat.batch == (8, 128)
    assert (seat.shape.vocabulary, seat.shape.table_width) == (64, 32)


def test_a_table_of_the_cotangents_shape_is_told_apart_by_its_values() -> None:
    seat = seat_of(embedding().replace("tokens=1024", "tokens=64"))
    assert seat.streams == (0, 1, 2, 3)


def test_a_layer_and_a_loss_with_a_backward_are_recognised() -> None:
    layer, loss = seat_of(LAYER), seat_of(LOSS)
    assert (layer.kind, layer.streams, layer.tokens, layer.batch) == ("layer", (0, 1), 130, (2, 65))
    assert (loss.kind, loss.shape.classes, loss.batch) == ("loss", 40, (1, 96))


def test_sums_that_begin_with_the_table_are_no_gradient_however_many_rows_are_added() -> None:
    source = embedding().replace("dtable = torch.zeros(table.shape, dtype=wide)", "dtable = table.to(wide, copy=True)")
    for rows in ("1024", "65536"):
        with pytest.raises(NoSeat, match="no embedding gradient"):
            seat_of(source.replace("tokens=1024", f"tokens={rows}").replace('"vocab": 64', '"vocab": 2'))


@pytest.mark.parametrize(
    ("source", "kind", "says"),
    [
        (LAYER.replace('"backward": True', '"backward": False'), None, "no embedding gradient"),
        (LAYER.replace("130, 48", "10, 48"), None, "at least 64"),
        (embedding().replace("- normed * (inner", "- 0.5 * normed * (inner"), None, "not those of an embedding"),
        (LOSS, "layer", "differ in shape"),
        (LAYER, "loss", "no loss"),
    ],
)
def test_what_fits_no_seat_is_told_why(source: str, kind: str | None, says: str) -> None:
    with pytest.raises(NoSeat, match=says):
        seat_of(source, kind)


def test_a_declared_layer_needs_no_backward_of_its_own() -> None:
    seat = seat_of(LAYER.replace('"backward": True', '"backward": False'), "layer")
    weights = initial_weights(seat.shape, torch.Generator().manual_seed(1))
    tokens = zipf_tokens(*seat.batch, seat.shape.vocabulary, torch.Generator().manual_seed(2))
    found = gradients(fill(seat, reference(seat)), weights, (tokens, labels_of(tokens, seat.shape.classes)))
    assert float(found["seat_in0"].norm()) > 0


def test_with_the_reference_in_it_the_embeddings_seat_has_autograds_own_gradients() -> None:
    seat = seat_of(embedding())
    weights = initial_weights(seat.shape, torch.Generator().manual_seed(1))
    weights["table"] = torch.randn(64, 32, generator=torch.Generator().manual_seed(2))  # epsilon is nothing beside it
    tokens = zipf_tokens(*seat.batch, 64, torch.Generator().manual_seed(3))
    batch = (tokens, labels_of(tokens, seat.shape.classes))
    ours = gradients(fill(seat, reference(seat)), weights, batch)
    theirs = gradients(Transformer(torch.float32, embed=plain_embedding), weights, batch)
    for name in ("table", "table_gain", "enter", "head"):
        assert torch.allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-6), name


def test_with_the_reference_in_it_a_layers_seat_has_autograds_own_gradients() -> None:
    seat = seat_of(LAYER)
    weights = initial_weights(seat.shape, torch.Generator().manual_seed(1))
    tokens = zipf_tokens(*seat.batch, seat.shape.vocabulary, torch.Generator().manual_seed(3))
    batch = (tokens, labels_of(tokens, seat.shape.classes))
    gain = seat.instance.model.weight

    def plain(leaves: Weights, stream: torch.Tensor) -> torch.Tensor:
        h = stream @ leaves["seat_in0"] + stream @ leaves["seat_in1"]
        return (normalised(h) * gain.detach()) @ leaves["seat_out"]

    ours = gradients(fill(seat, reference(seat)), weights, batch)
    theirs = gradients(Transformer(torch.float32, layer=plain), weights, batch)
    assert set(ours) == set(theirs)
    for name, gradient in theirs.items():
        assert torch.allclose(ours[name], gradient, rtol=1e-3, atol=1e-6), name


def test_with_the_reference_in_it_a_losss_seat_has_autograds_own_gradients() -> None:
    seat = seat_of(LOSS)
    weights = initial_weights(seat.shape, torch.Generator().manual_seed(1))
    tokens = zipf_tokens(*seat.batch, seat.shape.vocabulary, torch.Generator().manual_seed(3))
    batch = (tokens, labels_of(tokens, seat.shape.classes))
    ours = gradients(fill(seat, reference(seat)), weights, batch)
    theirs = gradients(Transformer(torch.float32, loss=F.cross_entropy), weights, batch)
    for name, gradient in theirs.items():
        assert torch.allclose(ours[name], gradient, rtol=1e-3, atol=1e-6), name


@pytest.mark.parametrize("source", [LAYER, LOSS])
def test_an_honest_operation_gives_alone_what_its_forward_gives_with_gradients(source: str) -> None:
    seat = seat_of(source)
    arguments = tuple(seat.inputs)
    for operation in honest_operations(seat, 6, seed=5)[::2]:  # without noise
        assert isinstance(operation, Honest)
        alone, whole = operation.forward(arguments), operation(arguments)
        assert len(alone) < len(whole)
        assert all(torch.equal(one, other) for one, other in zip(alone, whole, strict=False))


def test_a_step_asks_an_honest_operation_for_its_gradients_once() -> None:
    seat = seat_of(LAYER)
    asked: list[str] = []
    (honest,) = honest_operations(seat, 1, seed=5)
    assert isinstance(honest, Honest)

    def whole(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        asked.append("whole")
        return honest(arguments)

    def forward(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        asked.append("forward")
        return honest.forward(arguments)

    generator = torch.Generator().manual_seed(1)
    weights = initial_weights(seat.shape, generator)
    tokens = zipf_tokens(*seat.batch, seat.shape.vocabulary, generator)
    batch = (tokens, labels_of(tokens, seat.shape.classes))
    once = gradients(fill(seat, Honest(whole, forward)), weights, batch)
    assert asked == ["forward", "whole"]
    twice = gradients(fill(seat, lambda arguments: honest(arguments)), weights, batch)
    assert all(torch.equal(once[name], twice[name]) for name in twice)
