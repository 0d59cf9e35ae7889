"""Settings of the whole process that a model has no business to change: precision, default types, random state.

What is told here comes from the candidate's own process; it finds bad manners, not lies. A baseline is timed in another
process, so none of it can slow one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch


def snapshot(_session: Any, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """The settings as plain values, by name; `random state` is a hash.

    With `advance`, numbers are drawn first: a model that seeds the generator with a constant then shows.
    """
    if message["advance"]:
        torch.rand(1)
        if _on_device():
            torch.rand(1, device="cuda")
    random_state = torch.get_rng_state().numpy().tobytes()
    if _on_device():
        random_state += torch.cuda.get_rng_state().numpy().tobytes()
    return {
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "TF32 in cuDNN": torch.backends.cudnn.allow_tf32,
        "fp16 reduced-precision reduction": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "bf16 reduced-precision reduction": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "flush denormal": bool((torch.tensor([2.0**-140]) * 0.5 == 0).item()),
        "gradients": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
        "random state": hashlib.sha256(random_state).hexdigest()[:16],
    }


def _on_device() -> bool:
    """Whether this process has a CUDA context: asking must not make one."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


HANDLERS: dict[str, Callable[[Any, dict[str, Any], list[int]], dict[str, Any]]] = {"settings": snapshot}
