"""The custom op: opaque to torch.compile, with shapes for tracing, gradients, and a rule for vmap.

    forward(Tensor[] state, Tensor[] inputs, int workload) -> Tensor[]

`state` holds parameters and buffers, so that autograd and torch.compile see them; `workload` is a row of the table. It
is for calls that are that very workload, as `dispatch` makes sure. Without a built kernel the reference runs.
"""

from __future__ import annotations

from typing import Any

import torch

from .facts import BACKWARD, KERNELS, PACKAGE
from .kernels import NotBuilt, call_kernel, call_reference
from .table import BY_NUMBER

NAME = f"{PACKAGE.replace('.', '_')}::forward"
_DEVICES = sorted({kernel.device for kernel in KERNELS})


@torch.library.custom_op(
    NAME,
    mutates_args=(),
    device_types=_DEVICES,
    schema="(Tensor[] state, Tensor[] inputs, int workload) -> Tensor[]",
)
def forward(state: list[torch.Tensor], inputs: list[torch.Tensor], workload: int) -> list[torch.Tensor]:
    """The kernel of a row on tensors that are like the row says."""
    row = BY_NUMBER[workload]
    with torch.no_grad():
        try:
            return call_kernel(row, state, inputs)
        except NotBuilt:
            return [output.clone() for output in call_reference(row, state, inputs)]


@forward.register_fake
def _fake(state: list[torch.Tensor], inputs: list[torch.Tensor], workload: int) -> list[torch.Tensor]:
    device = (inputs or state)[0].device
    return [
        torch.empty_strided(each.shape, each.full_strides, dtype=each.dtype, device=device)
        for each in BY_NUMBER[workload].outputs
    ]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    state, given, ctx.workload = inputs
    ctx.states = len(state)
    ctx.save_for_backward(*state, *given)


def _backward(ctx: Any, grads: list[torch.Tensor | None]) -> tuple[Any, ...]:
    """The candidate's own backward where it was judged; else, and in a trace, that of the reference. Both run forward
    once more: an op can hand over tensors from its forward to its backward, but no graph."""
    saved = ctx.saved_tensors
    leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in saved]
    row = BY_NUMBER[ctx.workload]
    state, inputs = leaves[: ctx.states], leaves[ctx.states :]
    with torch.enable_grad():
        outputs = _again(row, state, inputs, plain=all(type(tensor) is torch.Tensor for tensor in leaves))
    ends = [
        (output, torch.zeros_like(output) if grad is None else grad)
        for output, grad in zip(outputs, grads, strict=True)
        if output.requires_grad
    ]
    starts = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad([o for o, _ in ends], starts, [g for _, g in ends], allow_unused=True))
    gradients = [next(found) if leaf.requires_grad else None for leaf in leaves]
    return gradients[: ctx.states], gradients[ctx.states :], None


def _again(row: Any, state: list[torch.Tensor], inputs: list[torch.Tensor], *, plain: bool) -> list[torch.Tensor]:
    if BACKWARD and plain:
        try:
            return call_kernel(row, state, inputs)
        except NotBuilt:
            pass
    return call_reference(row, state, inputs)


forward.register_autograd(_backward, setup_context=_keep)


@forward.register_vmap
def _one_by_one(
    info: Any, in_dims: Any, state: list[torch.Tensor], inputs: list[torch.Tensor], workload: int
) -> tuple[list[torch.Tensor], list[int]]:
    """A kernel knows no batch: it is called for each of it."""
    state_dims, input_dims, _ = in_dims

    def part(tensors: list[torch.Tensor], dims: list[int | None], place: int) -> list[torch.Tensor]:
        return [t if dim is None else t.select(dim, place) for t, dim in zip(tensors, dims, strict=True)]

    calls = [
        forward(part(state, state_dims, place), part(inputs, input_dims, place), workload)
        for place in range(info.batch_size)
    ]
    return [torch.stack(outputs) for outputs in zip(*calls, strict=True)], [0] * len(calls[0])
