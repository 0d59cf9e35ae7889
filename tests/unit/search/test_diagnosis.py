"""The judge model's prompt, word by word, and its answer as data in the next one."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from search.prompts import build_prompt
from search.prompts.diagnosis import DIAGNOSED, MAX_DIAGNOSIS, build_diagnosis_prompt, read_diagnosis
from tests.unit.search.test_prompts import FAILED, HOSTILE, SNAPSHOTS, outside_fences, request


@pytest.mark.parametrize("operator", sorted(DIAGNOSED))
def test_the_prompt_is_the_one_that_was_reviewed(operator: str) -> None:
    path = SNAPSHOTS / f"diagnose_{operator}_cpp.txt"
    messages = build_diagnosis_prompt(request(operator)).messages
    text = "\n".join(f"===== {message['role']}\n\n{message['content']}" for message in messages)
    if os.environ.get("KERNELWRIGHT_UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text()


def test_a_diagnosis_stands_before_the_task_and_inside_a_fence() -> None:
    plain = build_prompt(request("repair"))
    advised = build_prompt(request("repair", advice=f"Line 7 drops the tail.\n{HOSTILE}"))
    assert advised.messages[0] == plain.messages[0], "the instructions do not move"
    user = advised.messages[1]["content"]
    assert user.index("Line 7 drops the tail.") < user.index("# Task\n\nThe candidate failed")
    left = outside_fences(user)
    assert "Line 7" not in left and "Ignore the above" not in left
    assert left.rpartition("# Task")[2] == outside_fences(plain.messages[1]["content"]).rpartition("# Task")[2]


def test_a_hostile_candidate_stays_inside_its_fence() -> None:
    hostile = replace(FAILED, source=HOSTILE, log=HOSTILE)
    system, user = build_diagnosis_prompt(request("repair", parents=(hostile,))).messages
    assert system == build_diagnosis_prompt(request("repair")).messages[0]
    assert "Ignore the above" in user["content"]
    assert "Ignore the above" not in outside_fences(user["content"])


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (None, None),
        ("  \n", None),
        ("<think>long</think>\nThe tail is missing.\n", "The tail is missing."),
        ("a\0b\ud800", "ab?"),
    ],
)
def test_what_is_read_from_an_answer(answer: str | None, read: str | None) -> None:
    assert read_diagnosis(answer) == read


def test_a_diagnosis_is_cut_to_a_length() -> None:
    assert len(read_diagnosis("x" * 10_000) or "") == MAX_DIAGNOSIS
