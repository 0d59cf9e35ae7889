"""An outside agent as one of the ensemble: the model name `ask/tell` among a job's models.

Nobody is called for its proposals. Each is an open question that somebody may take with its prompt (ask) and bring back
(tell), in seconds or never. So open questions take no slot, or an agent that is away would stop the models beside it;
their number has a bound of its own; and when nobody else can be asked either, the search waits.
"""

from __future__ import annotations

from search.stopping import models_dead
from search.tree import Tree
from search.types import JobView, ProposerKind

MAX_OPEN_ASKS = 6
"""As many as a job has seeds by models (`search.policy.MAX_MODEL_SEEDS`): a batch can hold the whole opening, and
little of the rest is decided on a tree that is old by the time the answer comes."""


def most_open_asks(job: JobView) -> int:
    """How many questions may be open at once: a quarter of the budget, at least one."""
    return min(MAX_OPEN_ASKS, max(1, job.budget.candidates // 4))


def answering(job: JobView, tree: Tree) -> list[str]:
    """The job's models that can be asked now, in the job's order.

    Without `ask/tell` while enough of its questions are open, and once an agent has said that it has nothing more to
    propose. Beside it, language models that are dead are left out; without it that is for the policies to say
    (`search.stopping.providers_dead`).
    """
    asks = ProposerKind.ASK_TELL in job.models
    may_ask = asks and not tree.asks_exhausted and tree.open_asks < most_open_asks(job)
    may_call = not (asks and models_dead(job, tree))
    return [model for model in job.models if (may_ask if model == ProposerKind.ASK_TELL else may_call)]
