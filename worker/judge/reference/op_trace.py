"""Which operations a call of a reference runs, and which dimension each of its integer arguments indexes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_KEEPING = frozenset({
    "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "expand", "clone", "_to_copy", "contiguous",
    "detach", "alias", "t", "transpose", "permute", "select", "slice", "split", "unbind", "flatten",
    "lift_fresh", "ravel", "narrow", "repeat", "clamp", "clamp_min", "clamp_max",
})  # fmt: skip
"""Operations whose result holds the same indices as their first argument."""
_BY_DIMENSION = frozenset({
    "index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce",
    "scatter_reduce_", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_",
})  # fmt: skip
_BY_PLACE = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})


@dataclass(frozen=True, slots=True)
class Use:
    """What an integer tensor indexes: a dimension of `size`, in `operation`."""

    size: int
    operation: str

    def __str__(self) -> str:
        return f"it indexes a dimension of {self.size} in {self.operation}"


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which operations the calls within it run, and what every labelled integer tensor indexes."""

    def __init__(self, labelled: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: set[str] = set()
        """Names of the operations, without the underscore of the in-place ones."""
        self.bounds: dict[str, Use] = {}
        """By label; of several uses the one that allows least."""
        self._labels = {id(tensor): name for name, tensor in labelled.items()}
        self._alive: list[torch.Tensor] = list(labelled.values())  # an id is reused once its object is gone

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.operations.add(name.rstrip("_"))
        for index, size in _indexed(name, args):
            self._note(index, size, name)
        result = func(*args, **(kwargs or {}))
        if name in _KEEPING and args and id(args[0]) in self._labels:
            for made in result if isinstance(result, list | tuple) else [result]:
                self._labels[id(made)] = self._labels[id(args[0])]
                self._alive.append(made)
        return result

    def _note(self, index: Any, size: int, operation: str) -> None:
        name = self._labels.get(id(index))
        if name is not None and (name not in self.bounds or size < self.bounds[name].size):
            self.bounds[name] = Use(size, operation.strip("_"))


def _indexed(name: str, args: tuple[Any, ...]) -> list[tuple[Any, int]]:
    """(index tensor, size of what it indexes) for each index of an operation."""
    if name in ("embedding", "_embedding_bag", "embedding_bag"):
        return [(args[1], args[0].shape[0])]
    if name in _BY_DIMENSION and len(args) > 2 and args[0].dim():
        return [(args[2], args[0].shape[args[1]])]
    if name in _BY_PLACE:
        places = [(index, size) for index, size in zip(args[1], args[0].shape, strict=False) if index is not None]
        return [] if any(index.dtype == torch.bool for index, _size in places) else places
    if name in ("nll_loss_forward", "nll_loss2d_forward"):
        return [(args[1], args[0].shape[min(1, args[0].dim() - 1)])]
    if name == "embedding_dense_backward":
        return [(args[1], args[2])]
    if name == "take":
        return [(args[1], args[0].numel())]
    return []
