"""What holds on any machine: the evidence is what was signed, other calls get the reference, state dicts are its."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pytest
import torch

from .. import dispatch
from ..facts import BACKWARD, HERE, KERNELS, Kernel, document_hash
from ..table import ROWS, Row, construct, in_order, reference
from .tolerances import SMALLEST, device_of, made


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_candidate_reference_and_certificate_are_those_that_were_signed(kernel: Kernel) -> None:
    document = kernel.certificate()
    assert document["certified"] is True
    assert document["sha256"] == document_hash(document)
    for part, path in (("candidate", kernel.path), ("problem", HERE / "reference.py")):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == document[part]["sha256"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kernel.name}-{row.workload}")
def test_the_table_has_the_shapes_of_the_certificate(row: Row) -> None:
    (signed,) = (each for each in row.kernel.certificate()["problem"]["workloads"] if each["name"] == row.workload)
    if row.unusable:
        pytest.skip(row.unusable)
    assert len(signed["inputs"]) >= len(row.inputs)  # forward's own, then cotangents where the backward was judged
    for said, like in zip(signed["inputs"], row.inputs, strict=False):
        if hasattr(like, "shape"):
            dtype = str(like.dtype).removeprefix("torch.")
            assert said == f"{dtype} {' x '.join(map(str, like.shape)) or 'scalar'}"


def _outside(row: Row, case: str) -> tuple[Any, list[Any]]:
    """A module and inputs that no certificate covers."""
    module, inputs = made(row, device_of(row))
    floats = [place for place, value in enumerate(inputs) if torch.is_tensor(value) and value.is_floating_point()]
    first = next((place for place, value in enumerate(inputs) if torch.is_tensor(value)), None)
    if case == "float64":
        return module.double(), [value.double() if place in floats else value for place, value in enumerate(inputs)]
    if first is None or (case == "requires_grad" and (BACKWARD or not floats)):
        pytest.skip("not for this problem")
    if case == "requires_grad":
        inputs[floats[0]].requires_grad_()
    elif case == "layout":
        if inputs[first].dim() < 2 or 1 in inputs[first].shape:
            pytest.skip("needs a matrix")
        inputs[first] = inputs[first].mT.contiguous().mT
    elif case == "subclass":
        inputs[first] = inputs[first].as_subclass(type("Mine", (torch.Tensor,), {}))
    return module, inputs


@pytest.mark.parametrize("case", ["float64", "layout", "subclass", "requires_grad"])
@pytest.mark.parametrize("row", SMALLEST)
def test_other_calls_get_the_reference(row: Row, case: str) -> None:
    module, inputs = _outside(row, case)
    said = module.explain(*inputs)
    assert said.startswith("reference: "), said
    same = construct(reference.Model, module._init).to(device_of(row))
    same.to(next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32))
    same.load_state_dict(module.state_dict())
    # A layout may have eager add up in another order, but both do the same.
    torch.testing.assert_close(module(*inputs), same(*inputs), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("row", SMALLEST)
def test_transforms_get_the_reference(row: Row) -> None:
    module, inputs = made(row, device_of(row))
    places = [place for place, value in enumerate(inputs) if torch.is_tensor(value)]
    said = []

    def function(*values: torch.Tensor) -> torch.Tensor:
        given = list(inputs)
        for place, value in zip(places, values, strict=True):
            given[place] = value
        said.append(module.explain(*given))
        return values[0]

    with torch.no_grad():
        torch.vmap(function)(*(inputs[place].unsqueeze(0) for place in places))
    assert said[0].startswith("reference: ")


@pytest.mark.parametrize("row", SMALLEST)
def test_the_switch_is_obeyed(row: Row) -> None:
    module, inputs = _outside(row, "float64")
    dispatch.use("kernel")
    with pytest.raises(dispatch.NotCovered):
        module(*inputs)
    dispatch.use("reference")
    assert "says so" in module.explain(*inputs)
    module(*inputs)
    with pytest.raises(ValueError, match="say one of"):
        dispatch.use("fast")


@pytest.mark.parametrize("row", SMALLEST)
def test_the_state_dict_is_the_references(row: Row) -> None:
    module, inputs = made(row, device_of(row))
    theirs = construct(reference.Model, module._init).to(device_of(row))
    assert list(module.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(module.state_dict())
    saved = io.BytesIO()
    torch.save(theirs.state_dict(), saved)
    saved.seek(0)
    again = construct(dispatch.DropIn, module._init).to(device_of(row))
    again.load_state_dict(torch.load(saved, weights_only=True))
    with torch.no_grad():
        torch.testing.assert_close(again(*inputs), module(*inputs), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("row", SMALLEST)
def test_the_function_does_what_the_module_does(row: Row) -> None:
    module, inputs = made(row, device_of(row))
    with torch.no_grad():
        found = dispatch.functional(*inputs, init=module._init[0], state=module.state_dict() or None)
        torch.testing.assert_close(found, module(*inputs), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("row", SMALLEST)
def test_a_changed_attribute_is_noticed(row: Row) -> None:
    module, inputs = made(row, device_of(row))
    if not module._made_with:
        pytest.skip("the module has no attributes")
    part, name, value = module._made_with[-1]
    vars(part)[name] = "something else"
    with torch.no_grad():
        assert module.explain(*inputs).startswith("reference: ")
    vars(part)[name] = value
    assert len(in_order(module(*inputs))) == len(row.outputs)
