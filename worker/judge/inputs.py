"""Input families: what the judge draws for each domain.

Uniform positive inputs cannot see precision cheats (fp32 against TF32 at K = 16,384 differs 2.3x on U(0, 1), but 94x on
N(0, 1) and 133x on signed log-normal values, measured), so several families are drawn, and `mixed` puts rows of all of
them into one batch in a secret order: a kernel that recognises one scale meets the others in the same call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from problems.catalog import Domain

FAMILIES = ("normal", "mixed", "heavy", "integers")
_ROW_KINDS = 6


def draw(
    like: tuple[Any, ...],
    names: tuple[str, ...],
    domains: Mapping[str, Domain],
    params: Mapping[str, Any],
    family: str,
    generator: torch.Generator,
) -> tuple[Any, ...]:
    """New values for every tensor of `like`, by its domain; other arguments and `fixed` tensors stay as they are."""
    drawn = []
    for value, name in zip(like, names, strict=True):
        if not isinstance(value, torch.Tensor) or not value.numel():
            drawn.append(value)
            continue
        drawn.append(_draw_tensor(value, domains.get(name), params, family, generator))
    return tuple(drawn)


def _draw_tensor(
    like: torch.Tensor, domain: Domain | None, params: Mapping[str, Any], family: str, generator: torch.Generator
) -> torch.Tensor:
    kind = domain.kind if domain else ("real" if like.is_floating_point() else "index")
    if kind == "fixed" or like.dtype == torch.bool or like.is_complex():
        return like.clone()
    if kind == "index" or not like.is_floating_point():
        limit = domain.limit(params) if domain else None
        return _indices(like, limit, generator)
    values = _real(like, family, generator)
    if kind == "positive":
        values = values.abs() + 1e-3
    elif kind == "unit":
        values = torch.rand(like.shape, generator=generator, device=like.device)
    return _same_layout(values.to(like.dtype), like)


def _indices(like: torch.Tensor, limit: int | None, generator: torch.Generator) -> torch.Tensor:
    low = min(0, int(like.min()))
    high = limit if limit is not None else int(like.max()) + 1
    values = torch.randint(low, max(high, low + 1), like.shape, generator=generator, device=like.device)
    return _same_layout(values.to(like.dtype), like)


def _real(like: torch.Tensor, family: str, generator: torch.Generator) -> torch.Tensor:
    shape, device = like.shape, like.device
    normal = torch.randn(shape, generator=generator, device=device)
    limit = 64.0 if like.dtype == torch.float16 else 1e4  # fp16 overflows at 65,504: leave room for a reduction
    if family == "normal":
        return normal
    if family == "heavy":
        return (normal.sign() * torch.exp(1.5 * torch.randn(shape, generator=generator, device=device))).clamp(
            -limit, limit
        )
    if family == "integers":
        return torch.randint(-2, 3, shape, generator=generator, device=device).to(torch.float32)
    return _mixed_rows(normal, limit, generator)


def _mixed_rows(normal: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """Rows (last dimension) of one batch from different families, in random order."""
    device = normal.device
    rows = normal.shape[:-1] if normal.dim() > 1 else (1,)
    kind = torch.randint(0, _ROW_KINDS, (*rows, 1), generator=generator, device=device)
    spikes = torch.rand(normal.shape, generator=generator, device=device) < 1e-3
    heavy = normal.sign() * torch.exp(1.5 * normal.abs())
    mixed = torch.where(kind == 1, heavy, normal)
    mixed = torch.where(kind == 2, normal + 10.0, mixed)
    mixed = torch.where(kind == 3, normal * 1e-2, mixed)
    mixed = torch.where(kind == 4, normal * 8.0, mixed)
    mixed = torch.where((kind == 5) & spikes, normal * 100.0, mixed)
    return mixed.reshape(normal.shape).clamp(-limit, limit)


def _same_layout(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`values` with the strides of `like`, so that a non-contiguous argument stays one."""
    if values.stride() == like.stride():
        return values
    placed = torch.empty_strided(like.shape, like.stride(), dtype=values.dtype, device=values.device)
    return placed.copy_(values)
