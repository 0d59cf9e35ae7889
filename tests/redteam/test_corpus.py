"""The corpus is whole, and a sample of it gets the verdicts that it must get from the real judge."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from problems.catalog import bundled, outline
from tests.redteam import corpus
from tests.redteam.entry import Entry
from tests.redteam.problems import PROBLEMS, source_of
from tests.redteam.quick import CHEATS as CHEATS_AT_ONCE
from tests.redteam.quick import HONEST as HONEST_AT_ONCE
from tests.redteam.quick import quick
from tests.redteam.runner import Outcome, judge_one
from worker.judge.client import Judge, JudgeOptions

CHEATS, HONEST = corpus.cheating(), corpus.honest_ones()
EVERY = CHEATS + HONEST
BY_ID = {entry.id: entry for entry in EVERY}
SAMPLE = (
    "stale-block", "cache-shape", "bias-copied-once", "works-in-place", "answers-in-advance",
)  # fmt: skip
"""Cheats of one problem, each for another layer, and none that gets as far as the timing."""


def test_the_corpus_is_large_enough() -> None:
    assert len(CHEATS) >= 150
    assert len(HONEST) >= 150


def test_every_id_is_used_once() -> None:
    assert [name for name, count in Counter(entry.id for entry in EVERY).items() if count > 1] == []


def test_every_number_of_the_catalogue_has_a_cheat() -> None:
    assert set(range(1, 89)) - {entry.catalogue for entry in CHEATS} == set()


@pytest.mark.parametrize("entries", [CHEATS, HONEST], ids=["cheats", "honest"])
def test_sources_are_python_and_define_the_model(entries: tuple[Entry, ...]) -> None:
    without = []
    for entry in entries:
        tree = ast.parse(entry.source, entry.id)
        if not any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body):
            without.append(entry.id)
    assert without == []


def test_no_two_cheats_are_the_same_file() -> None:
    assert [text[:80] for text, count in Counter(entry.source for entry in CHEATS).items() if count > 1] == []


def test_every_problem_is_known_and_can_be_read() -> None:
    assert {entry.problem for entry in EVERY} - PROBLEMS.keys() - bundled().keys() == set()
    for name in {entry.problem for entry in EVERY}:
        assert outline(source_of(name), name).spec.workloads_for("cpu")


def test_ids_can_be_chosen_on_a_command_line() -> None:
    assert [entry.id for entry in EVERY if not re.fullmatch(r"[a-z0-9-]+", entry.id)] == []


def test_the_quick_part_covers_what_a_cpu_can_show() -> None:
    chosen = quick(list(EVERY))
    assert len(chosen) == len({entry.id for entry in chosen}) == CHEATS_AT_ONCE + HONEST_AT_ONCE
    shown = {entry.layer for entry in CHEATS if entry.needs == "cpu"}
    assert {entry.layer for entry in chosen if not entry.honest} == shown


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    home = tmp_path_factory.mktemp("redteam")
    with Judge(JudgeOptions(home=home, hardware="cpu", eager_only=True)) as running:
        yield running


def outcome_of(judge: Judge, entry: Entry) -> Outcome:
    """On a busy machine the judge may not know whose code ran. Then it says so, and asks to be asked again."""
    for _attempt in range(4):
        outcome = judge_one(judge, entry, "cpu")
        if outcome.verdict != "infra_error":
            break
    return outcome


@pytest.mark.parametrize("name", SAMPLE)
def test_a_cheat_is_rejected(judge: Judge, name: str) -> None:
    outcome = outcome_of(judge, BY_ID[name])
    assert outcome.as_expected, f"{outcome.verdict}: {outcome.reason}"


def test_honest_ones_are_accepted(judge: Judge) -> None:
    chosen = [entry for entry in HONEST if entry.problem == "bias_relu" and entry.needs == "cpu"][:1]
    assert chosen
    for entry in chosen:
        outcome = outcome_of(judge, entry)
        assert outcome.verdict == "ok", f"{entry.id}: {outcome.verdict}: {outcome.reason}"
