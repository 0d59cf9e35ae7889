"""One call of a problem that is judged on its gradients: forward, then backward from given cotangents.

Reference, baseline and candidate are wrapped alike, in the judge and in the runner, so that everything behind (arena,
checks, timing) sees one longer list of inputs and outputs::

    inputs   forward's inputs, then one cotangent per float output
    outputs  forward's outputs, then the gradient of every float input and of every parameter
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class NoGradient(Exception):
    """An output has no gradient history: forward must stay differentiable where the reference is."""


class Step:
    """Forward and backward of `model` as one function of tensors."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., Any], parameters: tuple[str, ...], inputs: int):
        """`call` is the model or its compiled form; `parameters` names those whose gradients count, in order; `inputs`
        is how many of the arguments are forward's own."""
        self._call, self._names, self.inputs = call, parameters, inputs
        known = dict(model.named_parameters())
        self._parameters = [known[name] for name in parameters]

    def of(self, model: torch.nn.Module) -> Step:
        """The same of another model of its kind, or of this one's parameters as they are now."""
        return Step(model, model, self._names, self.inputs)

    def __call__(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        """Raises NoGradient."""
        return self.interleaved(arguments, ())

    def interleaved(self, arguments: Sequence[Any], others: Sequence[Sequence[Any]]) -> tuple[torch.Tensor, ...]:
        """One call, with forwards on `others` (their own inputs lead) between its forward and its backward: what the
        backward needs must be kept for each forward, as where two batches share a module. Raises NoGradient."""
        leaves, cotangents = self._leaves(arguments), arguments[self.inputs :]
        outputs, wanted = self._outputs(leaves), self._wanted(leaves)
        for other in others:
            self._outputs(self._leaves(other))
        gradients = _gradients(outputs, wanted, cotangents)
        return (*(_detached(output) for output in outputs), *gradients)

    def summed(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The same for the sum of all that forward returns, and the gradients are the second ones that are taken from
        one graph. Raises NoGradient."""
        leaves = self._leaves(arguments)
        outputs, wanted = self._outputs(leaves), self._wanted(leaves)
        with torch.enable_grad():
            sums = [output.sum() for output in _floating(outputs)]
        torch.autograd.grad(sums, wanted, allow_unused=True, retain_graph=True)
        found = torch.autograd.grad(sums, wanted, allow_unused=True)
        return (*(_detached(output) for output in outputs), *_filled(found, wanted))

    def partial(
        self, arguments: Sequence[Any], needed: Collection[int], heard: Collection[int]
    ) -> tuple[torch.Tensor, ...]:
        """The same where other float inputs and parameters than those at `needed` are frozen (in the order of their
        gradients), and the loss is made of the float outputs at `heard` alone. A gradient that nobody asks for is
        zeros."""
        leaves, cotangents = self._leaves(arguments), arguments[self.inputs :]
        wanted = self._wanted(leaves)
        with _frozen([leaf for place, leaf in enumerate(wanted) if place not in needed]):
            outputs = self._outputs(leaves)
        floating = [output for output in outputs if _differentiable(output)]
        loss = [(floating[place], cotangents[place]) for place in heard if floating[place].requires_grad]
        found: list[torch.Tensor | None] = [None] * len(wanted)
        if loss:
            sums, slopes = zip(*loss, strict=True)
            gradients = torch.autograd.grad(sums, [wanted[place] for place in needed], slopes, allow_unused=True)
            for place, gradient in zip(needed, gradients, strict=True):
                found[place] = gradient
        return (*(_detached(output) for output in outputs), *_filled(found, wanted))

    def inputs_rewritten(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """One call in which all float inputs get other values in place before the backward, as where a loop uses one
        buffer for all activations. Raises NoGradient, and what torch raises where an input was kept for backward."""
        own = [_cloned(value) for value in arguments[: self.inputs]]
        leaves, cotangents = self._leaves(own), arguments[self.inputs :]
        outputs, wanted = self._outputs(leaves), self._wanted(leaves)
        kept = [_detached(output).clone() if isinstance(output, torch.Tensor) else output for output in outputs]
        with torch.no_grad():
            for leaf in leaves:
                if _differentiable(leaf):
                    leaf.mul_(-2).add_(0.5)  # not negated alone: a sigmoid's slope is the same there
        return (*kept, *_gradients(outputs, wanted, cotangents))

    def parameters_rewritten(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """One call in which all parameters get other values in place before the backward, as an optimizer's step does,
        and their own again after it. Raises NoGradient, and what torch raises where one was kept for backward."""
        leaves, cotangents = self._leaves(arguments), arguments[self.inputs :]
        outputs, wanted = self._outputs(leaves), self._wanted(leaves)
        before = [parameter.detach().clone() for parameter in self._parameters]
        try:
            with torch.no_grad():
                for parameter in self._parameters:
                    parameter.mul_(-2).add_(0.5)
            return (*(_detached(output) for output in outputs), *_gradients(outputs, wanted, cotangents))
        finally:
            with torch.no_grad():
                for parameter, value in zip(self._parameters, before, strict=True):
                    parameter.copy_(value)

    def results_rewritten(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """One call in which all float outputs are negated in place before the backward, whose cotangents are negated
        too: the gradients are those of a usual call. Raises NoGradient."""
        leaves, cotangents = self._leaves(arguments), arguments[self.inputs :]
        outputs, wanted = self._outputs(leaves), self._wanted(leaves)
        kept = [_detached(output).clone() if isinstance(output, torch.Tensor) else output for output in outputs]
        with torch.enable_grad():
            for output in _floating(outputs):
                output.neg_()
        return (*kept, *_gradients(outputs, wanted, [-cotangent for cotangent in cotangents]))

    def _leaves(self, arguments: Sequence[Any]) -> list[Any]:
        return [_leaf(value) for value in arguments[: self.inputs]]

    def _wanted(self, leaves: list[Any]) -> list[torch.Tensor]:
        """What has a gradient, in the order of the outputs."""
        return [*(leaf for leaf in leaves if _differentiable(leaf)), *self._parameters]

    def _outputs(self, leaves: list[Any]) -> tuple[Any, ...]:
        with torch.enable_grad():
            result = self._call(*leaves)
        return tuple(result) if isinstance(result, tuple | list) else (result,)


@contextmanager
def _frozen(leaves: Sequence[torch.Tensor]) -> Iterator[None]:
    for leaf in leaves:
        leaf.requires_grad_(False)
    try:
        yield
    finally:
        for leaf in leaves:
            leaf.requires_grad_()


def _gradients(outputs: tuple[Any, ...], wanted: list[torch.Tensor], cotangents: Sequence[Any]) -> list[torch.Tensor]:
    floating = _floating(outputs)
    found = torch.autograd.grad(floating, wanted, cotangents[: len(floating)], allow_unused=True)
    return _filled(found, wanted)


def _floating(outputs: tuple[Any, ...]) -> list[torch.Tensor]:
    floating = [output for output in outputs if _differentiable(output)]
    for index, output in enumerate(floating):
        if not output.requires_grad:
            raise NoGradient(f"float output {index} carries no gradient: was it detached, or computed under no_grad?")
    return floating


def _filled(found: Sequence[torch.Tensor | None], wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(wanted, found, strict=True)]


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_() if _differentiable(value) else value


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
