"""Models and inputs for the tests, and the judge's thresholds as the certificate has them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from .. import baselines
from ..dispatch import DropIn
from ..facts import KERNELS
from ..kernels import NotBuilt, candidate
from ..table import ROWS, Like, Row, called, construct, in_order, reference

EVERY = [pytest.param(row, id=f"{row.kernel.name}-{row.workload}") for row in ROWS if not row.unusable]


def _smallest(rows: list[Row]) -> Row:
    return min(rows, key=lambda row: sum(int(torch.Size(like.shape).numel()) for like in row.outputs))


SMALLEST = [
    pytest.param(_smallest(rows), id=kernel.name)
    for kernel in KERNELS
    if (rows := [row for row in ROWS if row.kernel is kernel and not row.unusable])
]
"""The smallest workload of each kernel."""

SLOWER = [
    pytest.param(row, id=f"{row.kernel.name}-{row.workload}")
    for row in ROWS
    if baselines.usable(row) and not row.unusable
]
"""The workloads that get a baseline."""


def needs(row: Row) -> None:
    """Skip the test where the row's kernel cannot run."""
    if row.kernel.device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    try:
        candidate(row.kernel)
    except NotBuilt as why:
        pytest.skip(str(why))


def device_of(row: Row) -> str:
    """Where tests of other calls than the kernel's run: on the CPU where the kernel's device is missing."""
    return row.kernel.device if row.kernel.device == "cpu" or torch.cuda.is_available() else "cpu"


def _sizes(row: Row, device: str) -> dict[str, Any]:
    """The workload's parameters; off its device, where gigabytes would take minutes, the file's own defaults."""
    if device == row.kernel.device:
        return row.params
    functions = (reference.get_inputs, reference.get_init_inputs)
    needed = [each for function in functions for each in inspect.signature(function).parameters.values()]
    return {} if all(each.default is not each.empty for each in needed) else row.params


def made(row: Row, device: str = "") -> tuple[DropIn, list[Any]]:
    """The drop-in of a row with parameters off their initial values, and inputs from get_inputs."""
    device = device or row.kernel.device
    params = _sizes(row, device)
    module = DropIn(*called(reference.get_init_inputs, params)).to(device)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.1 * torch.randn(parameter.shape).to(parameter))
    inputs = called(reference.get_inputs, params)
    return module, [value.to(device) if isinstance(value, torch.Tensor) else value for value in inputs]


def outpaced(row: Row) -> tuple[DropIn, list[Any]]:
    """`made`, where this row's baseline is what calls get as they come; elsewhere the test is skipped."""
    if row.kernel.device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    module, inputs = made(row)
    with torch.no_grad():
        said = module.explain(*inputs)
    if not said.startswith(f"baseline: {row.baseline} on {row.workload}: "):
        pytest.skip(said)
    return module, inputs


def judged_by(module: DropIn) -> torch.nn.Module:
    """The reference with the module's parameters and buffers, in float64: the truth."""
    exact: torch.nn.Module = construct(reference.Model, module._init).to(
        next(iter(module.state_dict().values()), torch.empty(0)).device
    )
    exact.load_state_dict(module.state_dict())
    return exact.double()


def wide(inputs: list[Any]) -> list[Any]:
    """Float tensors in float64."""
    floats = (isinstance(value, torch.Tensor) and value.is_floating_point() for value in inputs)
    return [value.detach().double() if float_ else value for value, float_ in zip(inputs, floats, strict=True)]


def threshold(row: Row, name: str) -> float:
    """The widest error that the judge allowed for `name` (output0, grad:x) on this workload."""
    layers = row.kernel.certificate()["layers"]
    rows = [each for layer in layers if layer["id"] == "numerics" for each in layer["rows"]]
    found = [
        float(each["threshold"])
        for each in rows
        if each["threshold"] is not None
        and each["name"].startswith(f"{row.workload}/")
        and each["name"].endswith(f"/{name}")
    ]
    assert found, f"the certificate has no threshold for {row.workload}/{name}"
    return max(found)


def error(output: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest relative error (root mean square) of the whole, of any row and of any column."""
    assert output.shape == truth.shape
    if not output.is_floating_point():
        return float((output != truth).sum())
    if not truth.numel():
        return 0.0
    last = truth.shape[-1] if truth.dim() else 1
    truth = truth.double().reshape(-1, last)
    wrong = output.double().reshape(-1, last) - truth
    worst = 0.0
    for dim in ((0, 1), (1,), (0,)):
        if dim != (0, 1) and truth.shape[dim[0]] < 16:  # too few to average over
            continue
        size, scale = wrong.square().mean(dim).sqrt(), truth.square().mean(dim).sqrt()
        floor = max(1e-3 * float(scale.median()), torch.finfo(torch.float32).tiny)
        worst = max(worst, float((size / scale.clamp_min(floor)).max()))
    return worst


def check(row: Row, names: list[str], outputs: Any, truths: Any) -> None:
    """Each output within the judge's threshold of the truth."""
    pairs = list(zip(names, in_order(outputs), in_order(truths), strict=True))
    for name, output, truth in pairs:
        assert error(output, truth) <= threshold(row, name), name


def tensors(row: Row, inputs: list[Any]) -> list[torch.Tensor]:
    """The tensors among a row's inputs."""
    return [value for value, like in zip(inputs, row.inputs, strict=True) if isinstance(like, Like)]
