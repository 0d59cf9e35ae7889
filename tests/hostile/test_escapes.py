"""Escape attempts: refused at the default level, refused or documented at the others, seen where nothing confines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.__main__ import run
from tests.hostile.attempt import DEFAULT, TOPICS
from tests.hostile.corpus import ATTEMPTS, QUICK
from tests.hostile.ground import Ground
from tests.hostile.table import headings
from worker.runner.sandbox import LEVELS, best_level

BY_ID = {attempt.id: attempt for attempt in ATTEMPTS}
DOCUMENT = Path(__file__).parents[2] / "docs" / "sandbox.md"


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    if best_level() != DEFAULT:
        pytest.skip(f"this machine offers no sandbox of level {DEFAULT}")
    with Ground(DEFAULT, tmp_path_factory.mktemp("hostile")) as found:
        yield found


def test_the_corpus_is_large_enough_and_covers_every_topic() -> None:
    assert len(BY_ID) == len(ATTEMPTS) >= 60
    assert {attempt.topic for attempt in ATTEMPTS} == set(TOPICS)
    assert {BY_ID[name].topic for name in QUICK} == set(TOPICS)


def test_the_page_has_a_row_for_every_attempt() -> None:
    rows = re.findall(r"^\| \w+ \| (.*?) \|", DOCUMENT.read_text(), flags=re.MULTILINE)
    assert rows[2:] == headings(ATTEMPTS), "run python -m tests.hostile --table and put the result into the page"


@pytest.mark.parametrize("name", QUICK)
def test_an_attempt_is_refused(ground: Ground, name: str) -> None:
    outcome = ground.attempt(BY_ID[name])
    assert not outcome.seen, f"{outcome.seen}; {outcome.ended}"


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", LEVELS)
def test_every_attempt_ends_as_the_documentation_says(level: str) -> None:
    outcomes = run(level, ATTEMPTS)
    assert [f"{each.attempt.id}: {each.seen}" for each in outcomes if not each.documented] == []


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_every_trap_tells_a_success_where_nothing_is_confined() -> None:
    outcomes = run("none", ATTEMPTS)
    assert [each.attempt.id for each in outcomes if not each.seen] == []
