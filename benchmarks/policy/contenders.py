"""Who is compared: the policies that a job can ask for, and the default with each of its levers switched in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from search.policies import POLICIES, policy_for
from search.policies.levers import Levers
from search.policies.uct import Uct
from search.policy import EnsemblePolicy, Policy
from search.types import Budget, JobView, PolicyName, Target

CYCLE = "cycle"
"""`search.policy.EnsemblePolicy`: a fixed cycle of operators and weighted parents."""


USUAL = "as it is"
"""The default with the levers that it has."""

NOT_IN_REPLAY = frozenset({"port", "models"})
"""Levers that a pool cannot exercise: it has one model, and no kernels of other targets."""


def policies() -> dict[str, Policy]:
    """Every policy by its name."""
    return {**{str(name): policy for name, policy in POLICIES.items()}, CYCLE: EnsemblePolicy()}


def default_name() -> str:
    """The name of the policy that a job with models gets when it asks for none."""
    job = JobView("", Target("cpu", "cpp"), Budget(30), models=("any",), policy=PolicyName.DEFAULT)
    chosen = policy_for(job)
    return next(
        (name for name, policy in policies().items() if policy == chosen or type(policy) is type(chosen)), "other"
    )


def ablations() -> Mapping[str, Policy]:
    """The default, and the default with each lever that a pool can exercise switched: off where it is on, or on."""
    found: dict[str, Policy] = {USUAL: Uct()}
    for field in fields(Levers):
        if field.name not in NOT_IN_REPLAY:
            on = getattr(Levers(), field.name)
            found[f"{'no' if on else 'with'} {field.name}"] = Uct(levers=Levers(**{field.name: not on}))
    return found
