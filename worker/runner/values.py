"""Plain values and tensor references as JSON: what a constructor or a forward call may take.

Tensors never travel in messages. A `TensorRef` names bytes in an arena: shared memory on a CPU, exported device memory
on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


class UnsupportedValue(Exception):
    """A value that cannot be handed to the runner. Use numbers, strings, lists, dictionaries, dtypes and tensors."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A strided tensor at `offset` bytes of an arena."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes from `offset` to the end of the last element; 0 for an empty tensor."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * dtype_of(self.dtype).itemsize

    def view(self, arena_bytes: torch.Tensor) -> torch.Tensor:
        """This tensor over `arena_bytes`, a one-dimensional uint8 tensor, without copying."""
        dtype = dtype_of(self.dtype)
        if not self.nbytes:
            return torch.empty(self.shape, dtype=dtype, device=arena_bytes.device)
        flat = arena_bytes[self.offset : self.offset + self.nbytes].view(dtype)
        return flat.as_strided(self.shape, self.strides)


def dtype_of(name: str) -> torch.dtype:
    """torch.dtype by its name without `torch.`. Raises UnsupportedValue."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UnsupportedValue(f"no such dtype: {name[:40]!r}")
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def encode(value: Any, place: Callable[[torch.Tensor], TensorRef]) -> Any:
    """`value` as JSON; tensors go through `place`. Raises UnsupportedValue."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$": "float", "value": repr(value)}
    if isinstance(value, torch.Tensor):
        return encode_ref(place(value))
    if isinstance(value, torch.dtype):
        return {"$": "dtype", "value": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"$": "device", "value": str(value)}
    if isinstance(value, list):
        return [encode(item, place) for item in value]
    if isinstance(value, tuple):
        return {"$": "tuple", "value": [encode(item, place) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"$": "dict", "value": {key: encode(item, place) for key, item in value.items()}}
    raise UnsupportedValue(f"an argument of type {type(value).__name__}")


def encode_ref(ref: TensorRef) -> dict[str, Any]:
    """A TensorRef as JSON."""
    return {"$": "tensor", "offset": ref.offset, "dtype": ref.dtype, "shape": ref.shape, "strides": ref.strides}


def decode(data: Any, arena_bytes: torch.Tensor | None) -> Any:
    """The value that `encode` took, tensors as views of the arena."""
    if isinstance(data, list):
        return [decode(item, arena_bytes) for item in data]
    if not isinstance(data, dict):
        return data
    kind = data["$"]
    if kind == "tensor":
        assert arena_bytes is not None
        return decode_ref(data).view(arena_bytes)
    if kind == "tuple":
        return tuple(decode(item, arena_bytes) for item in data["value"])
    if kind == "dict":
        return {key: decode(item, arena_bytes) for key, item in data["value"].items()}
    if kind == "dtype":
        return dtype_of(data["value"])
    return torch.device(data["value"]) if kind == "device" else float(data["value"])


def decode_ref(data: dict[str, Any]) -> TensorRef:
    """A TensorRef from JSON."""
    return TensorRef(data["offset"], data["dtype"], tuple(data["shape"]), tuple(data["strides"]))


def tensors_of(arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors of an argument list, nested ones too, in the order in which `encode` places them."""
    found: list[torch.Tensor] = []
    for value in arguments:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_of(tuple(value))
        elif isinstance(value, dict):
            found += tensors_of(tuple(value.values()))
    return found
