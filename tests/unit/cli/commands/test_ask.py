"""The lines that `tell` takes: what is told, what is left alone, what is refused before any of it is sent."""

from __future__ import annotations

import json

import pytest

from cli.commands.ask import read_answers
from cli.service import UnusableInput

LINE = {"candidate_id": "cand_1", "token": "t", "messages": [], "operator": "seed"}


def test_an_answer_is_added_to_the_line_of_its_question() -> None:
    lines = "\n\n".join(json.dumps(LINE | {"answer": str(number), "agent": None}) for number in (1, 2))
    read = list(read_answers(lines, "f"))
    assert [(each.number, each.candidate_id, each.token, each.said) for each in read] == [
        (1, "cand_1", "t", {"answer": "1"}),
        (3, "cand_1", "t", {"answer": "2"}),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "write {"),
        ("[]", "write {"),
        (json.dumps({"candidate_id": "cand_1", "answer": "a"}), "write {"),
        (json.dumps(LINE), "an answer, a source or exhausted"),
        (json.dumps(LINE | {"answer": "a", "source": "s"}), "an answer, a source or exhausted"),
        (json.dumps(LINE | {"answer": "a", "exhausted": True}), "an answer, a source or exhausted"),
    ],
)
def test_a_line_that_cannot_be_told_is_named(line: str, why: str) -> None:
    whole = json.dumps(LINE | {"answer": "a"})
    with pytest.raises(UnusableInput) as refused:
        list(read_answers(f"{whole}\n{line}", "answers.jsonl"))
    assert str(refused.value).startswith("answers.jsonl, line 2: ")
    assert why in str(refused.value)
