"""Results or inputs that are written over before the backward, as `relu(inplace=True)`, `y += skip` and loops that use
one buffer for all activations do.

They belong to who called. A backward that reads them again has to keep them with `save_for_backward`, whose reader
raises when they have changed; one that keeps them otherwise takes what is there by then. A group norm that did was
certified, and its gradients were 0.5 off behind `y += skip`; so was a bias with ReLU, 1.0 off, that kept its input. And
parameters: an optimizer's step may come between a forward and its backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from worker.judge.certificate.stage import (
    NotApplicable,
    SystemCheck,
    able,
    bench_of,
    conclude,
    exhibit_of,
    judge_outputs,
)
from worker.judge.exhibits import Exhibit
from worker.judge.numerics.twin import copied, unmoved
from worker.judge.reference.problem import Instance
from worker.judge.trial import RUN_LIMIT_S, SUBJECT, Trial
from worker.runner.step import Step

NAME = "results or inputs written over"
_WAYS: tuple[tuple[str, Callable[[Step, Sequence[Any]], object]], ...] = (
    ("results", Step.results_rewritten),
    ("inputs", Step.inputs_rewritten),
    ("parameters", Step.parameters_rewritten),
)


def check(trial: Trial) -> None:
    """Gradients after the results, or the inputs, have changed in place. Raises Fault `incorrect` when they are wrong,
    also where the reference raises; whoever refuses gets a reservation, unless the reference refuses too."""
    bench, exhibit = bench_of(trial), exhibit_of(trial)
    if not exhibit.instance.backward:
        raise NotApplicable("no workload has a backward")
    case = exhibit.cases[0]
    bench.write(0, 0)
    figures: dict[str, float | str] = {}
    doubts: list[str] = []
    for state in (None, _as_constructed(trial, exhibit)):
        if state:
            bench.load_state(SUBJECT, state, RUN_LIMIT_S)
        truth = exhibit.truth.with_state(state) if state else exhibit.truth
        wanted = truth.case("rewritten", case.inputs)
        for which, way in _WAYS if exhibit.instance.parameters else _WAYS[:-1]:
            what, refused = f"a backward after the {which} have changed", list[str]()
            with able(refused, what):
                bench.examine("rewritten", RUN_LIMIT_S, which=which)
                figures = judge_outputs(trial, NAME, wanted, bench.read(), of=what)
            if refused and _allowed(exhibit.instance, case.inputs, way):
                doubts += refused
    passed = "gradients are right after that, or refused where the reference refuses them"
    conclude(trial, NAME, sorted(set(doubts)), passed, **figures)


def _as_constructed(trial: Trial, exhibit: Exhibit) -> dict[str, torch.Tensor]:
    """Parameters as training begins with them: weights of ones are divided out of a result without loss."""
    model = trial.exhibits.problem.fresh_model(exhibit.instance, trial.device, trial.rng.getrandbits(32))
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _allowed(instance: Instance, inputs: tuple[object, ...], way: Callable[[Step, Sequence[Any]], object]) -> bool:
    step = Step(instance.model, instance.model, instance.parameters, instance.forward_inputs)
    try:
        with unmoved(instance.model):
            way(step, copied(inputs))
    except RuntimeError:  # torch's, which has seen a tensor change that it had kept
        return False
    return True


CHECK = SystemCheck(NAME, check, trained=True)
