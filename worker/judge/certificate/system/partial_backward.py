"""A backward of a part: some inputs or parameters are frozen, or the loss is made of one of several results.

Fine-tuning freezes weights, a first layer's input needs no gradient, and a head may be left out of the loss. A backward
that always makes all gradients, or returns them by their place among those that were asked for, is right until then.
"""

from __future__ import annotations

import random

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
from worker.judge.numerics.case import Case
from worker.judge.trial import RUN_LIMIT_S, Trial

NAME = "frozen inputs, unused results"
_MOST = 4
"""Of each kind, drawn: a call, and for a result left out an fp64 truth of its own."""


def check(trial: Trial) -> None:
    """Raises Fault `incorrect` when a gradient that is asked for is wrong; whoever refuses gets a reservation."""
    bench, exhibit = bench_of(trial), exhibit_of(trial)
    if not exhibit.instance.backward:
        raise NotApplicable("no workload has a backward")
    results = len(exhibit.cases[0].results)
    gradients = len(exhibit.cases[0].names) - results
    ways = _ways(exhibit, gradients, trial.rng)
    if not ways:
        raise NotApplicable("there is one gradient and one result")
    figures: dict[str, float | str] = {}
    doubts: list[str] = []
    for case, needed, heard in ways:
        bench.put(0, case.inputs)
        places = [*range(results), *(results + place for place in needed)]
        with able(doubts, "a backward of a part"):
            bench.examine("partial", RUN_LIMIT_S, needed=needed, heard=heard)
            figures = judge_outputs(trial, NAME, case, bench.read(), places)
    conclude(trial, NAME, doubts[:1], f"{len(ways)} backwards of a part, all right", ways=len(ways), **figures)


def _ways(exhibit: Exhibit, gradients: int, rng: random.Random) -> list[tuple[Case, list[int], list[int]]]:
    """A case, the gradients that are needed and the float results that the loss hears of: one gradient alone or all but
    one of the whole loss; all of them of one result."""
    case, forward = exhibit.cases[0], exhibit.instance.forward_inputs
    own, slopes = case.inputs[:forward], case.inputs[forward:]
    every, heard = list(range(gradients)), list(range(len(slopes)))
    ways: list[tuple[Case, list[int], list[int]]] = []
    if len(every) > 1:
        parts = {(place,) for place in every} | {tuple(each for each in every if each != place) for place in every}
        ways += [(case, list(part), heard) for part in rng.sample(sorted(parts), min(_MOST, len(parts)))]
    if len(heard) > 1:
        for only in rng.sample(heard, min(_MOST, len(heard))):
            kept = [value if place == only else torch.zeros_like(value) for place, value in enumerate(slopes)]
            ways.append((exhibit.truth.case("part", (*own, *kept)), every, [only]))
    return ways


CHECK = SystemCheck(NAME, check, trained=True)
