"""What changed between a kernel and its child."""

from __future__ import annotations

import pytest

from search.knowledge.changes import change_between, difference, techniques

KERNEL = '''
TUNABLES = {{"BLOCK": [64, 128, 256], "FAST": [True, False]}}
BLOCK = {block}
FAST = {fast}
SOURCE = """
{pragma}
for (long i = 0; i < n; ++i) y[i] = x[i];
"""
'''


def kernel(block: int = 64, fast: bool = True, pragma: str = "") -> str:
    return KERNEL.format(block=block, fast=fast, pragma=pragma)


@pytest.mark.parametrize(
    ("child", "key", "says", "note"),
    [
        (kernel(128), "BLOCK up", "raising BLOCK", "BLOCK: 64 -> 128"),
        (kernel(256, False), "BLOCK up, FAST off", "raising BLOCK, switching off FAST", "BLOCK: 64 -> 256, FAST:"),
        (kernel(pragma="#pragma omp parallel for"), "+openmp", "adding threads over the outer loop", "+#pragma omp"),
    ],
)
def test_a_change_has_a_key_words_and_a_note(child: str, key: str, says: str, note: str) -> None:
    change = change_between(kernel(), child)
    assert change is not None
    assert (change.key, change.says) == (key, says)
    assert change.note.startswith(note) or note in change.note


def test_the_way_back_is_another_change() -> None:
    back = change_between(kernel(pragma="_mm512_add_ps"), kernel(128))
    assert back is not None and back.key == "-avx512"


@pytest.mark.parametrize(
    "child",
    [
        kernel(),
        kernel().replace("y[i] = x[i]", "y[i] = x[i] + 0"),
        kernel(pragma="#pragma omp parallel for\n_mm512_x _mm256_y __restrict prefetch __builtin_prefetch welford"),
        kernel(128).replace('"FAST": [True, False]', '"SLOW": [1, 2]').replace("FAST =", "SLOW ="),
    ],
    ids=["nothing", "without a name", "too much at once", "another space"],
)
def test_some_changes_have_no_name(child: str) -> None:
    assert change_between(kernel(), child) is None


def test_a_difference_is_short_and_without_comments() -> None:
    parent = "\n".join(f"a{n} = {n}" for n in range(100))
    child = "\n".join([f"a{n} = {n + 1}" for n in range(100)] + ["# a comment"])
    lines = difference(parent, child).splitlines()
    assert len(lines) == 10
    assert "# a comment" not in difference("x = 1\n", "x = 1\n# a comment\n")


def test_techniques_are_found_by_their_spelling() -> None:
    assert techniques("tl.dot(a, b); GROUP_M: tl.constexpr") == {"tensor cores", "block order for L2"}
    assert techniques("x = 1") == frozenset()
