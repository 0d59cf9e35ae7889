"""Which kernel of another target is carried over next, and by whom: the start that a certified sibling gives a job.

In the target's own language (another GPU) a kernel is first judged as it is, which costs no call; a model is asked for
one that does not pass like that, and for one in another language. Tuning and refining make it a kernel of this target.
"""

from __future__ import annotations

from search.proposing import Proposal, ProposalRequest
from search.tree import Tree
from search.types import Failure, JobView, Node, Operator, Portable, ProposerKind

MAX_PORTS = 2
"""So many kernels are carried over: each takes the place of a seed."""


def next_port(job: JobView, tree: Tree, *, asking: bool) -> tuple[Portable, ProposerKind] | None:
    """The kernel to carry over and who does it; None when all were tried. `asking`: whether models may be asked."""
    for kernel in job.portable[:MAX_PORTS]:
        tried = [node for node in tree.nodes if node.operator == Operator.PORT and kernel.id in node.parents]
        proposer = _proposer(kernel, tried, job, asking=asking)
        if proposer is not None:
            return kernel, proposer
    return None


def _proposer(kernel: Portable, tried: list[Node], job: JobView, *, asking: bool) -> ProposerKind | None:
    """Who carries the kernel over now; nobody when it was tried or is under way."""
    as_it_is = [node for node in tried if node.proposer == ProposerKind.BUILTIN]
    if kernel.target.language == job.target.language and (job.builtin or not job.models):
        if not as_it_is:
            return ProposerKind.BUILTIN
        if any(node.ok or node.in_flight for node in as_it_is):
            return None
    asked = any(node.proposer != ProposerKind.BUILTIN and node.failure != Failure.PROVIDER_ERROR for node in tried)
    return ProposerKind.LLM if asking and not asked else None


def port_as_it_is(request: ProposalRequest) -> Proposal:
    """The parent's source for the request's target, unchanged: what the built-in proposer makes of a `port`."""
    (parent,) = request.parents
    origin = f"of {parent.target.hardware} " if parent.target is not None else ""
    return Proposal(source=parent.source, plan=f"the certified kernel {origin}as it is")
