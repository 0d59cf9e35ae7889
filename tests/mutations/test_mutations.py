"""The catalog speaks of code that is there; and a few of its mutations, planted. `make mutations` plants all."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from tests.mutations.__main__ import run_all
from tests.mutations.catalog import MUTATIONS, ROOT, Mutation, Stale


def test_the_catalog_is_of_a_size() -> None:
    assert len(MUTATIONS) >= 15
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_has_something_to_replace_and_tests_that_exist(mutation: Mutation) -> None:
    mutation.check()
    assert mutation.caught_by
    for test in mutation.caught_by:
        file, _, name = test.partition("::")
        functions = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        assert name.partition("[")[0] in {each.name for each in functions if isinstance(each, ast.FunctionDef)}


def test_a_mutation_whose_text_is_gone_says_so() -> None:
    gone = replace(MUTATIONS[0], old="AND nobody = :writes_this")
    with pytest.raises(Stale, match=f"{gone.name}: its text is no longer in db/ledger.sql finish"):
        gone.check()


@pytest.mark.exhaustive
@pytest.mark.timeout(600)  # five test runs, each with a Postgres of its own
def test_planted_mutations_are_caught_and_one_that_nothing_notices_is_not() -> None:
    named = {mutation.name: mutation for mutation in MUTATIONS}
    caught = [named[name] for name in ("finish without the token", "no lock of the job", "no unique evaluation")]
    blind = ("tests/integration/db/test_ledger.py::test_depths_count_what_waits",)
    unseen = replace(named["renew without the token"], caught_by=blind)
    assert run_all([*caught, unseen]) == [unseen.name]
