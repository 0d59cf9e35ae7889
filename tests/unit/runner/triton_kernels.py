"""Kernels and checks that run in Triton's interpreter, in a process of their own: prints one JSON object.

Not a test module: test_triton_interpret.py starts it. The interpreter changes a process for good.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton  # as in a forked zygote: Triton is here before the interpreter is asked for

from worker.runner import triton_interpret

if "--stock" not in sys.argv:
    triton_interpret.use_interpreter()
    import triton
import triton.language as tl


@triton.jit
def dot_kernel(a, b, c, K: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, tl.cdiv(K, BLOCK)):
        inner = start * BLOCK
        left = tl.load(a + row * K + inner + column)
        right = tl.load(b + (inner + row) * BLOCK + column)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(c + row * BLOCK + column, total.to(c.dtype.element_ty))


@triton.jit
def elementwise_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    left, right = tl.load(x + at, mask=mask), tl.load(y + at, mask=mask, other=0.0)
    value = tl.where(left > right, left * right, tl.abs(left) - right)
    tl.store(out + at, value, mask=mask)


@triton.jit
def reduce_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=-float("inf"))
    tl.store(out + tl.program_id(0) * 2, tl.max(row, axis=0))
    tl.store(out + tl.program_id(0) * 2 + 1, tl.sum(tl.where(at < n, row, 0.0), axis=0))


@triton.jit
def cast_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit
def bits_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at).to(tl.int16, bitcast=True))


@triton.jit
def atomic_kernel(out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(out + at % 2, tl.full((BLOCK,), 1.0, dtype=out.dtype.element_ty))


@triton.jit
def atomic_pairs_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(out + at // 2, tl.load(x + at), mask=at < BLOCK - 2)


@triton.jit
def unmasked_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at), mask=at < n)


@triton.jit
def unmasked_store_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n))


@triton.jit
def through_addresses_kernel(addresses, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(addresses).to(tl.pointer_type(tl.float32))
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def nan_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i)
    tl.store(out + i, tl.minimum(values, 2.0))
    tl.store(out + BLOCK + i, tl.maximum(values, 2.0))
    tl.store(out + 2 * BLOCK + i, tl.clamp(values, 1.0, 2.0))
    tl.store(out + 3 * BLOCK + i, tl.maximum(values, 2.0, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 4 * BLOCK + i, tl.clamp(values, 1.0, 2.0, propagate_nan=tl.PropagateNan.ALL))


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64}, num_warps=8)], key=["n"])
@triton.jit
def tuned_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def error_of(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).abs().max())


def dot(dtype: torch.dtype, precision: str) -> float:
    a, b = torch.randn(16, 48).to(dtype), torch.randn(48, 16).to(dtype)
    c = torch.empty(16, 16)
    dot_kernel[(1,)](a, b, c, K=48, BLOCK=16, PRECISION=precision)
    return error_of(c, a.double() @ b.double())


def elementwise() -> float:
    x, y = torch.randn(100).bfloat16(), torch.randn(100).bfloat16()
    out = torch.empty_like(x)
    elementwise_kernel[(4,)](x, y, out, 100, BLOCK=32)
    return error_of(out, torch.where(x > y, x * y, x.abs() - y))


def reduction() -> float:
    x = torch.randn(3, 50).bfloat16()
    out = torch.empty(3, 2, dtype=torch.float32)
    reduce_kernel[(3,)](x, out, 50, BLOCK=64)
    expected = torch.stack([x.float().amax(1), x.float().sum(1).bfloat16().float()], 1)
    return error_of(out, expected)


def cast(source: torch.dtype, target: torch.dtype) -> float:
    x = (torch.randn(64) * torch.logspace(-4, 2, 64)).to(source)  # down to the subnormals of 8 bits
    x[:2] = torch.tensor([float("inf"), 0.0]).to(source) if source.is_floating_point else torch.tensor([7, 0])
    out = torch.empty(64, dtype=target)
    cast_kernel[(1,)](x, out, BLOCK=64)
    same = out.eq(x.to(target))
    return float((~same).sum())


def bits() -> float:
    x = torch.randn(64).bfloat16()
    out = torch.empty(64, dtype=torch.int16)
    bits_kernel[(1,)](x, out, BLOCK=64)
    return error_of(out, x.view(torch.int16))


def atomic() -> float:
    out = torch.zeros(2, dtype=torch.bfloat16)
    atomic_kernel[(3,)](out, BLOCK=16)
    return error_of(out, torch.full((2,), 24.0))


def atomic_pairs() -> list[float]:
    """Sums of pairs: of normal numbers, of subnormal ones, of normal ones whose sum is none, and one left out."""
    least = torch.finfo(torch.float32).tiny
    x = torch.tensor([least, -3 * least, 0.75 * least, 0.75 * least, 1.5 * least, -least, 1.0, 1.0])
    out = torch.zeros(4)
    out[3] = 0.5 * least
    atomic_pairs_kernel[(1,)](x, out, BLOCK=8)
    return [float(each) / least for each in out]


def beyond(kernel: Any) -> str:
    # Odd sizes inside a larger pool would hide the error: each tensor owns its storage.
    x, out = torch.zeros(70), torch.zeros(70)
    try:
        kernel[(2,)](x, out, 70, BLOCK=64)
    except triton_interpret.IllegalAccess as illegal:
        return str(illegal)
    return "nothing was raised"


def masked_in_bounds() -> float:
    x, out = torch.randn(70), torch.zeros(70)
    elementwise_kernel[(3,)](x, x, out, 70, BLOCK=32)
    return error_of(out, x.abs() - x)


def through_addresses() -> float:
    x, out = torch.randn(30), torch.zeros(30)
    through_addresses_kernel[(1,)](torch.tensor([x.data_ptr()]), out, 30, BLOCK=32)
    return error_of(out, x)


def kept_nans() -> list[int]:
    """NaN in each of the kernel's five results."""
    out = torch.zeros(5, 16)
    nan_kernel[(1,)](torch.tensor([torch.nan] * 4 + [1.5] * 12), out, BLOCK=16)
    return [int(row.isnan().sum()) for row in out]


def tuned() -> float:
    x, out = torch.randn(70), torch.zeros(70)
    tuned_kernel[lambda meta: (triton.cdiv(70, meta["BLOCK"]),)](x, out, 70)
    return error_of(out, x * 2)


CHECKS: dict[str, Callable[[], Any]] = {
    "dot_bf16": lambda: dot(torch.bfloat16, "ieee"),
    "dot_fp32": lambda: dot(torch.float32, "ieee"),
    "dot_tf32": lambda: dot(torch.float32, "tf32"),
    "elementwise_bf16": elementwise,
    "reduction_bf16": reduction,
    "cast_fp32_bf16": lambda: cast(torch.float32, torch.bfloat16),
    "cast_bf16_fp16": lambda: cast(torch.bfloat16, torch.float16),
    "cast_bf16_fp32": lambda: cast(torch.bfloat16, torch.float32),
    "cast_int32_bf16": lambda: cast(torch.int32, torch.bfloat16),
    "cast_fp32_fp8": lambda: cast(torch.float32, torch.float8_e4m3fn),
    "cast_fp16_fp8": lambda: cast(torch.float16, torch.float8_e4m3fn),
    "cast_bf16_fp8": lambda: cast(torch.bfloat16, torch.float8_e4m3fn),
    "cast_fp8_fp32": lambda: cast(torch.float8_e4m3fn, torch.float32),
    "cast_fp8_fp16": lambda: cast(torch.float8_e5m2, torch.float16),
    "cast_fp8_bf16": lambda: cast(torch.float8_e4m3fn, torch.bfloat16),
    "bits_bf16": bits,
    "atomic_bf16": atomic,
    "atomic_pairs": atomic_pairs,
    "unmasked_load": lambda: beyond(unmasked_kernel),
    "unmasked_store": lambda: beyond(unmasked_store_kernel),
    "masked_in_bounds": masked_in_bounds,
    "through_addresses": through_addresses,
    "tuned": tuned,
    "kept_nans": kept_nans,
}


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    for name, check in CHECKS.items():
        try:
            results[name] = check()
        except Exception as error:  # noqa: BLE001 - the parent's assertions show it
            results[name] = f"{type(error).__name__}: {error}"[-500:]
    sys.stdout.write(json.dumps({"results": results, "notes": triton_interpret.notes()}) + "\n")


if __name__ == "__main__":
    main()
