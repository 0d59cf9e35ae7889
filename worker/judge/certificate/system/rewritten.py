"""A result that is written over before its backward, as `relu(inplace=True)` and `y += skip` do.

A result belongs to who asked for it. A backward that reads it again has to keep it with `save_for_backward`, whose
reader raises when the result has changed; one that keeps it otherwise takes what is there by then. A group norm that
did was certified, and its gradients were 0.5 off behind `y += skip`.
"""

from __future__ import annotations

import torch

from worker.judge.certificate.stage import NotApplicable, bench_of, exhibit_of, judge_outputs, made
from worker.judge.exhibits import Exhibit
from worker.judge.numerics.twin import copied, unmoved
from worker.judge.reference.problem import Instance
from worker.judge.trial import RUN_LIMIT_S, SUBJECT, Trial
from worker.runner.step import Step

NAME = "results written over"


def check(trial: Trial) -> None:
    """Gradients of results that were negated in place. Raises Fault `incorrect` when they are wrong; whoever refuses
    gets a reservation, unless the reference refuses too."""
    bench, exhibit = bench_of(trial), exhibit_of(trial)
    if not exhibit.instance.backward:
        raise NotApplicable("no workload has a backward")
    case = exhibit.cases[0]
    if not _allowed(exhibit.instance, case.inputs):
        raise NotApplicable("the reference's own backward reads its results again")
    bench.write(0, 0)
    figures: dict[str, float | str] = {}
    for state in (None, _as_constructed(trial, exhibit)):
        if state:
            bench.load_state(SUBJECT, state, RUN_LIMIT_S)
        if not made(trial, NAME, "a backward after the results have changed", "rewritten", RUN_LIMIT_S):
            return
        truth = exhibit.truth.with_state(state) if state else exhibit.truth
        figures = judge_outputs(trial, NAME, truth.case("rewritten", case.inputs), bench.read())
    trial.record(NAME, True, "the gradients are right after the results have changed", **figures)


def _as_constructed(trial: Trial, exhibit: Exhibit) -> dict[str, torch.Tensor]:
    """Parameters as training begins with them: weights of ones are divided out of a result without loss."""
    model = trial.exhibits.problem.fresh_model(exhibit.instance, trial.device, trial.rng.getrandbits(32))
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _allowed(instance: Instance, inputs: tuple[object, ...]) -> bool:
    step = Step(instance.model, instance.model, instance.parameters, instance.forward_inputs)
    try:
        with unmoved(instance.model):
            step.rewritten(copied(inputs))
    except RuntimeError:  # torch's, which has seen a tensor change that it had kept
        return False
    return True
