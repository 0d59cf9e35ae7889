"""Autotuning: the next configuration of a candidate's declared tunables, by a real optimiser.

A space that can be listed is searched by a Gaussian process that knows that tunables mostly act apart
(`search.surrogate`); a larger one by Optuna's TPE, of which two steps of three go to a neighbour of the best
configuration instead. Either is rebuilt from the trials each time (ask and tell, no state of its own), so that a worker
that dies loses nothing and the same trials give the same suggestion. `benchmarks/tuning` compares them with others on
recorded spaces.

Optuna is imported when it is needed: 0.5 s.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING

from search import surrogate
from search.proposing import Proposal, ProposalRequest, Trial
from search.tunables import Space, read_space, with_values
from search.types import Failure, Params, ParamValue

if TYPE_CHECKING:
    import optuna

STARTUP_TRIALS = 5
"""Random configurations before the model takes over. Optuna's 10 would be most of a typical budget."""

NEIGHBOURS_FROM = 3
MODEL_PERIOD = 3
"""From the third trial on, every third suggestion is the model's and the others are neighbours of the best."""

MODELLED_FROM = 2
MAX_MODELLED = 5_000
"""The Gaussian process takes over after so many trials (the configuration as it is, and one picked by the dice), and
looks at every free configuration of a space of at most so many: 20 ms for a thousand of them."""

MAX_ASKS = 40
"""Suggestions of the optimiser that may turn out to be tried or forbidden before a free one is picked by the dice."""

MAX_ENUMERATED = 20_000
"""Configurations to look through for a free one: about 0.1 s."""


def propose_tuning(request: ProposalRequest) -> Proposal:
    """The parent's source with the next configuration, or the failure `exhausted` where there is none."""
    parent = request.parents[0]
    space = read_space(parent.source)
    if space is None:
        return Proposal(failure=Failure.EXHAUSTED, detail="the parent declares no tunables")
    trials = (Trial(space.defaults, parent.speedup), *request.trials)
    params = hinted(space, trials, request.hints) or suggest(space, trials, request.seed)
    if params is None:
        return Proposal(failure=Failure.EXHAUSTED, detail=f"all configurations tried ({space.size} before constraints)")
    plan = "tune: " + ", ".join(f"{name}={value!r}" for name, value in params.items())
    return Proposal(source=with_values(parent.source, params), plan=plan, params=params)


def hinted(space: Space, trials: Sequence[Trial], hints: Sequence[Params]) -> dict[str, ParamValue] | None:
    """The first configuration that won elsewhere and is allowed and untried here; None when none is left.

    A sibling's best is a better start than dice: kernels of one family like the same blocks and chunks.
    """
    tried = {_key(trial.params) for trial in trials}
    fitting = (dict(hint) for hint in hints if space.allows(hint))
    return next((hint for hint in fitting if _key(hint) not in tried), None)


def suggest(space: Space, trials: Sequence[Trial], seed: int) -> dict[str, ParamValue] | None:
    """A configuration that is allowed and not among the trials, or None when there is none left."""
    tried = {_key(trial.params) for trial in trials}
    free = _free(space, tried, seed)
    if free is None:
        return None
    if space.size <= MAX_MODELLED:
        return _expected_best(space, trials, tried, seed) or free
    if len(trials) >= NEIGHBOURS_FROM and len(trials) % MODEL_PERIOD:
        neighbour = _neighbour(space, trials, tried, seed)
        if neighbour is not None:
            return neighbour
    return _ask(space, trials, tried, seed) or free


def _expected_best(space: Space, trials: Sequence[Trial], tried: set[str], seed: int) -> dict[str, ParamValue] | None:
    """The free configuration from which the greatest improvement is expected, or None while too little is known."""
    known = [trial for trial in trials if space.allows(trial.params)]
    scores = [math.log(trial.speedup) for trial in known if trial.speedup]
    if len(known) < MODELLED_FROM or len(set(scores)) < 2:
        return None
    free = [params for params in space.configurations() if _key(params) not in tried]
    # A failed configuration counts as the worst one seen: its neighbours are poor bets, how poor nobody knows.
    values = [math.log(trial.speedup) if trial.speedup else min(scores) for trial in known]
    places = [_places(space, trial.params) for trial in known]
    gains = surrogate.expected_improvements(places, values, [_places(space, params) for params in free])
    short = max(gains) - 1e-9 * abs(max(gains))  # rounding may leave a gain just below zero
    likely = [params for params, gain in zip(free, gains, strict=True) if not gain < short]
    return random.Random(f"{seed}-{len(trials)}").choice(likely)


def _places(space: Space, params: Params) -> list[float]:
    """Each value as its place in its list, from 0 to 1."""
    return [index / max(1, len(space.values[name]) - 1) for name, index in _indices(space, params).items()]


def _neighbour(space: Space, trials: Sequence[Trial], tried: set[str], seed: int) -> dict[str, ParamValue] | None:
    """An untried configuration one declared value away from the best one, or None where there is none."""
    measured = [trial for trial in trials if trial.speedup and space.allows(trial.params)]
    best = max(measured, key=lambda trial: trial.speedup or 0.0, default=None)
    if best is None:
        return None
    near: list[dict[str, ParamValue]] = []
    for name, choices in space.values.items():
        here = choices.index(best.params[name])
        near += [{**best.params, name: choices[i]} for i in (here - 1, here + 1) if 0 <= i < len(choices)]
    left = [params for params in near if space.allows(params) and _key(params) not in tried]
    return random.Random(f"{seed}-{len(trials)}").choice(left) if left else None


def _ask(space: Space, trials: Sequence[Trial], tried: set[str], seed: int) -> dict[str, ParamValue] | None:
    """What the model suggests, or None where it suggests only what is tried or not allowed."""
    study = _study(space, trials, seed)
    for _ in range(MAX_ASKS):
        asked = study.ask(_distributions(space))
        params = {name: choices[asked.params[name]] for name, choices in space.values.items()}
        if space.allows(params) and _key(params) not in tried:
            return params
        study.tell(asked, state=_optuna().trial.TrialState.FAIL)
    return None


def _optuna() -> ModuleType:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _study(space: Space, trials: Sequence[Trial], seed: int) -> optuna.Study:
    lib = _optuna()
    sampler = lib.samplers.TPESampler(seed=(seed * 1_000_003 + len(trials)) % 2**32, n_startup_trials=STARTUP_TRIALS)
    study: optuna.Study = lib.create_study(direction="maximize", sampler=sampler)
    scores = [math.log(trial.speedup) for trial in trials if trial.speedup]
    # A failed configuration counts as the worst one seen: its neighbours are poor bets, how poor nobody knows.
    worst = min(scores, default=0.0)
    for trial in trials:
        if space.allows(trial.params):
            study.add_trial(
                lib.trial.create_trial(
                    params=_indices(space, trial.params),
                    distributions=_distributions(space),
                    value=math.log(trial.speedup) if trial.speedup else worst,
                )
            )
    return study


def _distributions(space: Space) -> dict[str, optuna.distributions.BaseDistribution]:
    """Each tunable as the index of its value: neighbours in a declared list of sizes are neighbours for the model."""
    lib = _optuna()
    return {name: lib.distributions.IntDistribution(0, len(choices) - 1) for name, choices in space.values.items()}


def _indices(space: Space, params: Params) -> dict[str, int]:
    return {name: choices.index(params[name]) for name, choices in space.values.items()}


def _free(space: Space, tried: set[str], seed: int) -> dict[str, ParamValue] | None:
    """Some allowed configuration that was not tried, picked by the dice: the proof that the space is not exhausted."""
    dice = random.Random(f"{seed}-{len(tried)}")
    if space.size <= MAX_ENUMERATED:
        left = [params for params in space.configurations() if _key(params) not in tried]
        return dice.choice(left) if left else None
    names = list(space.values)
    for _ in range(MAX_ENUMERATED // 4):
        params = {name: dice.choice(space.values[name]) for name in names}
        if space.allows(params) and _key(params) not in tried:
            return params
    some = islice(space.configurations(), MAX_ENUMERATED)
    return next((params for params in some if _key(params) not in tried), None)


def _key(params: Params) -> str:
    return json.dumps(dict(params), sort_keys=True)
