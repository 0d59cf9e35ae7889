"""A candidate keeps the reference's constructor and what it needs, and nothing of its forward."""

from __future__ import annotations

import ast

import pytest

from worker.builtin.candidate import candidate, reference_class
from worker.builtin.expressions import Unmatched

REFERENCE = '''
"""A docstring that is dropped."""
import math
import torch
import torch.nn as nn
from torch.nn import functional as F

WIDTH = 4
DEPTH = WIDTH * 2
OTHER = 3
SPEC = {"summary": "x"}

class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(DEPTH))

def helper(x):
    return F.gelu(x)

class Model(nn.Module):
    """Its docstring."""

    gain = 2.0

    def __init__(self, n: int = WIDTH):
        super(Model, self).__init__()
        self.part = Part()
        self._fill(n)

    def _fill(self, n):
        self.n = n

    def unused(self):
        return OTHER

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return helper(x)

def get_inputs():
    return [torch.randn(WIDTH)]

def get_init_inputs():
    return []
'''


def write(source: str = REFERENCE, kernel: str = "def _run(x):\n    return x", **tunables: list[int]) -> str:
    return candidate(
        source,
        plan='Quotes """ and a \\ backslash.',
        imports=["import platform"],
        tunables=tunables or {"BLOCK": [1, 2]},
        defaults={name: values[0] for name, values in (tunables or {"BLOCK": [1]}).items()},
        constraints=["BLOCK < 3"],
        kernel=kernel,
        returns="_run(x)",
    )


def test_the_class_is_renamed_everywhere_and_its_forward_replaced() -> None:
    _, model = reference_class(REFERENCE, "_run(x)")
    assert "class ModelNew(nn.Module)" in model and "super(ModelNew, self)" in model
    assert "def forward(self, x, *, scale=1.0):\n        return _run(x)" in model
    assert "Model(" not in model.replace("ModelNew(", "")


def test_what_the_constructor_needs_is_kept_and_the_rest_is_not() -> None:
    kept, model = reference_class(REFERENCE, "_run(x)")
    text = "\n".join(kept)
    assert "class Part" in text and "WIDTH = 4" in text and "DEPTH = WIDTH * 2" in text
    assert "OTHER" not in text and "helper" not in text and "SPEC" not in text
    assert "_fill" in model and "gain = 2.0" in model and "unused" not in model


def test_the_file_runs_and_has_the_reference_s_state() -> None:
    namespace: dict[str, object] = {"__name__": "candidate"}
    exec(compile(write(), "candidate", "exec"), namespace)
    model = namespace["ModelNew"]
    assert callable(model)
    assert list(model().state_dict()) == ["part.w"]
    assert namespace["BLOCK"] == 1 and namespace["TUNABLES"] == {"BLOCK": [1, 2]}


def test_the_plan_is_the_docstring_whatever_it_holds() -> None:
    assert ast.get_docstring(ast.parse(write())) == "Quotes ''' and a \\ backslash."


def test_a_name_that_both_sides_use_is_refused() -> None:
    with pytest.raises(Unmatched, match="WIDTH"):
        write(WIDTH=[1, 2])


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (REFERENCE.replace("class Model(", "class Other("), "no class Model"),
        (REFERENCE.replace("def forward(", "def backward("), "inherits its forward"),
    ],
)
def test_a_reference_that_cannot_be_kept_says_why(source: str, complaint: str) -> None:
    with pytest.raises(Unmatched, match=complaint):
        write(source)


def test_what_a_branch_s_functions_bind_is_theirs_alone() -> None:
    """Triton's kernels of a library stand in a branch, and have names of their own for all kinds of things."""
    library = "try:\n    import triton\nexcept ImportError:\n    triton = None\nif triton is not None:\n    REACH = 8\n"
    library += "    @triton.jit\n    def kernel(x):\n        self = WIDE = x + REACH\n        return self + WIDE\n"
    kept, _ = reference_class(REFERENCE + library, "_run(x)")
    assert "kernel" not in "\n".join(kept)
    write(REFERENCE + library, WIDE=[1, 2])
    within = REFERENCE.replace("self.n = n", "self.n = n + REACH") + library
    text = write(within)
    assert "REACH = 8" in text and "triton = None" in text
    with pytest.raises(Unmatched, match="REACH"):
        write(within, REACH=[1, 2])
