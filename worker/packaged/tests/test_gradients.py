"""Gradients: through the reference they pass gradcheck; through the op and through a kernel's own backward they are the
reference's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .. import baselines, dispatch
from ..facts import BACKWARD
from ..ops import forward as op
from ..table import Row, in_order, tensors_of
from .tolerances import EVERY, SLOWER, SMALLEST, check, device_of, judged_by, made, needs, outpaced, tensors, wide


def _float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _gradients(module: Any, inputs: list[Any]) -> tuple[list[str], list[torch.Tensor]]:
    """(names of parameters, gradients of float inputs and of those) for the same cotangents at every call."""
    leaves = [value.detach().requires_grad_() if _float(value) else value for value in inputs]
    floats = [each for each in in_order(module(*leaves)) if each.is_floating_point() and each.requires_grad]
    if not floats:
        pytest.skip("nothing here has a gradient")
    generator = torch.Generator().manual_seed(3)
    ends = [torch.randn(each.shape, generator=generator).to(each) for each in floats]
    trained = {name: parameter for name, parameter in module.named_parameters() if _float(parameter)}
    starts = [*(leaf for leaf in leaves if _float(leaf)), *trained.values()]
    found = torch.autograd.grad(floats, starts, ends, allow_unused=True)
    whole = [torch.zeros_like(start) if grad is None else grad for start, grad in zip(starts, found, strict=True)]
    return list(trained), whole


@pytest.mark.parametrize("row", SMALLEST)
def test_gradcheck_in_float64(row: Row) -> None:
    module, inputs = made(row, device_of(row))
    module.double()
    places = [place for place, value in enumerate(inputs) if _float(value)]
    names = [name for name, parameter in module.named_parameters() if _float(parameter)]
    leaves = [inputs[place].double().requires_grad_() for place in places]
    leaves += [module.get_parameter(name).detach().requires_grad_() for name in names]

    def function(*values: torch.Tensor) -> Any:
        given = wide(inputs)
        for place, value in zip(places, values, strict=False):
            given[place] = value
        state = dict(zip(names, values[len(places) :], strict=True))
        return torch.func.functional_call(module, state, tuple(given))

    if not leaves or not any(each.requires_grad for each in in_order(function(*leaves))):
        pytest.skip("nothing here has a gradient")
    assert torch.autograd.gradcheck(function, tuple(leaves), fast_mode=True)


@pytest.mark.parametrize("row", SMALLEST)
def test_through_the_op_they_are_the_references(row: Row) -> None:
    needs(row)
    module, inputs = made(row)
    given = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors(row, inputs)]
    state = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors_of(module)[1]]
    leaves = [t for t in (*state, *given) if t.requires_grad]
    dispatch.use("reference")
    values = iter(given)
    theirs = torch.func.functional_call(
        module,
        dict(zip(row.names, state, strict=True)),
        tuple(next(values) if isinstance(value, torch.Tensor) else value for value in inputs),
    )
    ends = [each for each in in_order(theirs) if each.requires_grad]
    if not ends or not leaves:
        pytest.skip("nothing here has a gradient")
    up = [torch.randn_like(each) for each in ends]
    mine = [each for each in op(state, given, row.number) if each.is_floating_point()]
    expected = torch.autograd.grad(ends, leaves, up, allow_unused=True)
    found = torch.autograd.grad(mine, leaves, up, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3 if BACKWARD else 1e-6, atol=1e-4 if BACKWARD else 1e-6)


@pytest.mark.parametrize("row", EVERY)
def test_a_kernels_own_backward_is_right(row: Row) -> None:
    if not BACKWARD:
        pytest.skip("the problem was judged forward only")
    needs(row)
    module, inputs = made(row)
    dispatch.use("kernel")
    assert module.explain(*inputs).startswith("kernel: ")
    names, mine = _gradients(module, inputs)
    _names, exact = _gradients(judged_by(module), wide(inputs))
    arguments = [name for name, value in zip(dispatch.ARGUMENTS, inputs, strict=False) if _float(value)]
    check(row, [f"grad:{name}" for name in (*arguments, *names)], mine, exact)


@pytest.mark.parametrize("row", SLOWER)
def test_those_of_a_baseline_are_right(row: Row) -> None:
    if not BACKWARD:
        pytest.skip("the problem was judged forward only")
    module, inputs = outpaced(row)
    assert module.explain(*inputs).startswith("baseline: ")
    names, mine = _gradients(module, inputs)
    _names, exact = _gradients(judged_by(module), wide(inputs))
    arguments = [name for name, value in zip(dispatch.ARGUMENTS, inputs, strict=False) if _float(value)]
    check(row, [f"grad:{name}" for name in (*arguments, *names)], mine, exact)
    assert row.number not in baselines.FAILED


@pytest.mark.parametrize("row", SMALLEST)
def test_compiled_as_one_graph_gradients_are_the_same(row: Row) -> None:
    needs(row)
    module, inputs = made(row)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for choice in ("auto", *(("kernel",) if BACKWARD else ())):
        dispatch.use(choice)
        torch._dynamo.reset()
        _names, expected = _gradients(module, inputs)
        _names, found = _gradients(compiled, inputs)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
