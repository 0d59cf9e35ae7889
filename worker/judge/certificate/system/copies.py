"""Copies of a module, parameters that are replaced, and models that come and go: what averaging of weights, target
networks, `load_state_dict(assign=True)` and sweeps over checkpoints do.

A module that holds on to a parameter, or to what it made of one, goes on with the old values then; and what is kept by
an address is found again when a dead model's memory is a new one's. Both were accepted, the first with a certificate.
"""

from __future__ import annotations

import torch

from worker.judge.certificate.stage import SystemCheck, able, bench_of, conclude, exhibit_of, judge_outputs
from worker.judge.exhibits import Exhibit
from worker.judge.trial import RUN_LIMIT_S, Trial

NAME = "copies and replaced parameters"
_SPREAD = 0.25
"""By so much of their own size parameters differ from those that the module had."""
_WAYS = (
    ("copied", "a deep copy with other parameters", False),
    ("original", "the module whose copy has others", True),
    ("assigned", "parameters that are replaced", False),
    ("remade", "models made one after the other", False),
)
"""The operation, what it is called, and whether its result is that of the parameters from before."""


def check(trial: Trial) -> None:
    """Raises Fault `incorrect` when a result is not that of the parameters that are there; whoever refuses gets a
    reservation."""
    bench, exhibit = bench_of(trial), exhibit_of(trial)
    case = exhibit.cases[0]
    state = _another(exhibit)
    other = exhibit.truth.with_state(state).case("other parameters", case.inputs)
    bench.write(0, 0)
    figures: dict[str, float | str] = {}
    doubts: list[str] = []
    for way, what, before in _WAYS:
        if way != "copied" and not state:
            break
        with able(doubts, what):
            bench.use("copies", RUN_LIMIT_S, way=way, **bench.put_model(state))
            figures = judge_outputs(trial, NAME, case if before else other, bench.read(), of=what)
    conclude(trial, NAME, doubts, "each module goes by its own parameters", **figures)


CHECK = SystemCheck(NAME, check, trained=True)


def _another(exhibit: Exhibit) -> dict[str, torch.Tensor]:
    """Parameters that differ from those that the module has, each in all of its elements."""
    parameters = exhibit.instance.model.named_parameters()
    return {
        name: each.detach() * (1 + _SPREAD) + _SPREAD * each.detach().float().abs().mean().to(each.dtype)
        for name, each in parameters
        if each.is_floating_point() and each.element_size() > 1  # 8-bit floats are not multiplied
    }
