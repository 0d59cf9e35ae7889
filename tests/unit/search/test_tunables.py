"""Reading a candidate's space and writing a configuration back, byte for byte."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.tunables import SpaceError, UnknownTunable, parse_space, read_space, with_values

SOURCE = '''\
"""A kernel. BLOCK = 1 in a docstring is no assignment."""
import torch

TUNABLES = {"BLOCK": [64, 128, 256, 128], "FAST": [True, False], "MODE": ["é", "b"]}
CONSTRAINTS = ["BLOCK >= 128 or FAST"]
MODE = "é"; BLOCK: int = 128  # BLOCK = 128 is the default
FAST = (
    True
)

def grid(n):
    BLOCK = 7
    return n // BLOCK
'''


def test_a_space_is_read_without_running_the_source() -> None:
    space = read_space(SOURCE + "\nraise SystemExit('run')\n")
    assert space is not None
    assert space.values == {"BLOCK": (64, 128, 256), "FAST": (True, False), "MODE": ("é", "b")}
    assert space.defaults == {"BLOCK": 128, "FAST": True, "MODE": "é"}
    assert space.size == 12
    assert len(list(space.configurations())) == 10
    assert space.allows({"BLOCK": 64, "FAST": True, "MODE": "b"})
    assert not space.allows({"BLOCK": 64, "FAST": False, "MODE": "b"})
    assert not space.allows({"BLOCK": 512, "FAST": True, "MODE": "b"})
    assert not space.allows({"BLOCK": 64, "FAST": 1, "MODE": "b"})
    assert not space.allows({"BLOCK": 64})


def test_values_are_written_over_the_old_ones_and_nothing_else_changes() -> None:
    tuned = with_values(SOURCE, {"BLOCK": 256, "FAST": False, "MODE": "quote ' \" \n"})
    expected = SOURCE.replace("BLOCK: int = 128", "BLOCK: int = 256")
    expected = expected.replace('MODE = "é"', f"MODE = {'quote ' + chr(39) + ' ' + chr(34) + ' ' + chr(10)!r}")
    expected = expected.replace("(\n    True\n)", "(\n    False\n)")
    assert tuned == expected
    space = read_space(tuned)
    assert space is not None
    assert space.defaults == {"BLOCK": 256, "FAST": False, "MODE": "quote ' \" \n"}


@given(
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5),
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.text(max_size=5),
)
def test_what_is_written_is_what_is_read(newline: str, comment: str, value: int | float | bool | str) -> None:
    source = newline.join([f"# {comment}", 'TUNABLES = {"X": [1, 2]}', "X = 1", f"Y = 2  # {comment}", ""])
    text = repr(value)
    if not text.isprintable() or "\ud800" <= max(text) <= "\udfff":
        return
    tuned = with_values(source, {"X": value})
    space = read_space(tuned)
    assert space is not None
    assert space.defaults == {"X": value}
    assert type(space.defaults["X"]) is type(value)
    assert with_values(tuned, {"X": 1}) == source


@pytest.mark.parametrize("source", ["", "BLOCK = 128", "def TUNABLES(): pass", "this is ( no python", "x = '\0'"])
def test_a_source_without_tunables_has_no_space(source: str) -> None:
    assert read_space(source) is None


@pytest.mark.parametrize(
    "source",
    [
        "TUNABLES = {'A': [1, 2]}",
        "TUNABLES = {'A': [1, 2]}\nA = 1\nA = 2",
        "TUNABLES = {'A': [1, 2]}\nA = len('x')",
        "TUNABLES = {'A': [1, 2]}\nA = None",
        "TUNABLES = {'A': []}\nA = 1",
        "TUNABLES = {}",
        "TUNABLES = {'A': list(range(3))}\nA = 1",
        "TUNABLES = {'A': 4}\nA = 1",
        "TUNABLES = {'A': [1, None]}\nA = 1",
        "TUNABLES = {'A': [1, 1e999]}\nA = 1",
        "TUNABLES = ['A']\nA = 1",
        f"TUNABLES = {{'A': {list(range(65))}}}\nA = 1",
        "TUNABLES = {'A': [1, 2]}\nA = 1\nCONSTRAINTS = 'A > 1'",
        "TUNABLES = {'A': [1, 2]}\nA = 1\nCONSTRAINTS = ['A > B']",
        "TUNABLES = {'A': [1, 2]}\nA = 1\nCONSTRAINTS = ['__import__(\"os\")']",
    ],
)
def test_an_unusable_declaration_is_no_space_and_says_why(source: str) -> None:
    assert read_space(source) is None
    with pytest.raises(SpaceError, match=r"\w"):
        parse_space(source)


def test_only_declared_assignments_can_be_set() -> None:
    for name in ["missing", "grid"]:
        with pytest.raises(UnknownTunable):
            with_values(SOURCE, {name: 1})


def test_the_result_still_parses() -> None:
    ast.parse(with_values("A=-1", {"A": -2}))
    assert with_values("if 1:\n  pass\nA=-1", {"A": 2}) == "if 1:\n  pass\nA=2"
