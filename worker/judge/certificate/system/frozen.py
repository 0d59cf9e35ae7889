"""A backward of a part: some inputs or parameters are frozen, or the loss is made of one of several results.

Fine-tuning freezes weights, a first layer's input needs no gradient, and a head may be left out of the loss. A backward
that always makes all gradients, or returns them by their place among those that were asked for, is right until then.
"""

from __future__ import annotations

import torch

from worker.judge.certificate.stage import NotApplicable, bench_of, exhibit_of, judge_outputs, made
from worker.judge.numerics.truth import Case
from worker.judge.trial import RUN_LIMIT_S, Trial

NAME = "frozen inputs, unused results"
_MOST = 4
"""Of each kind, drawn: a call, and for a result left out an fp64 truth of its own."""


def check(trial: Trial) -> None:
    """Raises Fault `incorrect` when a gradient that is asked for is wrong; whoever refuses gets a reservation."""
    bench, exhibit = bench_of(trial), exhibit_of(trial)
    if not exhibit.instance.backward:
        raise NotApplicable("no workload has a backward")
    case, forward = exhibit.cases[0], exhibit.instance.forward_inputs
    gradients = [index for index, name in enumerate(case.names) if name.startswith("grad:")]
    results, every = len(case.names) - len(gradients), list(range(len(gradients)))
    slopes = case.inputs[forward:]
    heard = list(range(len(slopes)))
    alone = [[place] for place in every]
    without = [[place for place in every if place != left_out] for left_out in every]
    ways: list[tuple[Case, list[int], list[int]]] = []
    if len(every) > 1:
        different = alone if len(every) == 2 else alone + without
        ways += [(case, needed, heard) for needed in trial.rng.sample(different, min(_MOST, len(different)))]
    if len(heard) > 1:
        for only in trial.rng.sample(heard, min(_MOST, len(heard))):
            others = [value if at == only else torch.zeros_like(value) for at, value in enumerate(slopes)]
            ways.append((exhibit.truth.case("part", (*case.inputs[:forward], *others)), every, [only]))
    if not ways:
        raise NotApplicable("there is one gradient and one result")
    figures: dict[str, float | str] = {}
    for truth, needed, only_heard in ways:
        bench.put(0, truth.inputs)
        if not made(trial, NAME, "a backward of a part", "partial", RUN_LIMIT_S, needed=needed, heard=only_heard):
            return
        places = [*range(results), *(results + place for place in needed)]
        figures = judge_outputs(trial, NAME, truth, bench.read(), places)
    trial.record(NAME, True, f"{len(ways)} backwards of a part, all right", ways=len(ways), **figures)
