"""What the messages of a finalist's checks are about: the call of a workload, its inputs, places for its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from worker.runner import values


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
