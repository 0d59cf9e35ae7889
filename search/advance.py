"""The main loop of the search: read the tree, decide what to try next, say when to stop.

`advance` is a pure function of the job and its tree. The worker calls it whenever something has changed (a candidate
was judged, a proposal failed, a cancel came in) and turns the expansions into rows. It may call it any number of times:
a tree that already holds the expansions gets no more of them. Nothing waits for a generation; a slot that is free is
filled. A worker that dies loses nothing, since the tree is all the state there is.
"""

from __future__ import annotations

from collections.abc import Iterable

from search.asking import most_open_asks
from search.policies import policy_for
from search.policy import Policy
from search.stopping import hold, out_of_ideas, stop_now
from search.tree import Tree
from search.types import Decision, Expansion, JobView, Node, ProposerKind


def advance(job: JobView, tree: Iterable[Node], policy: Policy | None = None) -> Decision:
    """Decide the next expansions of a job, or why it ends.

    Never more than `job.slots` candidates are in flight, questions to outside agents aside (`search.asking` bounds
    those), and never more are made than the budget allows. With a stop reason the job is over: there are no expansions,
    and the caller cancels what is still in flight. The policy is the one that the job asks for, unless another is
    given.
    """
    grown = Tree(tree)
    reason = stop_now(job, grown)
    if reason is not None:
        return Decision(stop_reason=reason)

    policy = policy or policy_for(job)
    planned: list[Expansion] = []
    while hold(job, grown) is None:
        expansion = policy.next_expansion(job, grown)
        if expansion is None or not _has_place(expansion, job, grown):
            break
        planned.append(expansion)
        grown = grown.grown(expansion)

    if grown.in_flight:
        return Decision(expansions=tuple(planned))
    return Decision(stop_reason=hold(job, grown) or out_of_ideas(job, grown))


def _has_place(expansion: Expansion, job: JobView, tree: Tree) -> bool:
    """Whether a slot is free for it, or it is a question that may be thought about while answers wait for the device.

    An agent that brought six answers at once got its next six questions when the last of them was being judged: a
    device that took 9 s for each waited 21 of every 75 s for one that thinks for 30 (H100).
    """
    asked_meanwhile = expansion.proposer == ProposerKind.ASK_TELL and tree.in_flight < most_open_asks(job)
    return tree.occupied < max(job.slots, 1) or asked_meanwhile
