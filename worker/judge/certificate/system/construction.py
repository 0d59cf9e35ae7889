"""Construction and call as the reference's: who swaps a module in makes it with the same arguments, leaves out those
with defaults, calls it by names, and trains what the constructor has drawn.

The judge gives every argument by its place and loads parameters of its own. So a module with another default, another
argument's name, a bias that was never filled or a weight without a gradient was accepted, and fails whoever uses it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from worker.judge.certificate.stage import (
    NotApplicable,
    SystemBench,
    SystemCheck,
    able,
    bench_of,
    conclude,
    exhibit_of,
    judge_outputs,
    state_of,
)
from worker.judge.numerics.beginning import DRAWS, alike
from worker.judge.numerics.case import Case
from worker.judge.numerics.truth import Truth
from worker.judge.numerics.twin import copied, same_bits
from worker.judge.reference.blame import blame
from worker.judge.reference.problem import Instance
from worker.judge.trial import CONSTRUCT_LIMIT_S, FIRST_RUN_LIMIT_S, RUN_LIMIT_S, SUBJECT, Trial
from worker.judge.verdict import ReferenceFailed, Verdict

NAME = "construction and call as the reference's"
_ANEW = "anew"
"""The subject of the model that is made here."""
_NAMED = 4
"""Names that a sentence lists at most."""


def check(trial: Trial) -> None:
    """What a module made anew begins with, a call of it by names, and what is left out of constructor and call. Raises
    Fault `incorrect` for wrong values and for a parameter without a gradient; whoever cannot be made or called so, or
    begins with something else, gets a reservation."""
    doubts: list[str] = []
    bench, exhibit = bench_of(trial), exhibit_of(trial)
    try:
        seed, job = trial.rng.getrandbits(32), bench.job()
        draws = [_reference(exhibit.instance, trial.device, seed + step) for step in range(DRAWS)]
        fields = {"init": job["init"], "training": job["training"], "seed": seed, "called": _ANEW}
        with able(doubts, "a module made anew"):
            bench.use("anew", CONSTRUCT_LIMIT_S, **fields)
            before = _begins(trial, draws, doubts)
            _called_by_names(trial, draws[0], before, doubts)
            _called_by_defaults(trial, doubts)
        _made_by_defaults(trial, doubts)
        _made_by_other_defaults(trial)
    except ReferenceFailed as failed:
        raise NotApplicable(f"the reference cannot be made anew: {failed}") from failed
    conclude(trial, NAME, doubts, "made and called as the reference is, with names and defaults, it is right")


def _begins(trial: Trial, draws: list[torch.nn.Module], doubts: list[str]) -> list[str]:
    """Hold names and values of a new module's parameters against the reference's; the keys of its state dict."""
    parameters, keys = _answered(trial)
    wanted = {name: parameter.requires_grad for name, parameter in draws[0].named_parameters()}
    for name, trained in wanted.items():
        if trained and not parameters.get(name, False):
            reason = f"made anew, parameter {name!r} has no gradient (requires_grad), which the reference's has"
            raise trial.refuse(NAME, Verdict.INCORRECT, reason)
        if not trained and parameters.get(name, False):
            doubts.append(f"made anew, `{name}` is trained, which the reference's is not")
    others = [key for key in draws[0].state_dict() if key not in wanted], [key for key in keys if key not in parameters]
    for what, order, own in (("parameters", list(wanted), list(parameters)), ("buffers", *others)):
        if own != order:
            doubts.append(f"its {what} are {_listed(own)}, the reference's {_listed(order)}, in this order")
    for name, tensor in _read(trial).items():
        if not alike(tensor, [each.state_dict()[name] for each in draws]):
            doubts.append(f"made anew, `{name}` is not what the reference begins with")
    return keys


def _called_by_names(trial: Trial, begun: torch.nn.Module, before: list[str], doubts: list[str]) -> None:
    """A call with forward's arguments by their names; the first, and with the parameters that it began with, if those
    are the reference's."""
    exhibit, found = exhibit_of(trial), _read(trial)
    case = exhibit.cases[0]
    if all(same_bits(tensor, begun.state_dict()[name]) for name, tensor in found.items()):
        case = exhibit.truth.with_state(found).case("made anew", case.inputs)
    if not case.finite or case is exhibit.cases[0]:
        case = _load(trial)
    names = _names(exhibit.instance)
    what = "a call of a new module" + (" by the names of its arguments" if names else "")
    _call(trial, doubts, what, case, names, exhibit.instance.forward_inputs)
    changed = set(before) ^ set(_answered(trial)[1])
    if changed:
        doubts.append(f"a call changes which parameters and buffers its state dict holds: {_listed(sorted(changed))}")


def _called_by_defaults(trial: Trial, doubts: list[str]) -> None:
    """A call without the last arguments that are given what they are by default."""
    instance = exhibit_of(trial).instance
    given = exhibit_of(trial).cases[0].inputs[: instance.forward_inputs]
    count = _needed(_arguments(instance), given)
    if count < len(given):
        _call(trial, doubts, "a call that leaves out what has a default", _load(trial), [], count)


def _made_by_defaults(trial: Trial, doubts: list[str]) -> None:
    """A module made without the last arguments that are given what they are by default."""
    exhibit = exhibit_of(trial)
    count = _needed(list(inspect.signature(type(exhibit.instance.model)).parameters.values()), exhibit.instance.init)
    if count == len(exhibit.instance.init):
        return
    with able(doubts, "a module made without what has a default"):
        instance = replace(exhibit.instance, init=exhibit.instance.init[:count])
        _judge_made(trial, "a module made without what has a default", instance, exhibit.cases[0])


def _made_by_other_defaults(trial: Trial) -> None:
    """A module made without its last floats, although the file gives others than they are by default: it may refuse,
    and must not go by other defaults than the reference's."""
    exhibit = exhibit_of(trial)
    instance, given = exhibit.instance, exhibit.instance.init
    items = list(inspect.signature(type(instance.model)).parameters.values())
    count = _needed(items, given)
    while (
        0 < count <= len(items) and isinstance(given[count - 1], float) and isinstance(items[count - 1].default, float)
    ):
        count = _needed(items, given[: count - 1])
    if count == _needed(items, given):
        return
    try:
        other = trial.exhibits.problem.instance(
            instance.workload, trial.device, trial.rng.getrandbits(32), given[:count], backward=False
        )
        truth = Truth(other, trial.exhibits.problem.spec.precision, exhibit.domains)
        case = truth.case("defaults", exhibit.cases[0].inputs[: instance.forward_inputs])
    except ReferenceFailed:
        return
    if case.finite:
        with able([], "a module made by its defaults"):
            _judge_made(trial, "a module made by its defaults", other, case)


def _judge_made(trial: Trial, what: str, instance: Instance, case: Case) -> None:
    """Make the candidate's model of this instance and judge a call of it. Raises Fault."""
    bench = SystemBench(trial.runner, instance, [case], trial.device, 1, name=what)
    try:
        bench.construct(SUBJECT, CONSTRUCT_LIMIT_S)
        bench.write(0, 0)
        outputs = bench.run(SUBJECT, 0, FIRST_RUN_LIMIT_S[trial.request.language])
        judge_outputs(trial, NAME, case, outputs, of=what)
    finally:
        bench.close()


def _call(trial: Trial, doubts: list[str], what: str, case: Case, names: Sequence[str], count: int) -> None:
    """Forward of the new module on a case's first arguments. Raises Fault `incorrect`."""
    bench, results = bench_of(trial), case.results
    bench.put(0, case.inputs)
    with able(doubts, what):
        bench.use("keywords", RUN_LIMIT_S, subject=_ANEW, names=list(names), count=count, results=len(results))
        judge_outputs(trial, NAME, case, bench.read(), results, of=what)


def _answered(trial: Trial) -> tuple[dict[str, bool], list[str]]:
    """The new module's parameters with whether each has a gradient, and the keys of its state dict, in its order.

    The runner says so, which nobody can trust: it can speak against a candidate, and for a hostile one it proves
    nothing.
    """
    answer = bench_of(trial).use("names", RUN_LIMIT_S, subject=_ANEW)
    parameters, keys = answer.get("parameters"), answer.get("state")
    if not (isinstance(parameters, list) and isinstance(keys, list) and all(isinstance(key, str) for key in keys)):
        raise trial.refuse(NAME, Verdict.SUSPICIOUS, "the runner sent names that are not part of the protocol")
    found: dict[str, bool] = {}
    for each in parameters:
        match each:
            case [str(name), bool(trained)]:
                found[name] = trained
            case _:
                raise trial.refuse(NAME, Verdict.SUSPICIOUS, "the runner sent names that are not part of the protocol")
    return found, keys


def _read(trial: Trial) -> dict[str, torch.Tensor]:
    """The new module's parameters and buffers, out of the arena."""
    return bench_of(trial).read_state(_ANEW, list(state_of(exhibit_of(trial))), RUN_LIMIT_S)


def _load(trial: Trial) -> Case:
    """Give the new module the judge's parameters; a case for it."""
    exhibit = exhibit_of(trial)
    bench_of(trial).load_state(_ANEW, state_of(exhibit), RUN_LIMIT_S)
    return exhibit.cases[0]


def _reference(instance: Instance, device: str, seed: int) -> torch.nn.Module:
    """The reference as its constructor leaves it, made where the candidate's is: there alone a seed draws the same."""
    torch.manual_seed(seed)
    with blame("Model failed"), torch.device(device):
        model: torch.nn.Module = type(instance.model)(*copied(instance.init))
    return model.to(device)


def _arguments(instance: Instance) -> list[inspect.Parameter]:
    return list(inspect.signature(type(instance.model).forward).parameters.values())[1:]


def _names(instance: Instance) -> list[str]:
    """The names by which forward can be called; none where it has arguments that go by their place alone."""
    items = _arguments(instance)[: instance.forward_inputs]
    named = all(item.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for item in items)
    return [item.name for item in items] if named and len(items) == instance.forward_inputs else []


def _needed(items: Sequence[inspect.Parameter], given: Sequence[Any]) -> int:
    """How many of the values have to be given: the last ones are what they are by default."""
    count = len(given)
    while 0 < count <= len(items) and _is_default(items[count - 1], given[count - 1]):
        count -= 1
    return count


def _is_default(item: inspect.Parameter, value: Any) -> bool:
    plain = value is None or isinstance(value, bool | int | float | str | tuple | torch.dtype)
    return plain and type(value) is type(item.default) and bool(value == item.default)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name[:80]}`" for name in names[:_NAMED]) or "none"
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown


CHECK = SystemCheck(NAME, check)
