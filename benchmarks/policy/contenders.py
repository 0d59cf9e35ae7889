"""Who is compared: the policies that a job can ask for, the default, and UCT with each lever off in turn."""

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
    """UCT with all levers, and with each off in turn that a pool can exercise."""
    names = [field.name for field in fields(Levers) if field.name not in NOT_IN_REPLAY]
    off = {f"no {name}": Uct(levers=Levers(**{name: False})) for name in names}
    return {"all levers": Uct(), **off}
