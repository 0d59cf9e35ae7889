"""Which sources count as the same."""

from __future__ import annotations

import pytest

from search.novelty import NOVEL_OPERATORS, nearest, parameters_only, similarity, source_hash, tokens
from search.types import Operator

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


KERNEL = '''\
import torch
from kernelwright import load_cpp

CODE = r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
    // every element
    for (int64_t i = 0; i < n; ++i) y[i] = 2.0f * x[i];
}
"""
lib = load_cpp(CODE, flags=("-ffast-math",))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x.contiguous(), y, x.numel())
        return y
'''


def test_a_kernel_in_a_string_is_compared_word_by_word() -> None:
    remarked = KERNEL.replace("// every element", "/* one\n   after the other */").replace("; ++i", ";   ++i")
    assert tokens(remarked) == tokens(KERNEL)
    assert similarity(tokens(KERNEL), tokens(KERNEL.replace("++i", "i += 1"))) > 0.8
    assert similarity(tokens(KERNEL), tokens(SOURCE)) < 0.5
    assert similarity((), ()) == 1.0


def test_other_numbers_are_parameters_and_nothing_else_is() -> None:
    assert parameters_only(tokens(KERNEL), tokens(KERNEL.replace("2.0f", "3.0f")))
    assert parameters_only(tokens(SOURCE), tokens(SOURCE.replace("2", "64")))
    assert not parameters_only(tokens(KERNEL), tokens(KERNEL.replace("++i", "--i")))
    assert not parameters_only(tokens(SOURCE), tokens(SOURCE.replace("x * 2", "2 * x")))


def test_the_nearest_is_named_unless_it_differs_in_parameters_alone() -> None:
    renamed = KERNEL.replace("y = torch", "y = z = torch")
    others = [("other", SOURCE), ("same", renamed), ("parameters", KERNEL.replace("2.0f", "4.0f"))]
    found = nearest(KERNEL, others, threshold=0.8)
    assert found is not None
    assert found[0] == "same" and 0.8 < found[1] < 1
    assert nearest(KERNEL, others, threshold=0.99) is None
    assert nearest(KERNEL, [("parameters", KERNEL.replace("2.0f", "4.0f"))]) is None


def test_a_source_that_does_not_parse_is_read_as_words() -> None:
    assert tokens("def broken(:") == ("def", "broken", "(", ":")


def test_small_steps_promise_nothing_new() -> None:
    assert NOVEL_OPERATORS.isdisjoint({Operator.REFINE, Operator.REPAIR, Operator.TUNE})
    assert set(Operator) >= NOVEL_OPERATORS
