"""What models answer, and what becomes of it."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.answers import find_blocks, read_answer
from search.types import Failure

FILE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n"
OTHER = FILE.replace("2", "3")
PARENT = (
    "import torch\n\nBLOCK = 64\n\n\nclass ModelNew(torch.nn.Module):\n"
    "    def forward(self, x):\n        y = x * 2\n        return y\n"
)


def fenced(source: str, language: str = "python", fence: str = "```") -> str:
    return f"{fence}{language}\n{source}{fence}\n"


def edit(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n"


def test_a_whole_file_with_its_plan() -> None:
    proposal = read_answer(f"PLAN: one pass\nover memory.\n\n{fenced(FILE)}\nThat is all.", "stop")
    assert proposal.source == FILE
    assert proposal.plan == "one pass\nover memory."
    assert proposal.failure is None


@pytest.mark.parametrize(
    "answer",
    [
        fenced("g++ -O3 x.cpp\n", "sh") + fenced(FILE) + fenced("print(1)\n"),
        fenced(FILE.replace("ModelNew", "Model")) + fenced(FILE),
        fenced(OTHER) + "Better:\n" + fenced(FILE),
        fenced(FILE) + "or, shorter:\n" + fenced("class ModelNew(\n    ...\n"),
        fenced(FILE, "py", "~~~"),
        fenced(FILE, "", "````"),
        fenced(FILE, "python title=model.py"),
        fenced(FILE).replace("\n", "\r\n"),
        fenced(FILE).replace("x * 2", "x *\0 2") + "\ud800",
        "<think>\nI first thought of\n" + fenced(OTHER) + "</think>\n" + fenced(FILE),
        FILE,
        "* My answer:\n\n  ```python\n" + textwrap.indent(FILE, "  ") + "  ```\n",
        "* My answer:\n\n  ```python\n" + FILE + "  ```\n",
    ],
)
def test_of_several_blocks_the_last_good_one_that_defines_the_candidate(answer: str) -> None:
    assert read_answer(answer, "stop").source == FILE


def test_a_fence_inside_a_longer_fence_does_not_close_it() -> None:
    source = FILE + 'DOC = """\n```python\nx\n```\n"""\n'
    assert read_answer(fenced(source, "python", "````"), "stop").source == source


def test_a_complete_file_counts_even_if_the_talk_after_it_was_cut_off() -> None:
    assert read_answer(fenced(FILE) + "This kernel is", "length").source == FILE


@pytest.mark.parametrize(
    ("answer", "finish", "failure"),
    [
        ("One could fuse both loops and use AVX-512.", "stop", Failure.NO_CODE),
        ("", "stop", Failure.NO_CODE),
        (None, "stop", Failure.NO_CODE),
        (fenced("void f() {}\n", "cpp"), "stop", Failure.NO_CODE),
        ("I can't vectorise the inner loop as it is. " + "Reasons follow. " * 60, "stop", Failure.NO_CODE),
        ("One could fuse both", "length", Failure.TRUNCATED),
        ("```python\n" + FILE, "stop", Failure.TRUNCATED),
        ("```python\n" + FILE, "length", Failure.TRUNCATED),
        (fenced(OTHER) + "Better:\n```python\n" + FILE, "length", Failure.TRUNCATED),
        ("<think>\nlet me see", "length", Failure.TRUNCATED),
        ("<think>\nlet me see", "stop", Failure.TRUNCATED),
        ("I'm sorry, but I can't help with that.", "stop", Failure.REFUSED),
        ("I’m sorry, I cannot assist with this request.", "stop", Failure.REFUSED),
        ("", "content_filter", Failure.REFUSED),
        ("Not this.", "refusal", Failure.REFUSED),
    ],
)
def test_why_there_is_no_candidate(answer: str | None, finish: str, failure: Failure) -> None:
    proposal = read_answer(answer, finish, [PARENT])
    assert (proposal.source, proposal.failure) == (None, failure)
    assert proposal.detail


def test_edits_are_applied_to_the_parent() -> None:
    answer = (
        "Wider blocks.\n" + edit("BLOCK = 64\n", "BLOCK = 128\n") + edit("        return y\n", "        return y + 0\n")
    )
    proposal = read_answer(answer, "stop", [PARENT])
    assert proposal.source == PARENT.replace("64", "128").replace("return y", "return y + 0")
    assert proposal.plan == "Wider blocks."


@pytest.mark.parametrize(
    "answer",
    [
        fenced(edit("BLOCK = 64\n", "BLOCK = 128\n"), "diff"),
        edit("BLOCK  =   64   \n", "BLOCK = 128\n"),
        edit("\n\nBLOCK = 64\n\n", "BLOCK = 128\n\n"),
    ],
)
def test_edits_may_be_fenced_or_careless_with_white_space(answer: str) -> None:
    source = read_answer(answer, "stop", [PARENT]).source
    assert source is not None
    assert source.replace("128", "64").split() == PARENT.split()
    assert "BLOCK = 128" in source


def test_lost_indentation_is_put_back() -> None:
    answer = edit("y = x * 2\nreturn y\n", "if x is not None:\n    y = x * 3\nreturn y\n")
    source = read_answer(answer, "stop", [PARENT]).source
    expected = "        if x is not None:\n            y = x * 3\n        return y\n"
    assert source == PARENT.replace("        y = x * 2\n        return y\n", expected)


def test_an_edit_can_delete() -> None:
    source = read_answer(edit("BLOCK = 64\n", ""), "stop", [PARENT]).source
    assert source == PARENT.replace("BLOCK = 64\n", "")


@pytest.mark.parametrize(
    ("answer", "parents", "finish", "failure"),
    [
        (edit("BLOCK = 32\n", "BLOCK = 128\n"), [PARENT], "stop", Failure.DIFF_FAILED),
        (edit("BLOCK = 64\n", "B = 1\n") + edit("nowhere\n", "x\n"), [PARENT], "stop", Failure.DIFF_FAILED),
        (edit("\n", "x\n"), [PARENT], "stop", Failure.DIFF_FAILED),
        (edit("", "x\n"), [PARENT], "stop", Failure.DIFF_FAILED),
        (edit("x = 1\n", "x = 2\n"), ["x = 1\nx = 1\n" + PARENT], "stop", Failure.DIFF_FAILED),
        (edit("x  = 1\n", "x = 2\n"), ["x = 1\nx = 1\n" + PARENT], "stop", Failure.DIFF_FAILED),
        (edit("class ModelNew(torch.nn.Module):\n", "class Other:\n"), [PARENT], "stop", Failure.DIFF_FAILED),
        (edit("BLOCK = 64\n", "BLOCK = 128\n"), [], "stop", Failure.DIFF_FAILED),
        (edit("BLOCK = 64\n", "BLOCK = 128\n"), [PARENT], "length", Failure.TRUNCATED),
        (edit("BLOCK = 64\n", "BLOCK = 128\n")[:-20], [PARENT], "stop", Failure.TRUNCATED),
        ("<<<<<<< SEARCH\nBLOCK = 64\n", [PARENT], "stop", Failure.TRUNCATED),
    ],
)
def test_edits_that_do_not_apply(answer: str, parents: list[str], finish: str, failure: Failure) -> None:
    proposal = read_answer(answer, finish, parents)
    assert (proposal.source, proposal.failure) == (None, failure)
    assert proposal.detail


def test_only_the_edited_lines_change() -> None:
    parent = PARENT.replace("y = x", "# it’s \x0c\u2028\n        y = x").removesuffix("\n")
    source = read_answer(edit("BLOCK = 64\n", "BLOCK = 128\n"), "stop", [parent]).source
    assert source == parent.replace("64", "128")


def test_blocks_are_found_in_order_and_the_last_may_be_open() -> None:
    blocks = find_blocks("a\n```sh\none\n```\nb\n~~~\n```\n~~~\n```python\nthree\n")
    assert [(block.text, block.closed) for block in blocks] == [("one\n", True), ("```\n", True), ("three\n\n", False)]


def test_a_whole_file_saves_an_answer_whose_edits_fail() -> None:
    answer = edit("nowhere\n", "x\n") + "or the whole file:\n" + fenced(FILE)
    assert read_answer(answer, "stop", [PARENT]).source == FILE


@given(st.text(st.sampled_from("`~<>=SEARCHREPLACE \nclass ModelNew:python"), max_size=200), st.booleans())
def test_no_text_is_too_strange(text: str, cut: bool) -> None:
    proposal = read_answer(text, "length" if cut else "stop", [PARENT])
    assert (proposal.source is None) == (proposal.failure is not None)
