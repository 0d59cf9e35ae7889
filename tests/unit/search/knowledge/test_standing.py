"""What evidence amounts to: two independent jobs confirm, contradictions quarantine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from search.knowledge.effects import Effect
from search.knowledge.standing import Evidence, LessonState, standing_of

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def word(origin: str, log: float, sd: float = 0.02, day: int = 0, note: str | None = None) -> Evidence:
    says = "faster" if log > 0 else "slower"
    return Evidence(origin, says, NOW + timedelta(days=day), Effect(log, log - 2 * sd, log + 2 * sd), note)


def happened(origin: str, says: str = "occurred", day: int = 0, note: str | None = None) -> Evidence:
    return Evidence(origin, says, NOW + timedelta(days=day), None, note)


def test_one_job_is_not_enough_however_often_it_says_so() -> None:
    alone = standing_of("change", [word("a", 0.5), word("a", 0.4), word("a", 0.6)])
    assert (alone.state, alone.supporting, alone.evidence) == (LessonState.TENTATIVE, 1, 3)


def test_two_independent_jobs_confirm() -> None:
    both = standing_of("change", [word("a", 0.5, day=1), word("b", 0.4, day=5, note="BLOCK: 64 -> 128")])
    assert (both.state, both.supporting, both.opposing) == (LessonState.CONFIRMED, 2, 0)
    assert both.effect is not None and 0.4 < both.effect.log < 0.5
    assert both.last_confirmed == NOW + timedelta(days=5)
    assert both.notes == ("BLOCK: 64 -> 128",)


def test_a_slow_down_is_confirmed_as_well() -> None:
    assert standing_of("change", [word("a", -0.5), word("b", -0.4)]).state is LessonState.CONFIRMED


def test_jobs_without_a_clear_effect_confirm_nothing() -> None:
    unclear = standing_of("change", [word("a", 0.01, 0.1), word("b", 0.02, 0.1), word("c", -0.01, 0.1)])
    assert (unclear.state, unclear.supporting) == (LessonState.TENTATIVE, 0)


@pytest.mark.parametrize(("helped", "hurt"), [(1, 1), (2, 1), (3, 1), (1, 3)])
def test_contradicting_jobs_quarantine(helped: int, hurt: int) -> None:
    evidence = [word(f"up{n}", 0.5) for n in range(helped)] + [word(f"down{n}", -0.5) for n in range(hurt)]
    assert standing_of("change", evidence).state is LessonState.QUARANTINED


def test_one_dissenter_among_many_is_tolerated() -> None:
    evidence = [word(f"up{n}", 0.5) for n in range(9)] + [word("down", -0.5)]
    found = standing_of("change", evidence)
    assert (found.state, found.supporting, found.opposing) == (LessonState.CONFIRMED, 9, 1)


def test_a_failure_is_confirmed_by_happening_in_two_jobs() -> None:
    assert standing_of("failure", [happened("a"), happened("a")]).state is LessonState.TENTATIVE
    found = standing_of("failure", [happened("a"), happened("b", day=3)])
    assert (found.state, found.last_confirmed) == (LessonState.CONFIRMED, NOW + timedelta(days=3))


def test_a_repair_is_offered_while_it_works_often_enough() -> None:
    worked = [happened("a"), happened("b"), happened("a", "fixed", note="+#include <cmath>")]
    assert standing_of("failure", worked).notes == ("+#include <cmath>",)
    in_vain = [happened(job, "not_fixed") for job in "abc"]
    assert standing_of("failure", worked + in_vain).notes == ()


def test_no_evidence_is_no_lesson() -> None:
    assert standing_of("change", []).state is LessonState.TENTATIVE
    assert standing_of("failure", []).state is LessonState.TENTATIVE
