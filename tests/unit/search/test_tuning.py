"""The tuner: allowed, never twice, deterministic, better than the dice, and honest about an exhausted space."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from search.proposing import Parent, ProposalRequest, Trial
from search.tunables import Space, read_space
from search.tuning import propose_tuning, suggest
from search.types import Failure, Operator, Params, Target

SPACE = Space(
    values={"BLOCK": (16, 32, 64, 128, 256, 512), "WARPS": (1, 2, 4, 8), "STAGES": (1, 2, 3, 4, 5)},
    defaults={"BLOCK": 16, "WARPS": 1, "STAGES": 1},
    constraints=("BLOCK * WARPS <= 1024",),
)


def speedup(params: Params) -> float:
    """A smooth hill with its top (2.0) at 128, 4, 3."""
    block, warps, stages = (float(params[name]) for name in ("BLOCK", "WARPS", "STAGES"))
    return 2.0 * math.exp(
        -0.2 * (math.log2(block) - 7) ** 2 - 0.2 * (math.log2(warps) - 2) ** 2 - 0.1 * (stages - 3) ** 2
    )


def tune(seed: int, steps: int) -> list[Trial]:
    trials: list[Trial] = [Trial(SPACE.defaults, speedup(SPACE.defaults))]
    for _ in range(steps):
        params = suggest(SPACE, trials, seed)
        assert params is not None
        trials.append(Trial(params, speedup(params)))
    return trials


spaces = st.dictionaries(
    st.sampled_from("ABC"),
    st.lists(st.integers(1, 9) | st.booleans() | st.just("s"), min_size=1, max_size=4),
    min_size=1,
)


@settings(max_examples=25, deadline=None)
@given(spaces, st.integers(0, 1000), st.sampled_from(["A > 2", "A != 1"]))
def test_a_space_is_used_up_without_a_repetition_and_then_there_is_nothing(
    declared: dict[str, list[int | bool | str]], seed: int, constraint: str
) -> None:
    lines = [f"{name} = {values[0]!r}" for name, values in declared.items()]
    rules = [constraint] if "A" in declared else []
    space = read_space("\n".join([f"TUNABLES = {declared!r}", f"CONSTRAINTS = {rules!r}", *lines]))
    assert space is not None
    allowed = list(space.configurations())
    trials: list[Trial] = []
    dice = random.Random(seed)
    for _ in allowed:
        params = suggest(space, trials, seed)
        assert params is not None
        assert space.allows(params)
        assert repr(sorted(params.items())) not in {repr(sorted(trial.params.items())) for trial in trials}
        trials.append(Trial(params, dice.choice([None, dice.random()])))
    assert suggest(space, trials, seed) is None


def test_the_same_trials_give_the_same_suggestion() -> None:
    assert tune(3, 9) == tune(3, 9)
    assert tune(3, 9) != tune(4, 9)


def test_it_beats_the_dice() -> None:
    def dice(seed: int) -> float:
        rng = random.Random(seed)
        return max(speedup(params) for params in rng.sample(list(SPACE.configurations()), 13))

    tuned = statistics.mean(max(trial.speedup or 0.0 for trial in tune(seed, 12)) for seed in range(6))
    assert tuned > statistics.mean(map(dice, range(200))) + 0.1


def test_a_space_too_large_to_list_still_gives_new_configurations() -> None:
    space = Space({f"P{n}": tuple(range(20)) for n in range(12)}, {f"P{n}": 0 for n in range(12)}, ("P0 != P1",))
    trials: list[Trial] = []
    for step in range(6):
        params = suggest(space, trials, seed=1)
        assert params is not None
        assert space.allows(params)
        assert params not in [trial.params for trial in trials]
        trials.append(Trial(params, 1.0 + step))


SOURCE = "TUNABLES = {'BLOCK': [64, 128]}\nBLOCK = 64\n"


def request(source: str, *trials: Trial) -> ProposalRequest:
    return ProposalRequest(
        problem_name="softmax",
        problem_source="",
        target=Target("cpu", "cpp"),
        operator=Operator.TUNE,
        parents=(Parent(source=source, verdict="ok", speedup=1.1),),
        trials=trials,
    )


def test_a_proposal_is_the_parent_with_another_configuration() -> None:
    proposal = propose_tuning(request(SOURCE))
    assert proposal.source == SOURCE.replace("BLOCK = 64", "BLOCK = 128")
    assert proposal.params == {"BLOCK": 128}
    assert proposal.plan == "tune: BLOCK=128"


def test_an_exhausted_or_missing_space_is_a_failure_with_a_name() -> None:
    assert propose_tuning(request(SOURCE, Trial({"BLOCK": 128}))).failure == Failure.EXHAUSTED
    assert propose_tuning(request("x = 1")).failure == Failure.EXHAUSTED


def test_what_won_elsewhere_is_tried_first_where_it_fits_and_once() -> None:
    source = "TUNABLES = {'BLOCK': [64, 128, 256]}\nBLOCK = 64\n"
    hints: tuple[Params, ...] = ({"BLOCK": 96}, {"OTHER": 1}, {"BLOCK": 64}, {"BLOCK": 256}, {"BLOCK": 128})
    for seed in range(5):
        request = ProposalRequest(
            "p", "", Target("cpu", "cpp"), Operator.TUNE, parents=(Parent(source),), seed=seed, hints=hints
        )
        made = propose_tuning(request)
        assert made.params == {"BLOCK": 256} and "BLOCK = 256" in (made.source or "")
        again = replace(request, trials=(Trial({"BLOCK": 256}, 0.5),))
        assert propose_tuning(again).params == {"BLOCK": 128}
