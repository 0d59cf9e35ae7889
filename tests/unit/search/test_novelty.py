"""Which sources count as the same."""

from __future__ import annotations

import pytest

from search.novelty import source_hash

SOURCE = """\
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""


@pytest.mark.parametrize(
    "same",
    [
        SOURCE + "\n\n# a remark\n",
        '"""About."""\n' + SOURCE,
        SOURCE.replace("    def", '    """Doc."""\n\n    def').replace(
            "        return", "        '''d'''\n        return"
        ),
        SOURCE.replace("x * 2", "(x   *  2)  # twice"),
        SOURCE.replace("\n", "\r\n"),
    ],
)
def test_comments_white_space_and_docstrings_are_not_seen(same: str) -> None:
    assert source_hash(same) == source_hash(SOURCE)


@pytest.mark.parametrize(
    "other",
    [
        SOURCE.replace("2", "3"),
        SOURCE.replace("2", "2.0"),
        SOURCE.replace("2", "True"),
        SOURCE.replace("2", "None"),
        SOURCE.replace("x * 2", "2 * x"),
        SOURCE.replace("forward", "backward"),
        SOURCE + "KERNEL = 'void f() {}'\n",
        SOURCE.replace("return x * 2", "return 'text'"),
        "return (",
    ],
)
def test_everything_else_is(other: str) -> None:
    assert source_hash(other) != source_hash(SOURCE)


def test_structure_is_part_of_the_hash() -> None:
    assert source_hash("f(a, b)") != source_hash("f(a)(b)")
    assert source_hash("if a:\n  b\nc") != source_hash("if a:\n  b\n  c")
    assert source_hash("def f(a=1, *, b): pass") != source_hash("def f(a, *, b=1): pass")
    assert source_hash("{**a}") != source_hash("{a}")


def test_a_source_that_does_not_parse_is_compared_as_text() -> None:
    assert source_hash("void f() {\n}") == source_hash("void  f() { }")
    assert source_hash("void f() {}") != source_hash("void g() {}")
    assert source_hash("x = '\0'") and source_hash("\ud800 (")


def test_the_hash_is_pinned_across_versions_of_python() -> None:
    assert source_hash("def f(x: int) -> int:\n    return f'{x!r:>5}'\n") == PINNED


PINNED = "df9785bb13863aaa5d98360140ab1b654ca254ec1021ac93233fddab0926f2ba"
