"""The same words in the database, in the search and in the judge, which may not import one another."""

from __future__ import annotations

from enum import StrEnum

import pytest

import search.types
import worker.judge.verdict
from cli.commands import code
from db import vocabulary
from search.knowledge import ranking, standing
from worker.judge import generated
from worker.judge.reference import findings


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (vocabulary.Verdict, worker.judge.verdict.Verdict),
        (vocabulary.Verdict, search.types.Verdict),
        (vocabulary.CandidateState, search.types.State),
        (vocabulary.StopReason, search.types.StopReason),
        (vocabulary.Operator, search.types.Operator),
        (vocabulary.Proposer, search.types.ProposerKind),
        (vocabulary.Failure, search.types.Failure),
        (vocabulary.SearchPolicy, search.types.PolicyName),
        (vocabulary.LessonKind, standing.LessonKind),
        (vocabulary.LessonState, standing.LessonState),
        (vocabulary.Says, standing.Says),
    ],
)
def test_twins_agree(ours: type[StrEnum], theirs: type[StrEnum]) -> None:
    assert {word.value for word in ours} == {word.value for word in theirs}


def test_the_kinds_of_items_are_those_of_the_search() -> None:
    assert {kind.value for kind in vocabulary.ItemKind} == {ranking.KERNEL, ranking.LESSON, ranking.FACT}


def test_the_verdicts_of_an_admission_are_those_of_the_judge() -> None:
    words = [findings.ADMITTED, findings.WARNED, findings.REFUSED]
    assert [word.value for word in vocabulary.AdmissionVerdict] == words


@pytest.mark.parametrize(
    ("hardware", "queue"), [("cpu", "cpu"), ("nvidia-h100", "gpu.nvidia-h100"), ("nvidia-h200", "gpu.nvidia-h200")]
)
def test_a_queue_names_its_hardware(hardware: str, queue: str) -> None:
    assert vocabulary.target_queue(hardware) == queue
    assert vocabulary.queue_hardware(queue) == hardware


@pytest.mark.parametrize("queue", ["control", "llm"])
def test_some_queues_need_no_hardware(queue: str) -> None:
    assert vocabulary.queue_hardware(queue) is None


def test_three_states_are_final() -> None:
    final = {state.value for state in vocabulary.JobState if state.terminal}
    assert final == {"succeeded", "failed", "cancelled"}


def test_kinds_of_generated_code() -> None:
    kinds = {kind.value for kind in vocabulary.CodeKind}
    assert kinds == set(generated.COMMENTS) == {kind.value for kind in code.Kind}
