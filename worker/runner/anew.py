"""What a drop-in module is asked beside the judged calls: to be made anew, to be called by its arguments' names, to say
which parameters it has, and to be right with parameters that lie otherwise in memory.

Runs in the untrusted process, as `worker.runner.examine` does: results and parameters go through the arena, where the
judge compares them; what is answered in words can only speak against a candidate.

`HANDLERS` maps the name of a control message to its handler; `worker.runner.child` registers them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from worker.runner import examine, values
from worker.runner.step import Step


class _Session(Protocol):
    device: str
    arenas: dict[str, Any]
    subjects: dict[str, Any]


def anew(session: _Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Make a model of the subject's class with these arguments and this seed, and leave it as its constructor does. It
    is the model of a subject of its own, `called` so."""
    subject, workload = session.subjects[message["subject"]], message["workload"]
    arguments = values.decode(message["init"], session.arenas[workload].bytes)
    torch.manual_seed(message["seed"])
    with torch.device(session.device):
        model = subject.factory()(*arguments)
    model = model.to(device=session.device)
    model.train(message["training"])
    made = copy.copy(subject)
    made.models, made.calls, made.contiguous = {workload: model}, {workload: model}, {workload: ()}
    session.subjects[message["called"]] = made
    return {}


def names(session: _Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """The names of a model's parameters in its order, with whether each has a gradient, and of all that its state dict
    holds."""
    model = session.subjects[message["subject"]].models[message["workload"]]
    parameters = [[name, parameter.requires_grad] for name, parameter in model.named_parameters()]
    return {"parameters": parameters, "state": list(model.state_dict())}


def keywords(session: _Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Forward alone on the first `count` arguments, by these `names` where there are any; the places of gradients are
    left as they are."""
    model = session.subjects[message["subject"]].models[message["workload"]]
    given = examine._inputs(session, message)[: message["count"]]
    with torch.no_grad():
        named = dict(zip(message["names"], given, strict=True)) if message["names"] else None
        result = model(*given) if named is None else model(**named)
        examine._store(result, examine._places(session, message)[: message["results"]])
    examine._synchronize(session)
    return {}


def relaid(session: _Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """A usual call with parameters that lie in memory as channels_last has them, or (`swapped`) with new ones of the
    same values whose last two dimensions do."""
    subject, workload = session.subjects[message["subject"]], message["workload"]
    model, call = subject.models[workload], subject.calls[workload]
    if message["way"] == "swapped":
        _swap(model)
    else:
        model.to(memory_format=torch.channels_last)
    call = call.of(model) if isinstance(call, Step) else model
    with torch.no_grad():
        examine._store(call(*examine._inputs(session, message)), examine._places(session, message))
    examine._synchronize(session)
    return {}


HANDLERS: dict[str, Callable[[Any, dict[str, Any], list[int]], dict[str, Any]]] = {
    "examine.anew": anew,
    "examine.names": names,
    "examine.keywords": keywords,
    "examine.relaid": relaid,
}


def _swap(model: nn.Module) -> None:
    swapped: dict[nn.Parameter, nn.Parameter] = {}  # one that two modules share stays one
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter.dim() < 2:
                continue
            if parameter not in swapped:
                turned = parameter.detach().mT.contiguous().mT
                swapped[parameter] = nn.Parameter(turned, requires_grad=parameter.requires_grad)
            setattr(module, name, swapped[parameter])
