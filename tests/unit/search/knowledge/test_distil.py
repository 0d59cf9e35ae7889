"""From a job's candidates to findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search.knowledge.distil import Attempt, Scene, bound_of, by_lesson, distil

SCENE = Scene("softmax", "nvidia-h200", "triton")
SLOW = "TUNABLES = {'BLOCK': [64, 128]}\nBLOCK = 64\n"
FAST = SLOW.replace("BLOCK = 64", "BLOCK = 128")
ERROR = "candidate.py:3:1: error: 'tl.foo' is not a member of this module"

PARENT = Attempt("a", "seed", (), SLOW, "ok", speedup=1.0, ci95=(0.99, 1.01), bound="memory")
CHILD = Attempt("b", "refine", ("a",), FAST, "ok", speedup=1.5, ci95=(1.48, 1.52))
BROKEN = Attempt("c", "seed", (), "x = tl.foo", "build_error", "the build failed", ERROR)
REPAIRED = Attempt("d", "repair", ("c",), "x = tl.sum", "ok", speedup=1.0, ci95=(0.9, 1.1))


def test_a_pair_says_what_its_change_did() -> None:
    (finding,) = distil(SCENE, [PARENT, CHILD])
    lesson = finding.lesson
    assert (lesson.kind, lesson.key, lesson.op_family, lesson.hardware, lesson.language, lesson.bound) == (
        "change",
        "BLOCK up",
        "softmax",
        "hopper",
        "triton",
        "memory",
    )
    assert (finding.says, finding.candidate_id, finding.parent_id) == ("faster", "b", "a")
    assert finding.effect is not None and finding.effect.log == pytest.approx(0.405, abs=0.001)


@pytest.mark.parametrize(
    "child",
    [
        replace(CHILD, verdict="incorrect", speedup=None),
        replace(CHILD, ci95=None),
        replace(CHILD, source=SLOW),
        replace(CHILD, operator="crossover", parents=("a", "x")),
        replace(CHILD, parents=("of another job",)),
    ],
    ids=["wrong", "no interval", "nothing changed", "two parents", "parent unknown"],
)
def test_some_pairs_say_nothing(child: Attempt) -> None:
    assert distil(SCENE, [PARENT, child]) == []


def test_a_failure_and_its_repair_are_one_lesson_whatever_the_family() -> None:
    ((key, findings),) = by_lesson(distil(SCENE, [BROKEN, REPAIRED])).items()
    assert (key.kind, key.op_family, key.hardware) == ("failure", "", "hopper")
    assert [(finding.says, finding.candidate_id) for finding in findings] == [("occurred", "c"), ("fixed", "d")]
    assert "tl.foo" in findings[0].statement and findings[0].statement.startswith("cannot: ")
    assert findings[1].note == "-x = tl.foo\n+x = tl.sum"


def test_a_repair_that_meets_the_same_error_did_not_work_and_one_that_meets_another_did() -> None:
    again = replace(REPAIRED, verdict="build_error", log=ERROR.replace(":3:1:", ":9:9:"), speedup=None)
    says = {f.candidate_id: f.says for f in distil(SCENE, [BROKEN, again]) if f.parent_id}
    assert says == {"d": "not_fixed"}
    other = replace(again, log="candidate.py:1:1: error: another thing is wrong here")
    assert [f.says for f in distil(SCENE, [BROKEN, other]) if f.parent_id] == ["fixed"]


def test_wrong_values_teach_only_by_what_made_them_right() -> None:
    wrong = replace(BROKEN, verdict="incorrect", reason="odd: 3 of 9 values of output0 differ", log=None)
    assert distil(SCENE, [wrong]) == []
    assert [f.says for f in distil(SCENE, [wrong, REPAIRED])] == ["fixed"]
    still = replace(REPAIRED, verdict="incorrect", reason="large: 1 of 2 values of output0 differ", speedup=None)
    assert [f.says for f in distil(SCENE, [wrong, still])] == ["not_fixed"]


@pytest.mark.parametrize("verdict", ["suspicious", "infra_error"])
def test_cheats_and_faults_of_the_machine_teach_nothing(verdict: str) -> None:
    assert distil(SCENE, [replace(BROKEN, verdict=verdict)]) == []


@pytest.mark.parametrize(
    ("report", "bound"),
    [
        ({}, ""),
        ({"profile": {}}, ""),
        ({"profile": {"bound": "memory"}}, "memory"),
        ({"profile": {"bound": "overhead_bound"}}, "launch"),
        ({"profile": {"roofline_class": "compute"}}, "compute"),
        ({"profile": {"bound": "moon"}}, ""),
        ({"profile": "no counters"}, ""),
    ],
)
def test_the_bound_is_the_profiles(report: dict[str, object], bound: str) -> None:
    assert bound_of(report) == bound
