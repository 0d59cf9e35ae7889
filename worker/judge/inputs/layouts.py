"""The same values elsewhere in memory: ways for a tensor's elements to lie apart."""

from __future__ import annotations

import torch

_GAP = 3
"""Elements between the rows of a padded layout."""


def _turned(value: torch.Tensor) -> torch.Tensor:
    """A tensor with its last two dimensions swapped in memory; a vector as it is."""
    if value.dim() < 2 or 1 in value.shape[-2:]:
        return value
    return value.transpose(-2, -1).contiguous().transpose(-2, -1)


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    """Images, and their gradients, with the second dimension side by side in memory, as torch.channels_last has it."""
    if value.dim() < 4 or value.shape[1] == 1:
        return value
    return value.movedim(1, -1).contiguous().movedim(-1, 1)


def _padded(value: torch.Tensor) -> torch.Tensor:
    """A matrix as the left part of a wider one: its elements are neighbours, its rows are not."""
    if value.dim() < 2 or not value.numel():
        return value
    wide = value.new_zeros(*value.shape[:-1], value.shape[-1] + _GAP)
    return wide[..., : value.shape[-1]].copy_(value)


def _spread(value: torch.Tensor) -> torch.Tensor:
    """Every other element of a wider matrix: neither its rows nor its elements are neighbours."""
    if value.dim() < 2 or not value.numel():
        return value
    return value.new_zeros(*value.shape[:-1], 2 * value.shape[-1])[..., ::2].copy_(value)


LAYOUTS = {
    "transposed strides": _turned,
    "channels last": _channels_last,
    "padded rows": _padded,
    "every other element": _spread,
}
"""A group norm that took images of channels_last for images of rows was certified, as were its gradients."""
