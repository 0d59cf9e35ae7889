"""What users do with a drop-in module beside the judged calls: make it anew, call it by its arguments' names, in
inference mode or in `eval()`, copy it, give it other parameters or lay them out otherwise.

Runs in the untrusted process, as `worker.runner.examine` does: results and parameters go through the arena, where the
judge compares them; what is answered in words can only speak against a candidate.

`HANDLERS` maps the name of a control message to its handler; `worker.runner.child` registers them.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from worker.runner import values
from worker.runner.messages import (
    Farthest,
    Session,
    call_of,
    cloned,
    inputs_of,
    made_of,
    model_of,
    places_of,
    store,
    synchronize,
)
from worker.runner.step import Step

_REMADE_S = 0.3
"""For so long models are made and dropped, each where the last one was."""
_held: dict[str, torch.Tensor] = {}
"""What `copies` leaves for the next: the parameters that the module had."""


def anew(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Make a model of the subject's class with these arguments and this seed, and leave it as its constructor does. It
    is the model of a subject of its own, `called` so."""
    subject, workload = session.subjects[message["subject"]], message["workload"]
    arguments = values.decode(message["init"], session.arenas[workload].bytes)
    torch.manual_seed(message["seed"])
    model = made_of(session, subject.factory(), arguments)
    model.train(message["training"])
    made = copy.copy(subject)
    made.models, made.calls, made.contiguous = {workload: model}, {workload: model}, {workload: ()}
    session.subjects[message["called"]] = made
    return {}


def names(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """The names of a model's parameters in its order, with whether each has a gradient, and of all that its state dict
    holds."""
    model = model_of(session, message)
    parameters = [[name, parameter.requires_grad] for name, parameter in model.named_parameters()]
    return {"parameters": parameters, "state": list(model.state_dict())}


def keywords(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Forward alone on the first `count` arguments, by these `names` where there are any; the places of gradients are
    left as they are."""
    model = model_of(session, message)
    given = inputs_of(session, message)[: message["count"]]
    with torch.no_grad():
        named = dict(zip(message["names"], given, strict=True)) if message["names"] else None
        result = model(*given) if named is None else model(**named)
        store(result, places_of(session, message)[: message["results"]])
    synchronize(session)
    return {}


def relaid(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """A usual call with parameters that lie in memory as channels_last has them, or (`swapped`) with new ones of the
    same values whose last two dimensions do."""
    model = model_of(session, message)
    if message["way"] == "swapped":
        _replace(model, {each: _swapped(each) for each in model.parameters() if each.dim() >= 2})
    else:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # documented, not in torch's stubs
    call = _like(call_of(session, message), model)
    with torch.no_grad():
        store(call(*inputs_of(session, message)), places_of(session, message))
    synchronize(session)
    return {}


def inference(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Forward alone on tensors of inference mode; the places of gradients are left as they are."""
    model = model_of(session, message)
    inputs, call = inputs_of(session, message), call_of(session, message)
    with torch.inference_mode():
        result = model(*cloned(inputs[: call.inputs] if isinstance(call, Step) else inputs))
        store(result, places_of(session, message)[: message["results"]])
    synchronize(session)
    return {}


def evaluation(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """A usual call of the module in `eval()`."""
    model_of(session, message).eval()
    with torch.no_grad():
        store(call_of(session, message)(*inputs_of(session, message)), places_of(session, message))
    synchronize(session)
    return {}


def copies(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Call a deep copy with other parameters (`state`); then the `original`; then that with parameters that were
    replaced by those (`assigned`); then models made and dropped one after the other, which have its own parameters and
    those in turn (`remade`): the result that is the farthest from the first one is kept."""
    subject, shared = session.subjects[message["subject"]], session.arenas[message["workload"]].bytes
    model, call = model_of(session, message), call_of(session, message)
    inputs, places = inputs_of(session, message), places_of(session, message)
    other = {name: values.decode(ref, shared).clone() for name, ref in message["state"].items()}
    with torch.no_grad():
        if message["way"] == "copied":
            _held.update({name: model.state_dict()[name].clone() for name in other})
            model = copy.deepcopy(model)
            model.load_state_dict(other, strict=False)
        elif message["way"] == "assigned":
            _replace(model, {model.get_parameter(name): value for name, value in other.items()})
        if message["way"] == "remade":
            make = functools.partial(made_of, session, subject.factory(), values.decode(message["init"], shared))
            store(_remade(model, call, inputs, make, other), places)
        else:
            store(_like(call, model)(*inputs), places)
    synchronize(session)
    return {}


HANDLERS: dict[str, Callable[[Any, dict[str, Any], list[int]], dict[str, Any]]] = {
    "usage.anew": anew,
    "usage.names": names,
    "usage.keywords": keywords,
    "usage.relaid": relaid,
    "usage.inference": inference,
    "usage.evaluation": evaluation,
    "usage.copies": copies,
}


def _like(call: Callable[..., Any], model: nn.Module) -> Callable[..., Any]:
    """What `call` is, of another model or of one with other parameters: forward, or forward and backward."""
    return call.of(model) if isinstance(call, Step) else model


def _remade(
    like: nn.Module,
    call: Callable[..., Any],
    inputs: list[Any],
    make: Callable[[], nn.Module],
    other: dict[str, torch.Tensor],
) -> Any:
    kept: Farthest | None = None
    rooms = {name: parameter.detach().clone() for name, parameter in like.named_parameters()}
    until = time.monotonic() + _REMADE_S
    states = itertools.chain((_held, other), iter(lambda: random.choice((_held, other)), None))
    while kept is None or time.monotonic() < until:
        state = next(states)  # first of all the one that nobody asks about
        model = make()
        model.load_state_dict(like.state_dict())
        model.load_state_dict(state, strict=False)
        model.train(like.training)
        for name, parameter in like.named_parameters():
            model.get_parameter(name).requires_grad_(parameter.requires_grad)
        _replace(model, {each: _in_place_of(rooms[name], each) for name, each in model.named_parameters()})
        found = _like(call, model)(*inputs)
        del model
        if state is not other:
            continue
        if kept is None:
            kept = Farthest(found)
        kept.see(found)
    return kept.result


def _replace(model: nn.Module, wanted: Mapping[nn.Parameter, torch.Tensor]) -> None:
    """Give a model new parameters with these values; one that two modules share stays one."""
    made = {old: nn.Parameter(value, requires_grad=old.requires_grad) for old, value in wanted.items()}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter in made:
                setattr(module, name, made[parameter])


def _in_place_of(dead: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """These values where a model that is gone had its own, in a tensor that was never another's: allocators do so, now
    and then."""
    place = torch.empty(0, dtype=dead.dtype, device=dead.device)
    place.set_(dead.untyped_storage(), dead.storage_offset(), dead.shape, dead.stride())
    return place.copy_(value.detach())


def _swapped(parameter: nn.Parameter) -> torch.Tensor:
    return parameter.detach().mT.contiguous().mT
