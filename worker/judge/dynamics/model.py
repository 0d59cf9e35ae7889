"""A micro transformer with one place left open: the seat, where the kernel under judgement does its work.

Pre-norm, causal, two blocks (Vaswani et al., 2017), so narrow on a CPU that a run of some dozen steps costs a second.
Weights are fp32 masters; where a GPU problem computes in a 16-bit type the blocks run on rounded copies and gradients
come back through the rounding, as in mixed-precision training (Micikevicius et al., 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

_BLOCKS, _HEAD_WIDTH = 2, 32
_TABLE_SPREAD = 0.02

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model; widths and vocabulary at the seat are the problem's."""

    width: int
    vocabulary: int
    table_width: int
    """Width of the embedding's rows, which are projected to `width`."""
    classes: int
    seat_width: int | None = None
    """For a layer in the seat: features of what goes in and comes out."""
    seat_inputs: int = 1
    """For a layer in the seat: how many tensors of that width it takes."""


def initial_weights(shape: Shape, generator: torch.Generator) -> Weights:
    """fp32 masters on the generator's device, variance-preserving."""
    device = generator.device

    def normal(*size: int, scale: float) -> torch.Tensor:
        return torch.randn(*size, generator=generator, device=device) * scale

    width = shape.width
    weights = {
        "table": normal(shape.vocabulary, shape.table_width, scale=_TABLE_SPREAD),
        "table_gain": torch.ones(shape.table_width, device=device),
        "enter": normal(shape.table_width, width, scale=shape.table_width**-0.5),
        "head": normal(width, shape.classes, scale=width**-0.5),
    }
    for block in range(_BLOCKS):
        weights |= {
            f"qkv{block}": normal(width, 3 * width, scale=width**-0.5),
            f"mix{block}": normal(width, width, scale=0.5 * width**-0.5),
            f"up{block}": normal(width, 4 * width, scale=width**-0.5),
            f"down{block}": normal(4 * width, width, scale=0.25 * width**-0.5),
        }
    if shape.seat_width:
        for place in range(shape.seat_inputs):
            weights[f"seat_in{place}"] = normal(width, shape.seat_width, scale=width**-0.5)
        weights["seat_out"] = normal(shape.seat_width, width, scale=shape.seat_width**-0.5)
    return weights


Embed = Callable[[Weights, torch.Tensor], torch.Tensor]
"""(masters, tokens (B, T)) -> (B, T, table_width)."""
Layer = Callable[[Weights, torch.Tensor], torch.Tensor]
"""(weights, stream (B, T, width)) -> the same shape, added to the stream after the first block."""
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(logits (B * T, classes), labels (B * T)) -> scalar mean loss."""


def plain_embedding(masters: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Rows of the table, normalised to a root mean square of 1 and scaled: what most seats leave as it is."""
    return normalised(F.embedding(tokens, masters["table"])) * masters["table_gain"]


def plain_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in fp32."""
    return F.cross_entropy(logits.float(), labels)


@dataclass(frozen=True, slots=True)
class Transformer:
    """The model with its seat filled."""

    dtype: torch.dtype
    embed: Embed = plain_embedding
    layer: Layer | None = None
    loss: Loss = plain_loss

    def __call__(self, masters: Weights, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of a batch: tokens and labels are (B, T)."""
        weights = {name: master.to(self.dtype) for name, master in masters.items() if not name.startswith("table")}
        stream = self.embed(masters, tokens).to(self.dtype) @ weights["enter"]
        for block in range(_BLOCKS):
            stream = stream + _attention(weights, block, normalised(stream))
            hidden = F.gelu(normalised(stream) @ weights[f"up{block}"])
            stream = stream + hidden @ weights[f"down{block}"]
            if block == 0 and self.layer is not None:
                stream = stream + self.layer(weights, normalised(stream))
        logits = normalised(stream) @ weights["head"]
        return self.loss(logits.flatten(0, 1), labels.flatten())


def normalised(x: torch.Tensor) -> torch.Tensor:
    """RMSNorm without a gain, in fp32 inside."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _attention(weights: Weights, block: int, x: torch.Tensor) -> torch.Tensor:
    batch, length, width = x.shape
    query, key, value = (
        part.view(batch, length, -1, _HEAD_WIDTH).transpose(1, 2)
        for part in torch.split(x @ weights[f"qkv{block}"], width, dim=-1)
    )
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, length, width) @ weights[f"mix{block}"]
