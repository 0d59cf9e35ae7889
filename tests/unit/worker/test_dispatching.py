"""A dispatching source computes what its variants compute, picks them by dtype and sizes, and is refused where names
cannot be followed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from search.configurations import Dispatch, Signature
from search.tunables import read_space
from search.types import Params
from worker.dispatching import MAX_VARIANTS, CannotDispatch, dispatching_source

SOURCE = '''
"""A plan."""
import torch
from torch import nn

TUNABLES = {"BLOCK": [1, 2, 3], "FAST": [False, True]}
CONSTRAINTS = ["BLOCK > 0"]
BLOCK = 1
FAST: bool = False

# What both need.
OFFSET = 100
NAMES = tuple(f"b{BLOCK}" for _ in range(2))


def shared(x):
    return x + OFFSET


def _run(x, scale):
    # A block at a time.
    return shared(x) * 0 + BLOCK * scale + (10 if FAST else 0) + len(NAMES[0])


class ModelNew(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x, scale=1):
        return _run(x, scale) * self.weight
'''
SMALL: Signature = (("float32", 2, 4),)
HALF: Signature = (("float16", 2, 4),)
OWN: Params = {"BLOCK": 1, "FAST": False}


def dispatch(**choices: Params) -> Dispatch:
    signatures = {"small": SMALL, "half": HALF}
    return Dispatch({signatures[name]: params for name, params in choices.items()}, OWN, 1.1)


def written(source: str = SOURCE, plan: Dispatch | None = None) -> str:
    space = read_space(source)
    assert space is not None
    plan = plan or dispatch(small={"BLOCK": 3, "FAST": True}, half={"BLOCK": 2, "FAST": False})
    return dispatching_source(source, space, plan)


def loaded(source: str) -> Any:
    names: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(source, "candidate", "exec"), names)
    return names["ModelNew"]


def test_each_input_gets_its_configuration_and_all_others_the_fallback() -> None:
    model = loaded(written())()
    assert list(model.state_dict()) == ["weight"]
    with torch.no_grad():
        assert model(torch.zeros(2, 4)).unique().tolist() == [3 + 10 + 2]
        assert model(torch.zeros(2, 4, dtype=torch.float16), 5).unique().tolist() == [2 * 5 + 2]
        assert model(torch.zeros(3, 4)).unique().tolist() == [1 + 2]


def test_what_does_not_depend_on_a_tunable_stays_once_and_as_it_was() -> None:
    source = written()
    assert source.count("def shared(x):\n    return x + OFFSET") == 1
    assert source.count("OFFSET = 100") == 1
    assert read_space(source) is None
    assert "FAST__1: bool = True" in source


def test_a_name_that_a_function_binds_itself_is_another_one() -> None:
    kernel = """def kernel(x, BLOCK, scale=BLOCK):
    def inner():
        return BLOCK + sum(FAST for FAST in (1, 2))
    return inner() + 0 * x + 1000 * scale + (lambda BLOCK: BLOCK)(0)


def _run(x, scale):
    return kernel(x, BLOCK=BLOCK)
"""
    start, end = SOURCE.index("def _run"), SOURCE.index("class ModelNew")
    source = written(SOURCE[:start] + kernel + "\n\n" + SOURCE[end:])
    model = loaded(source)()
    with torch.no_grad():
        assert model(torch.zeros(2, 4)).unique().tolist() == [3 + 3 + 3000]
        assert model(torch.zeros(9, 4)).unique().tolist() == [1 + 3 + 1000]


def test_a_kernel_whose_arguments_only_bear_the_names_of_tunables_stays_once() -> None:
    source = SOURCE.replace("def shared(x):", "def kernel(x, BLOCK):\n    return x + BLOCK\n\n\ndef shared(x):")
    assert written(source).count("def kernel") == 1


def test_equal_configurations_are_one_variant() -> None:
    params: Params = {"BLOCK": 2, "FAST": False}
    source = written(plan=dispatch(small=params, half=params))
    assert "_forward__1" in source and "_forward__2" not in source


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("self.weight = nn", "self.block = BLOCK\n        self.weight = nn", "BLOCK outside its forward"),
        ("return shared(x)", "return eval('BLOCK') + shared(x)", "eval hides"),
        ("return shared(x)", "global BLOCK\n    return shared(x)", "BLOCK is bound again"),
        ("(self, x, scale=1)", "(self, *x)", "more than plain arguments"),
        ("import torch\nfrom", "import torch as t\nfrom", "torch is not imported"),
        ("def forward", "@torch.no_grad()\n    def forward", "no plain forward"),
        ("* self.weight", "* self.__weight", "private name"),
        ("class ModelNew(nn.Module)", "class Other(nn.Module)", "not a class of the module"),
    ],
)
def test_what_cannot_be_followed_is_refused(old: str, new: str, why: str) -> None:
    assert old in SOURCE
    with pytest.raises(CannotDispatch, match=why):
        written(SOURCE.replace(old, new))


def test_too_many_configurations_are_refused() -> None:
    choices: dict[Signature, Params] = {
        (("float32", size),): {"BLOCK": size, "FAST": False} for size in range(MAX_VARIANTS + 1)
    }
    with pytest.raises(CannotDispatch, match="more than"):
        written(plan=Dispatch(choices, {"BLOCK": 99, "FAST": False}, 1.1))
