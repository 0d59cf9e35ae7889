"""How many operations the matrix products of some code take, by torch's own formulas.

torch's `FlopCounterMode` also follows the modules that are called, by hooks on their inputs; with those,
`torch.autograd.grad` inside fails for leaves (torch 2.13: "A leaf node was passed to _will_engine_execute_node"), so
that no problem whose backward counts could be certified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what runs inside `with`. What torch has no formula for counts as nothing."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if not isinstance(func, torch._ops.OpOverload):
            return NotImplemented
        count = flop_registry.get(func._overloadpacket)
        if count is None and func.namespace == "aten":
            with self:  # `linear` under inference mode, say, is counted by what it is made of
                made = func.decompose(*args, **given)
            if made is not NotImplemented:
                return made
        result = func(*args, **given)
        self.total += 0 if count is None else int(count(*args, **given, out_val=result))
        return result
