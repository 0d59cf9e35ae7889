"""The kernels on their certified workloads. Skipped where the hardware or the compiler is missing."""

from __future__ import annotations

import pytest
import torch

from .. import dispatch
from ..ops import forward as op
from ..table import ROWS, Row, in_order, tensors_of
from .tolerances import EVERY, SMALLEST, check, judged_by, made, needs, tensors, wide


@pytest.mark.parametrize("row", EVERY)
def test_a_certified_workload_is_right(row: Row) -> None:
    needs(row)
    module, inputs = made(row)
    state = tensors_of(module)[1]
    with torch.no_grad():
        outputs = op(state, tensors(row, inputs), row.number)
        truths = judged_by(module)(*wide(inputs))
    check(row, [f"output{place}" for place in range(len(outputs))], outputs, truths)
    before = {tensor.untyped_storage().data_ptr() for tensor in (*state, *tensors(row, inputs))}
    assert not before & {output.untyped_storage().data_ptr() for output in outputs}


@pytest.mark.parametrize("row", EVERY)
def test_the_module_uses_the_kernel_that_it_says(row: Row) -> None:
    needs(row)
    module, inputs = made(row)
    dispatch.use("kernel")
    with torch.no_grad():
        assert module.explain(*inputs).startswith("kernel: ")
        mine = module(*inputs)
        used = dispatch.chosen(module._call(tuple(inputs)))
        assert used is not None and used.workload == row.workload
        theirs = op(tensors_of(module)[1], tensors(row, inputs), used.number)
    torch.testing.assert_close(in_order(mine), theirs)
    assert (type(mine) if row.container else None) is row.container


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kernel.name}-{row.workload}")
def test_as_it_comes_only_what_was_surely_faster_is_used(row: Row) -> None:
    if row.unusable:
        pytest.skip(row.unusable)
    needs(row)
    module, inputs = made(row)
    with torch.no_grad():
        used = dispatch.chosen(module._call(tuple(inputs)))
    assert used is None or used.faster


@pytest.mark.parametrize("row", SMALLEST)
def test_opcheck(row: Row) -> None:
    needs(row)
    module, inputs = made(row)
    given = [t.requires_grad_() if t.is_floating_point() else t for t in tensors(row, inputs)]
    torch.library.opcheck(
        op, ([each.detach().requires_grad_(each.requires_grad) for each in tensors_of(module)[1]], given, row.number)
    )


@pytest.mark.parametrize("row", SMALLEST)
def test_compiled_as_one_graph_it_gives_the_same(row: Row) -> None:
    needs(row)
    module, inputs = made(row)
    dispatch.use("kernel")
    compiled = torch.compile(lambda *values: module(*values), fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), module(*inputs))


@pytest.mark.parametrize("row", SMALLEST)
def test_the_function_compiles_as_one_graph(row: Row) -> None:
    needs(row)
    module, inputs = made(row)
    dispatch.use("kernel")
    init, state = row.init[0], module.state_dict() or None

    def function(*values: object) -> object:
        return dispatch.functional(*values, init=init, state=state)

    with torch.no_grad():
        expected = function(*inputs)
        torch.testing.assert_close(torch.compile(function, fullgraph=True, backend="eager")(*inputs), expected)


@pytest.mark.parametrize("row", SMALLEST)
def test_under_vmap_it_is_called_for_each(row: Row) -> None:
    needs(row)
    module, inputs = made(row)
    given, state = tensors(row, inputs), tensors_of(module)[1]
    with torch.no_grad():
        once = op(state, given, row.number)
        twice = torch.vmap(lambda *values: op(state, list(values), row.number))(*(torch.stack([t, t]) for t in given))
    for single, both in zip(once, twice, strict=True):
        torch.testing.assert_close(both, torch.stack([single, single]))


@pytest.mark.parametrize("row", SMALLEST)
def test_a_misaligned_input_is_right_too(row: Row) -> None:
    needs(row)
    module, inputs = made(row)
    shifted = []
    for tensor in tensors(row, inputs):
        room = torch.empty(
            tensor.untyped_storage().nbytes() // tensor.itemsize + 1, dtype=tensor.dtype, device=tensor.device
        )
        shifted.append(room[1:].as_strided(tensor.shape, tensor.stride(), 1).copy_(tensor))
    with torch.no_grad():
        state = tensors_of(module)[1]
        torch.testing.assert_close(op(state, shifted, row.number), op(state, tensors(row, inputs), row.number))
