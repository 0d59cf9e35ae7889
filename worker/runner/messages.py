"""What the messages of a finalist's checks are about: the call of a workload, its inputs, places for its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch

from worker.runner import values


class ContractError(Exception):
    """The model's output is not what the reference returns, or there is none."""


class Session(Protocol):
    """What a handler needs of `worker.runner.child.Session`."""

    device: str
    arenas: dict[str, Any]
    subjects: dict[str, Any]


def model_of(session: Session, message: dict[str, Any]) -> torch.nn.Module:
    """The subject's model of a workload."""
    found: torch.nn.Module = session.subjects[message["subject"]].models[message["workload"]]
    return found


def call_of(session: Session, message: dict[str, Any]) -> Callable[..., Any]:
    """One call of the subject's model: forward, or forward and backward (`Step`)."""
    found: Callable[..., Any] = session.subjects[message["subject"]].calls[message["workload"]]
    return found


def inputs_of(session: Session, message: dict[str, Any]) -> list[Any]:
    """The arguments of a call, in the arena."""
    found: list[Any] = values.decode(message["inputs"], session.arenas[message["workload"]].bytes)
    return found


def places_of(session: Session, message: dict[str, Any]) -> list[torch.Tensor]:
    """Where its outputs go, in the arena."""
    shared = session.arenas[message["workload"]].bytes
    return [values.decode(place, shared) for place in message["outputs"]]


def made_of(session: Session, factory: Callable[..., Any], arguments: list[Any]) -> torch.nn.Module:
    """A new model, on the session's device. Raises ContractError when it is none."""
    with torch.device(session.device):
        model = factory(*arguments)
    if not isinstance(model, torch.nn.Module):
        raise ContractError(f"{type(model).__name__} is not a torch.nn.Module")
    return model.to(device=session.device)


class Farthest:
    """Of results that were to be the same, the one that is the farthest from what the first one was."""

    def __init__(self, first: Any) -> None:
        self._wanted = [value.clone() for value in values.tensors_of((first,))]
        self._off = 0.0
        self.result = cloned(first)

    def see(self, result: Any) -> None:
        """Keep a copy of it, if it is farther off than all before: a later call may write into what was returned."""
        found = values.tensors_of((result,))
        if all(map(torch.equal, found, self._wanted)):
            return
        off = max(map(_distance, found, self._wanted), default=0.0)
        if off >= self._off:
            self._off, self.result = off, cloned(result)


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference of two elements, in the largest element; infinite for NaN and another shape."""
    if found.shape != wanted.shape:
        return math.inf
    if not wanted.numel():
        return 0.0
    one, other = found.double(), wanted.double()
    apart = torch.where(one == other, 0.0, (one - other).abs()).nan_to_num(nan=math.inf)
    apart = torch.where(one.isnan() & other.isnan(), 0.0, apart)
    return float(apart.max() / (other.abs().nan_to_num(posinf=0.0).max() + 1e-30))


def store(result: Any, places: list[torch.Tensor], *, cast: bool = False) -> None:
    """Copy outputs into the arena; the judge sees the poison that is left where this refuses. Raises TypeError for
    another number, shape or dtype of outputs (`cast`: of any dtype)."""
    tensors = list(result) if isinstance(result, tuple | list) else [result]
    if len(tensors) != len(places):
        raise TypeError(f"{len(tensors)} outputs; the reference returns {len(places)}")
    for index, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
        if tensor.shape != place.shape or (tensor.dtype != place.dtype and not cast):
            found, wanted = (f"{item.dtype} of shape {tuple(item.shape)}" for item in (tensor, place))
            raise TypeError(f"output {index} is {found}; the reference's is {wanted}")
        place.copy_(tensor)


def cloned(value: Any) -> Any:
    """An argument with tensors of their own memory."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(cloned(item) for item in value)
    return {key: cloned(item) for key, item in value.items()} if isinstance(value, dict) else value


def synchronize(session: Session) -> None:
    """Wait for the device, where it is a GPU."""
    if session.device != "cpu":
        torch.cuda.synchronize()
