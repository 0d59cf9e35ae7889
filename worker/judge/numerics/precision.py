"""Number types: their rounding, what is narrower than they are, and what they can hold."""

from __future__ import annotations

import torch

from problems.catalog import Precision
from worker.judge.numerics.slices import parts_of

FP32_ULP = 2.0**-24
_UNIT = {
    torch.float64: 2.0**-53,
    torch.float32: FP32_ULP,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}
EIGHT_BITS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
"""Types for which torch has few operations: they are compared as float32, which holds them exactly."""
SIXTEEN_BITS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""Values of a SPEC's `compute` that are narrower than float32 storage."""


def working_type(dtype: torch.dtype, precision: Precision) -> torch.dtype:
    """What arithmetic on values stored as `dtype` may round to: a policy of 16-bit arithmetic loosens float32's, and
    nothing else's."""
    compute = SIXTEEN_BITS.get(precision.compute)
    return compute if compute is not None and dtype == torch.float32 else dtype


def unit(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number: the largest relative rounding error."""
    return _UNIT.get(dtype, FP32_ULP)


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """An 8-bit float tensor as float32; any other as it is."""
    return tensor.to(torch.float32) if tensor.dtype in EIGHT_BITS else tensor


def degrade(tensor: torch.Tensor, dtype: torch.dtype, *, tf32_allowed: bool) -> torch.Tensor:
    """`tensor` rounded one precision below `dtype`: fp32 to TF32's 10 bits (or bf16's 7 where TF32 is allowed), 16-bit
    types to 3 bits, 8-bit types to 1. Integers pass unchanged. The result keeps the tensor's dtype."""
    if not tensor.is_floating_point():
        return tensor
    if dtype == torch.float64:
        return tensor.to(torch.float32).to(tensor.dtype)
    kept = (7 if tf32_allowed else 10) if dtype == torch.float32 else 1 if dtype in EIGHT_BITS else 3
    dropped = 52 - kept
    bits = tensor.to(torch.float64).view(torch.int64)
    rounded = (bits + (1 << (dropped - 1))) >> dropped << dropped  # a carry into the exponent is right
    return torch.where(torch.isfinite(widened(tensor)), rounded.view(torch.float64).to(tensor.dtype), tensor)


def representable(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The truth without what `dtype` cannot hold: 70,000 is 65,504 in fp16, or infinite (`_compare_special` knows).
    Infinities stay, and so do 8-bit types, whose overflow the reference decides on. In place of 70,000 itself eager's
    infinity would be an infinite error, and then every error would be as small as an honest one."""
    if dtype in EIGHT_BITS or dtype == torch.float64:
        return truth
    most = torch.finfo(dtype).max
    if not truth.numel() or all(abs(float(end)) <= most for end in torch.aminmax(truth)):  # NaN is not
        return truth
    held = torch.empty_like(truth, memory_format=torch.contiguous_format)
    for part, exact in parts_of(held, truth):
        part.copy_(torch.where(torch.isinf(exact), exact, exact.clamp(-most, most)))
    return held
