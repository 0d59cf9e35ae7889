"""The policies that a job can ask for by name. Each names the next expansion from the job and its tree alone: a policy
has no memory, and its dice are seeded by the job's seed and the size of the tree.

`moves` says what can be done at all; `operators`, `cells`, `stagnation` and `steady` are what policies are made of;
`uct`, `islands`, `archive`, `greedy`, `best_of_n` and `random_search` are policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from search.policies.archive import Archive
from search.policies.best_of_n import BestOfN
from search.policies.greedy import Greedy
from search.policies.islands import Islands
from search.policies.levers import Levers
from search.policies.random_search import RandomSearch
from search.policies.uct import Uct
from search.policy import Policy, default_policy
from search.types import JobView, PolicyName

__all__ = ["DEFAULT", "POLICIES", "Levers", "policy_for"]

POLICIES: Final[Mapping[PolicyName, Policy]] = {
    PolicyName.UCT: Uct(),
    PolicyName.ISLANDS: Islands(),
    PolicyName.ARCHIVE: Archive(),
    PolicyName.GREEDY: Greedy(),
    PolicyName.BEST_OF_N: BestOfN(),
    PolicyName.RANDOM: RandomSearch(),
}

DEFAULT: Final[PolicyName | None] = None
"""What `default` stands for; None is `search.policy.default_policy`: at equal budgets its cycle has the best medians,
and nothing that the others have beyond it is shown to help (docs/search.md)."""


def policy_for(job: JobView) -> Policy:
    """The policy that the job asks for."""
    name = DEFAULT if job.policy == PolicyName.DEFAULT else PolicyName(job.policy)
    return default_policy(job) if name is None else POLICIES[name]
