"""Kernels of other targets: carried over once each, as they are where that can work, by a model where it cannot."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.policies import POLICIES
from search.policies.levers import Levers
from search.policies.uct import Uct
from search.policy import BuiltinPolicy, EnsemblePolicy, Policy
from search.porting import MAX_PORTS, next_port, port_as_it_is
from search.proposing import Parent
from search.tree import Tree
from search.types import Failure, Node, Operator, PolicyName, Portable, ProposerKind, State, Target, Verdict
from tests.unit.search.test_prompts import SOURCE, request
from tests.unit.search.worlds import World, job_view

BUILTIN, LLM = ProposerKind.BUILTIN, ProposerKind.LLM
SIBLING = Portable("cand_sibling", Target("nvidia-a100", "triton"))
FOREIGN = Portable("cand_foreign", Target("nvidia-h100", "cuda"))
JOB = job_view(12, target=Target("nvidia-h100", "triton"), models=("a",), portable=(SIBLING, FOREIGN))


def ported(ordinal: int, kernel: Portable, proposer: str, **changes: object) -> Node:
    made = Node(
        f"c{ordinal}", ordinal, Operator.PORT, proposer, parents=(kernel.id,), state=State.EVALUATED, verdict="ok"
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_kernel_in_the_targets_language_is_first_judged_as_it_is_and_the_other_is_a_models() -> None:
    assert next_port(JOB, Tree([]), asking=True) == (SIBLING, BUILTIN)
    one = ported(0, SIBLING, BUILTIN, speedup=1.2)
    assert next_port(JOB, Tree([one]), asking=True) == (FOREIGN, LLM)
    assert next_port(JOB, Tree([one, ported(1, FOREIGN, LLM)]), asking=True) is None


def test_a_model_is_asked_for_what_does_not_pass_as_it_is() -> None:
    flying = ported(0, SIBLING, BUILTIN, state=State.EVALUATING, verdict=None)
    only = replace(JOB, portable=(SIBLING,))
    assert next_port(only, Tree([flying]), asking=True) is None
    failed = replace(flying, state=State.EVALUATED, verdict=Verdict.BUILD_ERROR)
    assert next_port(only, Tree([failed]), asking=True) == (SIBLING, LLM)
    assert next_port(only, Tree([failed]), asking=False) is None
    assert next_port(replace(only, builtin=False), Tree([]), asking=True) == (SIBLING, LLM)


def test_a_providers_failure_is_no_try_and_any_other_is() -> None:
    only = replace(JOB, portable=(FOREIGN,))
    lost = ported(0, FOREIGN, LLM, state=State.REJECTED, verdict=None, failure=Failure.PROVIDER_ERROR)
    assert next_port(only, Tree([lost]), asking=True) == (FOREIGN, LLM)
    assert next_port(only, Tree([replace(lost, failure=Failure.NO_CODE)]), asking=True) is None


NAMED: list[Policy] = [POLICIES[name] for name in (PolicyName.UCT, PolicyName.ISLANDS, PolicyName.GREEDY)]


@pytest.mark.parametrize("policy", [EnsemblePolicy(), *NAMED])
def test_ports_come_before_the_models_seeds(policy: Policy) -> None:
    seed = Node("c0", 0, Operator.SEED, BUILTIN, state=State.EVALUATED, verdict="ok", speedup=1.0)
    first = policy.next_expansion(JOB, Tree([seed]))
    assert first is not None
    assert (first.operator, first.proposer, first.parents) == (Operator.PORT, BUILTIN, (SIBLING.id,))
    tree = Tree([seed, ported(1, SIBLING, BUILTIN, speedup=1.1), ported(2, FOREIGN, LLM, speedup=1.3)])
    then = policy.next_expansion(JOB, tree)
    assert then is not None
    assert then.operator == Operator.SEED


def test_without_models_only_what_may_run_as_it_is_is_carried_over() -> None:
    alone = replace(JOB, models=())
    for policy in (BuiltinPolicy(), *NAMED):
        first = policy.next_expansion(alone, Tree([]))
        assert first is not None
        assert (first.operator, first.parents) == (Operator.PORT, (SIBLING.id,))
        then = policy.next_expansion(alone, Tree([ported(0, SIBLING, BUILTIN, verdict=Verdict.TIMEOUT)]))
        assert then is not None
        assert then.operator == Operator.SEED


def test_the_lever_and_best_of_n_carry_nothing_over() -> None:
    for policy in (Uct(levers=Levers(port=False)), POLICIES[PolicyName.BEST_OF_N]):
        world = World(JOB, random.Random(3), policy=policy)
        world.run()
        assert not [node for node in world.tree if node.operator == Operator.PORT]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    policy=st.sampled_from(list(PolicyName)),
    models=st.sampled_from([(), ("a",), ("a", "b")]),
    builtin=st.booleans(),
    kernels=st.lists(st.sampled_from([SIBLING, FOREIGN, Portable("x", Target("cpu", "cpp"))]), unique=True),
)
def test_no_kernel_is_carried_over_twice_by_the_same_and_every_search_ends(
    seed: int, policy: str, models: tuple[str, ...], builtin: bool, kernels: list[Portable]
) -> None:
    job = replace(JOB, models=models, builtin=builtin, policy=policy, portable=tuple(kernels), slots=3, seed=seed)
    world = World(job, random.Random(seed), failing=0.4, provider_down=0.2)
    world.run()
    ports = [node for node in world.tree if node.operator == Operator.PORT and node.failure != Failure.PROVIDER_ERROR]
    assert len({(node.parents, node.proposer) for node in ports}) == len(ports) <= 2 * MAX_PORTS
    assert {node.parents[0] for node in ports} <= {kernel.id for kernel in kernels[:MAX_PORTS]}
    assert all(node.proposer == LLM or _language(kernels, node) == "triton" for node in ports)


def _language(kernels: list[Portable], node: Node) -> str:
    return next(kernel.target.language for kernel in kernels if kernel.id == node.parents[0])


def test_as_it_is_means_unchanged() -> None:
    parent = Parent(SOURCE, target=SIBLING.target)
    proposal = port_as_it_is(request("port", "triton", parents=(parent,)))
    assert (proposal.source, proposal.plan) == (SOURCE, "the certified kernel of nvidia-a100 as it is")
