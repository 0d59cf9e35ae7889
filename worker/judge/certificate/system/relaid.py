"""Parameters laid out otherwise: `model.to(memory_format=torch.channels_last)`, and weights that are transposed views,
as tied ones and those of some checkpoints are.

A kernel that is handed the address of a weight and takes it for contiguous is right until somebody does either. A
convolution that did was certified.
"""

from __future__ import annotations

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
from worker.judge.trial import FIRST_RUN_LIMIT_S, Trial

NAME = "parameters laid out otherwise"
_WAYS = {
    "channels_last": "a call with parameters in channels_last",
    "swapped": "a call with parameters whose last dimensions are swapped in memory",
}


def check(trial: Trial) -> None:
    """Results and gradients in each layout that a parameter can have. Raises Fault `incorrect` when one is wrong;
    whoever refuses gets a reservation. Raises NotApplicable where all layouts are the same."""
    bench, exhibit = bench_of(trial), exhibit_of(trial)
    parameters = list(exhibit.instance.model.parameters())
    ways = [way for way, moves in (("channels_last", _by_channels), ("swapped", _swaps)) if any(map(moves, parameters))]
    if not ways:
        raise NotApplicable("no parameter has two dimensions of more than one element")
    bench.write(0, 0)
    figures: dict[str, float | str] = {}
    doubts: list[str] = []
    for way in ways:
        with able(doubts, _WAYS[way]):
            bench.use("relaid", FIRST_RUN_LIMIT_S[trial.request.language], way=way)
            figures = judge_outputs(trial, NAME, exhibit.cases[0], bench.read(), of=_WAYS[way])
    conclude(trial, NAME, doubts, f"right with parameters {' and '.join(ways)}", **figures)


def _by_channels(parameter: torch.Tensor) -> bool:
    """Whether channels_last moves its values."""
    return parameter.dim() == 4 and parameter.shape[1] > 1 and parameter.shape[2] * parameter.shape[3] > 1


def _swaps(parameter: torch.Tensor) -> bool:
    """Whether its last two dimensions can be swapped in memory."""
    return parameter.dim() >= 2 and min(parameter.shape[-2:]) > 1


CHECK = SystemCheck(NAME, check, trained=True)
