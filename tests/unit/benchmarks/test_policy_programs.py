"""Genomes, their edits and their sources: what an operator may change, and what a bug does to a source."""

from __future__ import annotations

import ast
import random

import pytest

from benchmarks.policy import genome as edits
from benchmarks.policy import pool
from benchmarks.policy.genome import ALGORITHM, Genome, Space
from benchmarks.policy.problem import WORKLOAD, source_of
from benchmarks.policy.programs import SPACES
from problems.catalog import outline
from search.tunables import read_space

SPACE_LIST = list(SPACES.values())


def _apart(one: Genome, other: Genome) -> list[str]:
    return [name for (name, value), (_n, theirs) in zip(one.structure, other.structure, strict=True) if value != theirs]


@pytest.mark.parametrize("space", SPACE_LIST, ids=lambda space: space.problem)
def test_edits_change_what_their_operator_may_change(space: Space) -> None:
    for number in range(40):
        dice = random.Random(number)
        parent, partner = edits.seed(space, dice), edits.seed(space, dice)
        refined = edits.refine(space, parent, dice)
        assert len(_apart(parent, refined)) == 1 and ALGORITHM not in _apart(parent, refined)
        assert ALGORITHM in _apart(parent, edits.rewrite(space, parent, dice))
        assert edits.tune(space, parent, dice).structure == parent.structure
        crossed = edits.crossover(space, parent, partner, dice)
        for name, value in crossed.structure:
            assert value in (parent.gene(name), partner.gene(name))


def test_a_repair_mends_as_often_as_said() -> None:
    space = SPACES["softmax"]
    broken = Genome("softmax", edits.plainest(space).structure, edits.plainest(space).tunables, ("syntax",))
    mended = sum(not edits.repair(space, broken, random.Random(number)).bugs for number in range(400))
    assert abs(mended / 400 - edits.MEND_RATE) < 0.1


@pytest.mark.parametrize("space", SPACE_LIST, ids=lambda space: space.problem)
def test_every_program_is_a_candidate_with_its_tunables(space: Space) -> None:
    plain = edits.plainest(space)
    seen = set()
    for algorithm in space.genes[ALGORITHM]:
        for simd in space.genes["simd"]:
            genes = dict(plain.structure) | {ALGORITHM: algorithm, "simd": simd}
            source = space.write(Genome(space.problem, tuple(genes.items()), plain.tunables))
            tree = ast.parse(source)
            assert "@" not in source, "a placeholder was left in the C++"
            assert any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body)
            found = read_space(source)
            assert found is not None and found.defaults == dict(plain.tunables)
            seen.add(source)
    assert len(seen) == len(space.genes[ALGORITHM]) * len(space.genes["simd"])
    assert set(space.plans) == set(space.genes[ALGORITHM])


@pytest.mark.parametrize("space", SPACE_LIST, ids=lambda space: space.problem)
def test_each_bug_changes_the_source_of_some_algorithm(space: Space) -> None:
    plain = edits.plainest(space)
    for bug in space.bugs:
        for algorithm in space.genes[ALGORITHM]:
            genes = tuple((dict(plain.structure) | {ALGORITHM: algorithm, "simd": "lanes8"}).items())
            right, wrong = (Genome(space.problem, genes, plain.tunables, bugs) for bugs in ((), (bug,)))
            if space.write(right) != space.write(wrong):
                break
        else:
            pytest.fail(f"{bug} changes nothing")


def test_problems_keep_their_reference_and_get_one_small_workload() -> None:
    for space in SPACE_LIST:
        found = outline(source_of(space), space.problem)
        assert [workload.name for workload in found.spec.workloads] == [WORKLOAD]


@pytest.mark.parametrize("problem", pool.packed())
def test_recorded_programs_are_still_what_the_generator_writes(problem: str) -> None:
    records = pool.load(problem)
    for record in records[:: max(1, len(records) // 12)]:
        assert pool.fingerprint(SPACES[problem].write(record.genome)) == record.source, record.genome.key


@pytest.mark.parametrize("problem", pool.packed())
def test_every_manner_of_loops_was_accepted_by_the_judge(problem: str) -> None:
    accepted = {record.genome.gene("simd") for record in pool.load(problem) if record.ok and not record.genome.bugs}
    assert accepted == set(SPACES[problem].genes["simd"])
