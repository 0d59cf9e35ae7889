"""What to try next: small, interchangeable policies. Each sees the whole tree and names one expansion, or nothing.

A policy is deterministic: the same job and tree give the same answer. `None` means that there is nothing to start now;
if nothing is in flight either, the job is out of ideas.

`BuiltinPolicy` needs no model: seeds, then tuning of the best. `EnsemblePolicy` asks language models for seeds,
repairs, edits and rewrites, and has the built-in proposer beside them. Those that a job can ask for by name are in
`search.policies`, built from the same parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from search.asking import answering
from search.lineage import repairable, selection_pool
from search.porting import next_port
from search.stopping import nobody_to_ask
from search.tree import Tree
from search.types import BY_MODEL, Expansion, Failure, JobView, Node, Operator, ProposerKind

SEED_SHARE = 0.5
"""Built-in seeds take up to half of the budget before tuning starts, so that a budget of 8 sees both."""

MAX_VAIN_IN_A_ROW = 5
"""A space whose last suggestions were all known sources, or a proposer that crashed so often, has no more to give."""

MAX_MODEL_SEEDS, OPENING_SEEDS = 6, 3
"""Seeds before any step: one for each model up to the first number, and as many as the second where there are fewer."""

MIN_BUDGET_FOR_BUILTIN_SEED = 4
"""A job with models and fewer candidates than this spends them all on the models."""

SELECTION_SHARPNESS = 4.0
"""Steepness of parent selection in log-speedup: a kernel twice as fast as the median weighs 0.94 against its 0.5."""

MAX_EXPONENT = 500.0
"""Beyond it e^x is no float any more."""

MODEL_CYCLE = (
    Operator.REFINE,
    Operator.REPAIR,
    Operator.REFINE,
    Operator.TUNE,
    Operator.REFINE,
    Operator.REPAIR,
    Operator.REWRITE,
    Operator.TUNE,
)
"""Small steps to large ones 3 to 1; repairs often enough that good ideas with a bug are not lost."""

FROM_NOTHING = frozenset({Operator.SEED, Operator.TRANSLATE, Operator.PORT})
"""They have no parent in their own tree."""

MODEL_FALLBACKS = (Operator.REPAIR, Operator.REFINE, Operator.SEED)

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0


class Policy(Protocol):
    """Names the next expansion."""

    def next_expansion(self, job: JobView, tree: Tree) -> Expansion | None:
        """The one thing to start now, or None."""
        ...


def default_policy(job: JobView) -> Policy:
    """The policy for a job that asks for none."""
    return EnsemblePolicy() if job.models else BuiltinPolicy()


class BuiltinPolicy:
    """Built-in seeds up to a share of the budget, then tuning of the best space, then whatever is left of both."""

    def next_expansion(self, job: JobView, tree: Tree) -> Expansion | None:
        """The next built-in seed or tuning step."""
        ported = port(job, tree, asking=False)
        if ported is not None:
            return ported
        seeds = tree.made_by(Operator.SEED, ProposerKind.BUILTIN)
        more_seeds = not seeds_exhausted(seeds)
        if more_seeds and sum(not seed.free for seed in seeds) < builtin_share(job):
            return builtin_seed()
        tuning = next_tuning(tree)
        if tuning is not None:
            return tuning
        # A seed in flight may bring a space to tune: wait for it before spending tuning's share on further seeds.
        if more_seeds and not any(seed.in_flight for seed in seeds):
            return builtin_seed()
        return None


class EnsemblePolicy:
    """Models propose, taking turns; a built-in seed and kernels from other targets are there to beat; spaces are tuned.

    While providers fail, one call at a time probes them with growing delays; once they are dead, or agents have nothing
    more to propose, the built-in proposer, unless it is switched off, goes on alone.
    """

    def next_expansion(self, job: JobView, tree: Tree) -> Expansion | None:
        """The next proposal of a model, or of the built-in proposer beside it."""
        if wants_builtin_seed(job, tree):
            return builtin_seed()
        if nobody_to_ask(job, tree):
            return BuiltinPolicy().next_expansion(job, tree) if job.builtin else None
        if tree.provider_errors and any(n.in_flight and n.proposer == ProposerKind.LLM for n in tree.nodes):
            return None
        asking = bool(answering(job, tree))
        ported = port(job, tree, asking=asking)
        if ported is not None or not asking:
            return ported
        if model_seeds(tree) < wanted_seeds(job):
            return self._expand(Operator.SEED, job, tree)
        steps = sum(node.operator not in FROM_NOTHING for node in tree.nodes)
        wanted = MODEL_CYCLE[steps % len(MODEL_CYCLE)]
        for operator in (wanted, *MODEL_FALLBACKS):
            expansion = self._expand(operator, job, tree)
            if expansion is not None:
                return expansion
        return None

    def _expand(self, operator: Operator, job: JobView, tree: Tree) -> Expansion | None:
        """The operator applied to its best parent, or None where it has none."""
        if operator == Operator.TUNE:
            return next_tuning(tree) if job.builtin else None
        if operator == Operator.SEED:
            return by_model(from_nothing(job, tree), (), job, tree)
        parent = {
            Operator.REPAIR: next_repair,
            Operator.REFINE: next_parent,
            Operator.REWRITE: best_parent,
        }[operator](tree)
        return None if parent is None else by_model(operator, (parent.id,), job, tree)


def builtin_seed() -> Expansion:
    """The next built-in seed."""
    return Expansion(Operator.SEED, ProposerKind.BUILTIN)


def seed_index(tree: Tree, node: Node) -> int:
    """Which entry of the built-in menu a built-in seed is: its rank among the job's built-in seeds."""
    return sum(seed.ordinal < node.ordinal for seed in tree.made_by(Operator.SEED, ProposerKind.BUILTIN))


def next_tuning(tree: Tree) -> Expansion | None:
    """One more step in the best space that is not exhausted.

    Giving the runner-up one step of four was behind in 83 to 94 % of searches with 8 or 24 configurations a step, and
    level with one (recorded live searches, 2 problems, 20 seeds, budgets 8 to 30).
    """
    arm = next(iter(open_spaces(tree)), None)
    return None if arm is None else tuning(arm)


def tuning(arm: Node) -> Expansion:
    """One more configuration of the node's space."""
    return Expansion(Operator.TUNE, ProposerKind.BUILTIN, parents=(arm.id,))


def open_spaces(tree: Tree) -> list[Node]:
    """The candidates whose tunables have configurations left to try, the best tuned first."""
    arms = [node for node in tree.nodes if has_space(node) and not space_exhausted(tree, node)]
    return sorted(arms, key=lambda arm: (-tuned_speedup(tree, arm), arm.ordinal))


def next_repair(tree: Tree) -> Node | None:
    """The failed candidate to repair: the lineage with the fewest tries, the oldest of equals."""
    return next(iter(repairable(tree)), None)


def next_parent(tree: Tree) -> Node | None:
    """The parent for a small step: fast, and not yet tried often (weighted as in ShinkaEvolve, without the dice)."""
    pool = selection_pool(tree)
    steps = [[c for c in tree.children(node, Operator.REFINE, Operator.REWRITE) if not c.free] for node in pool]
    weights = parent_weights([log_speedup(node) for node in pool], [len(children) for children in steps])
    best = max(zip(weights, pool, strict=True), key=lambda pair: (pair[0], -pair[1].ordinal), default=None)
    return None if best is None else best[1]


def parent_weights(
    fitness: Sequence[float], children: Sequence[int], sharpness: float = SELECTION_SHARPNESS
) -> list[float]:
    """How much each parent deserves a child: sigmoid(sharpness (fitness - median)) / (1 + children).

    The weighted parents of ShinkaEvolve (arXiv 2509.19349).
    """
    median = sorted(fitness)[len(fitness) // 2] if fitness else 0.0
    steep = [max(-MAX_EXPONENT, min(MAX_EXPONENT, sharpness * (value - median))) for value in fitness]
    return [1 / (1 + math.exp(-x)) / (1 + count) for x, count in zip(steep, children, strict=True)]


def log_speedup(node: Node) -> float:
    """The scale on which gains add up; 0, as fast as the baseline, for what was accepted and not timed."""
    return math.log(max(node.speedup or 1.0, 1e-6))


def best_parent(tree: Tree) -> Node | None:
    """The champion so far; where nothing is timed, the oldest accepted candidate."""
    return tree.best or next(iter(selection_pool(tree)), None)


def by_model(
    operator: Operator, parents: tuple[str, ...], job: JobView, tree: Tree, model: str | None = None
) -> Expansion:
    """The operator, applied by a model or by the one whose turn it is, after a pause where providers fail; `ask/tell`
    is a turn of whoever asks for it."""
    model = model or _next_model(job, tree)
    if model == ProposerKind.ASK_TELL:
        return Expansion(operator, ProposerKind.ASK_TELL, None, parents)
    errors = tree.provider_errors
    delay_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (errors - 1)) if errors else 0.0
    return Expansion(operator, ProposerKind.LLM, model, parents, delay_s)


def port(job: JobView, tree: Tree, *, asking: bool) -> Expansion | None:
    """The next kernel to carry over from another target, or None. `asking`: whether models may be asked."""
    found = next_port(job, tree, asking=asking)
    if found is None:
        return None
    kernel, proposer = found
    if proposer == ProposerKind.BUILTIN:
        return Expansion(Operator.PORT, proposer, parents=(kernel.id,))
    return by_model(Operator.PORT, (kernel.id,), job, tree)


def from_nothing(job: JobView, tree: Tree) -> Operator:
    """How a model is asked for a candidate without a parent: `seed` or, in between when no seed works, `translate`.

    Of what is asked for after the seeds that were wanted every second one is a plain translation of the reference, as
    long as nothing was accepted: the surest way to a first kernel that works.
    """
    seeds = tree.made_by(Operator.SEED, *BY_MODEL)
    if any(node.ok for node in tree.nodes) or all(node.in_flight or node.free for node in seeds):
        return Operator.SEED
    more = model_seeds(tree) - wanted_seeds(job)
    translated = sum(not node.free for node in tree.made_by(Operator.TRANSLATE, *BY_MODEL))
    return Operator.TRANSLATE if more >= 0 and translated <= more else Operator.SEED


def _next_model(job: JobView, tree: Tree) -> str:
    """Round robin from the job's seed on, past models that keep failing while another one answers."""
    healthy = healthy_models(job, tree)
    asked = sum(node.proposer in BY_MODEL for node in tree.nodes)
    return healthy[(job.seed + asked) % len(healthy)]


def healthy_models(job: JobView, tree: Tree) -> list[str]:
    """The models that can be asked now and answer; where none answers, all that can be asked."""
    models = answering(job, tree) or list(job.models)
    return [model for model in models if tree.model_errors(model) < 2] or models


def wants_builtin_seed(job: JobView, tree: Tree) -> bool:
    """Whether a job with models still lacks the one built-in seed that gives them something to beat."""
    enough = job.builtin and job.budget.candidates >= MIN_BUDGET_FOR_BUILTIN_SEED
    return enough and not tree.made_by(Operator.SEED, ProposerKind.BUILTIN)


def model_seeds(tree: Tree) -> int:
    """How many seeds of models there are, those that gave their place back aside."""
    return sum(not seed.free for seed in tree.made_by(Operator.SEED, *BY_MODEL))


def wanted_seeds(job: JobView) -> int:
    """A few, at most a quarter of the budget, but one for each model."""
    return max(min(len(job.models), MAX_MODEL_SEEDS), min(OPENING_SEEDS, job.budget.candidates // 4))


def builtin_share(job: JobView) -> int:
    """How many built-in seeds come before tuning."""
    return math.ceil(job.budget.candidates * SEED_SHARE)


def has_space(node: Node) -> bool:
    """Whether it is a kernel with tunables, accepted and timed; its tuned variants share its space."""
    return node.ok and node.tunable and node.speedup is not None and node.operator != Operator.TUNE


def space_exhausted(tree: Tree, arm: Node) -> bool:
    """Whether the tuner has nothing new for it."""
    done = [child for child in tree.children(arm, Operator.TUNE) if not child.in_flight]
    if any(child.failure == Failure.EXHAUSTED for child in done):
        return True
    return _in_vain(done, Failure.DUPLICATE, Failure.PROVIDER_ERROR)


def seeds_exhausted(seeds: list[Node]) -> bool:
    """Whether the built-in menu, whose seeds so far these are, has come to its end."""
    if any(seed.failure == Failure.EXHAUSTED for seed in seeds):
        return True
    return _in_vain([seed for seed in seeds if not seed.in_flight], Failure.PROVIDER_ERROR)


def _in_vain(done: list[Node], *failures: Failure) -> bool:
    latest = done[-MAX_VAIN_IN_A_ROW:]
    return len(latest) == MAX_VAIN_IN_A_ROW and all(node.failure in failures for node in latest)


def tuned_speedup(tree: Tree, arm: Node) -> float:
    """The best speedup that its space has shown."""
    family = (arm, *tree.children(arm, Operator.TUNE))
    return max(node.speedup or 0.0 for node in family if node.ok)
