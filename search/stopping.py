"""When a job ends and why: caps, the target, stagnation, and having nothing left to try.

Two kinds of end. Caps on the machine's time, the target and a cancel end the job at once; what is in flight is dropped.
The other rules only *hold* it: nothing new is started, what is paid for is still judged, and then the job ends.
"""

from __future__ import annotations

from search.tree import Tree
from search.types import Failure, JobView, ProposerKind, StopReason

MAX_FREE_REJECTIONS_PER_CANDIDATE = 3
"""Duplicates and the like give their place in the budget back, so they need a bound of their own: every job ends."""

MAX_PROVIDER_ERRORS = 5
"""Failures in a row, after the first batch of calls that were in flight together, before the providers count as dead.
Each of them comes after the retries inside one call."""


def stop_now(job: JobView, tree: Tree) -> StopReason | None:
    """The reason to end the job at once, whatever is in flight."""
    if job.cancel_requested:
        return StopReason.CANCELLED
    if job.stop.target_speedup is not None and tree.best and (tree.best.speedup or 0.0) >= job.stop.target_speedup:
        return StopReason.TARGET_REACHED
    if job.budget.wall_s is not None and job.elapsed_s >= job.budget.wall_s:
        return StopReason.BUDGET_WALL
    if job.budget.gpu_s is not None and job.gpu_s >= job.budget.gpu_s:
        return StopReason.BUDGET_GPU
    return None


def hold(job: JobView, tree: Tree) -> StopReason | None:
    """The reason to start nothing new. The job ends with it once nothing is in flight."""
    if tree.spent >= job.budget.candidates:
        return StopReason.BUDGET_CANDIDATES
    spent = models_spent(job, tree)
    if spent is not None:
        return spent
    if job.stop.stagnation is not None and tree.since_improvement >= job.stop.stagnation:
        return StopReason.STAGNATED
    if tree.free_rejections >= MAX_FREE_REJECTIONS_PER_CANDIDATE * job.budget.candidates:
        return out_of_ideas(job, tree)
    return None


def models_spent(job: JobView, tree: Tree) -> StopReason | None:
    """The cap on language models that is used up, or the key's.

    Money and tokens are known when a call is over, so they can be overshot by the calls in flight and by no more. Calls
    are counted when they start; a proposal that still waits for its worker is about to start one.
    """
    if job.key_over is not None:
        return StopReason.BUDGET_KEY
    if not job.models:
        return None
    if job.budget.usd is not None and job.cost_usd >= job.budget.usd:
        return StopReason.BUDGET_USD
    if job.budget.tokens is not None and job.llm_tokens >= job.budget.tokens:
        return StopReason.BUDGET_TOKENS
    if job.budget.calls is not None and job.llm_calls + tree.proposing_models >= job.budget.calls:
        return StopReason.BUDGET_CALLS
    return None


def out_of_ideas(job: JobView, tree: Tree) -> StopReason:
    """The reason to end a job whose policy has nothing left to try; an error where nothing but failures ever came."""
    nothing_came = all(node.free for node in tree.nodes)
    crashed = any(node.failure == Failure.PROVIDER_ERROR for node in tree.nodes)
    return StopReason.ERROR if providers_dead(job, tree) or (nothing_came and crashed) else StopReason.EXHAUSTED


def providers_dead(job: JobView, tree: Tree) -> bool:
    """Whether asking the job's models again is pointless. An outside agent among them is never dead, only away."""
    return bool(job.models) and ProposerKind.ASK_TELL not in job.models and models_dead(job, tree)


def nobody_to_ask(job: JobView, tree: Tree) -> bool:
    """Whether none of the job's models will propose anything more: the providers are dead, and the agents have said
    that they have nothing left."""
    if ProposerKind.ASK_TELL not in job.models:
        return providers_dead(job, tree)
    return tree.asks_exhausted and (len(job.models) == 1 or models_dead(job, tree))


def models_dead(job: JobView, tree: Tree) -> bool:
    """Whether language models have failed so often in a row that asking again is pointless.

    With N slots the first N failures may come from one short outage, so only those after them count.
    """
    return tree.provider_errors >= MAX_PROVIDER_ERRORS + max(job.slots, 1) - 1
