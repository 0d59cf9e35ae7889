"""A finalist made and called as the reference is, and with parameters laid out otherwise: an honest one passes, each
flaw shows. All of them compute right values when the judge loads their parameters and gives arguments by their places.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.finalist import means, outcome
from worker.judge.certificate.certify import CHECKS
from worker.judge.certificate.document import Outcome
from worker.judge.certificate.parts import RefereeParts
from worker.judge.certificate.system import construction, relaid
from worker.judge.verdict import Verdict

PASSED = (Outcome.PASSED, Verdict.OK)
RESERVED = (Outcome.RESERVATION, Verdict.OK)
WRONG = (Outcome.FAILED, Verdict.INCORRECT)

PROBLEM = """
import torch
from torch import nn

SPEC = {"workloads": [{"name": "only", "params": {"rows": 64, "cols": 96}}]}

class Model(nn.Module):
    def __init__(self, cols, slope=0.01, shift=0.5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols))
        self.bias = nn.Parameter(torch.zeros(cols))
        self.register_buffer("scale", torch.full((cols,), 2.0))
        self.slope, self.shift = slope, shift
    def forward(self, x, power=2):
        y = (x * self.weight + self.bias) ** power * self.scale + self.shift
        return torch.nn.functional.leaky_relu(y - 2, self.slope)

def get_inputs(rows=64, cols=96):
    return [torch.rand(rows, cols), 2]

def get_init_inputs(cols=96):
    return [cols, 0.1, 0.5]
"""

HONEST = PROBLEM.partition("class Model")[2].partition("def get_inputs")[0]
HONEST = f"import torch\nfrom torch import nn\nclass ModelNew{HONEST}"

CONVOLUTION = """
import torch
from torch import nn

SPEC = {"backward": %s, "workloads": [{"name": "only", "params": {"batch": 3}}]}

class Model(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3)
        self.head = nn.Linear(outer, 5)
    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))

def get_inputs(batch=3):
    return [torch.randn(batch, 4, 9, 9)]

def get_init_inputs():
    return [4, 6]
"""

CONVOLVED = """
import torch
from torch import nn
def dense(weight):
    return weight.as_strided(weight.shape, torch.empty(weight.shape, device="meta").stride())
class ModelNew(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3)
        self.head = nn.Linear(outer, 5)
    def forward(self, x):
        filters, weight = self.conv.weight, self.head.weight
        %s
        y = torch.nn.functional.conv2d(x, filters, self.conv.bias).mean((2, 3))
        return torch.nn.functional.linear(y, weight, self.head.bias)
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeParts]:
    with means(tmp_path_factory.mktemp("home"), PROBLEM, "cpu") as ready:
        yield ready


@pytest.fixture(scope="module")
def convolution(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeParts]:
    with means(tmp_path_factory.mktemp("convolution"), CONVOLUTION % "True", "cpu") as ready:
        yield ready


def found(parts: RefereeParts, check: ModuleType, source: str) -> tuple[tuple[Outcome, Verdict], str]:
    result, detail, verdict = outcome(parts, check.CHECK, source, "cpp")
    return (result, verdict), detail


def changed(old: str, new: str) -> str:
    assert HONEST.count(old) == 1, old
    return HONEST.replace(old, new)


def test_both_are_asked_of_every_finalist() -> None:
    assert {construction.CHECK, relaid.CHECK} <= set(CHECKS) and relaid.CHECK.trained


@pytest.mark.parametrize(
    "source",
    [
        HONEST,
        changed("torch.randn(cols)", "torch.empty(cols).normal_()"),
        changed("self.weight = ", "torch.rand(3)\n        self.weight = "),
        changed("super().__init__()", 'super().__init__()\n        self.register_buffer("own", None)'),
        changed("y = (x", 'self.register_buffer("folded", self.weight + 1, persistent=False)\n        y = (x'),
    ],
    ids=["the reference's own", "in other words", "drawn in another order", "a buffer of nothing", "not persistent"],
)
def test_a_module_made_and_called_as_the_reference_passes(parts: RefereeParts, source: str) -> None:
    result, detail = found(parts, construction, source)
    assert result == PASSED, detail


@pytest.mark.parametrize(
    ("source", "wanted", "reason"),
    [
        (changed("shift=0.5", "shift=0.25"), WRONG, "output 0 of a module made without what has a default is wrong"),
        (changed("slope=0.01", "slope=0.2"), WRONG, "output 0 of a module made by its defaults is wrong"),
        (changed("power=2", "power=3"), WRONG, "output 0 of a call that leaves out what has a default is wrong"),
        (changed("shift=0.5", "shift").replace("slope=0.01", "slope"), RESERVED, "made without what has a default"),
        (changed("x, power=2", "x, power"), RESERVED, "a call that leaves out what has a default could not be made"),
        (
            changed("x, power=2", "input, power=2").replace("(x *", "(input *"),
            RESERVED,
            "by the names of its arguments could not be made: TypeError",
        ),
        (
            changed("x, power=2", "input=None, power=2, x=None").replace(
                "(x *", "(2 * x if input is None else input *"
            ),
            WRONG,
            "by the names of its arguments is wrong",
        ),
        (changed("torch.zeros(cols)", "torch.full((cols,), 1e30)"), RESERVED, "made anew, `bias` is not what"),
        (changed("torch.zeros(cols)", "torch.full((cols,), torch.nan)"), RESERVED, "made anew, `bias` is not what"),
        (changed("torch.randn(cols)", "torch.zeros(cols)"), RESERVED, "made anew, `weight` is not what"),
        (changed("torch.randn(cols)", "torch.randn(cols) / 4"), RESERVED, "made anew, `weight` is not what"),
        (changed("2.0)", "1.0)"), RESERVED, "made anew, `scale` is not what"),
        (
            changed("torch.zeros(cols)", "torch.zeros(cols), requires_grad=False"),
            WRONG,
            "parameter 'bias' has no gradient (requires_grad)",
        ),
        (
            changed("self.bias = nn.Parameter(torch.zeros(cols))", 'self.register_buffer("bias", torch.zeros(cols))'),
            WRONG,
            "parameter 'bias' has no gradient (requires_grad)",
        ),
        (
            changed("super().__init__()", "super().__init__()\n        self.bias = nn.Parameter(torch.zeros(cols))"),
            RESERVED,
            "its parameters are `bias`, `weight`, the reference's `weight`, `bias`, in this order",
        ),
        (
            changed("y = (x", 'self.register_buffer("folded", self.weight + 1)\n        y = (x'),
            RESERVED,
            "a call changes which parameters and buffers its state dict holds: `folded`",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else "",
)
def test_what_fails_whoever_swaps_a_module_in_shows(
    parts: RefereeParts, source: str, wanted: tuple[Outcome, Verdict], reason: str
) -> None:
    result, detail = found(parts, construction, source)
    assert result == wanted, detail
    assert reason in detail


def test_all_doubts_are_told_at_once(parts: RefereeParts) -> None:
    source = changed("torch.zeros(cols)", "torch.ones(cols)").replace("x, power=2", "input, power=2")
    result, detail = found(parts, construction, source.replace("(x *", "(input *"))
    assert result == RESERVED
    assert "`bias` is not what" in detail and "by the names" in detail


def test_names_that_are_none_are_a_lie(parts: RefereeParts) -> None:
    source = changed("def forward", "def state_dict(self, **kwargs):\n        return [1, 2]\n    def forward")
    assert found(parts, construction, source)[0] == (Outcome.FAILED, Verdict.SUSPICIOUS)


@pytest.mark.parametrize("check", [construction, relaid])
def test_an_honest_module_with_a_backward_passes(convolution: RefereeParts, check: ModuleType) -> None:
    result, detail = found(convolution, check, CONVOLVED % "")
    assert result == PASSED, detail


@pytest.mark.parametrize(
    ("read", "wanted", "reason"),
    [
        ("filters, weight = filters.contiguous(), weight.contiguous()", PASSED, "channels_last and swapped"),
        ("filters = dense(filters)", WRONG, "output 0 of a call with parameters in channels_last is wrong"),
        ("weight = dense(weight)", WRONG, "parameters whose last dimensions are swapped in memory is wrong"),
        ("assert weight.is_contiguous()", RESERVED, "swapped in memory could not be made: AssertionError"),
    ],
    ids=["contiguous", "filters taken for dense", "weight taken for dense", "refuses"],
)
def test_parameters_are_read_as_they_lie_in_memory(
    convolution: RefereeParts, read: str, wanted: tuple[Outcome, Verdict], reason: str
) -> None:
    result, detail = found(convolution, relaid, CONVOLVED % read)
    assert result == wanted, detail
    assert reason in detail


def test_gradients_go_to_the_parameters_that_are_there(convolution: RefereeParts) -> None:
    kept = "filters = self.__dict__.setdefault('kept', filters)"
    result, detail = found(convolution, relaid, CONVOLVED % kept)
    assert result == WRONG
    assert "output 2 of a call" in detail


def test_without_a_matrix_there_is_one_layout(parts: RefereeParts) -> None:
    (result, _verdict), detail = found(parts, relaid, HONEST)
    assert result is Outcome.NOT_APPLICABLE
    assert "no parameter has two dimensions" in detail


def test_without_a_backward_results_are_compared_alone(tmp_path: Path) -> None:
    with means(tmp_path, CONVOLUTION % "False", "cpu") as ready:
        assert found(ready, relaid, CONVOLVED % "")[0] == PASSED
        assert found(ready, relaid, CONVOLVED % "filters = dense(filters)")[0] == WRONG
