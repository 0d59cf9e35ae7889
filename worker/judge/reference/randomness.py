"""References that are random: told from honest noise by their seed, and blamed on the line that draws.

Another seed changes a draw's result by more than calls on one seed differ, again and again. What differs for the same
seed comes from the order of atomic additions, which is allowed as long as it is small.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from typing import Any

import torch

from worker.judge.reference.problem import Instance, Problem, call_reference
from worker.judge.verdict import ReferenceFailed

_DRAWS = frozenset({
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "bernoulli_",
    "multinomial", "normal", "normal_", "uniform_", "exponential_", "random_", "geometric_", "cauchy_", "log_normal_",
    "poisson", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu",
    "gumbel_softmax", "random", "uniform", "gauss", "choice", "shuffle", "sample", "rsample",
})  # fmt: skip
_RANDOM_LAYERS = frozenset({"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "RReLU"})
_NOISE = 1e-2
"""How far two calls on one seed may differ, relative and absolute: bf16 atomics in another order differ by 4e-3."""
_ROUNDS, _CLEARLY = 8, 8.0
"""A draw differs more between two seeds than calls on one seed do, so many times, in each of so many rounds. Few of the
sums of a small bf16 workload round another way when their atomics come in another order, so that two calls often agree
by luck: on four H100s the references of scatter_add and embedding_grad_rmsnorm_backward were called random by two
calls that agreed and a third. Of two results that come equally often, 19 calls go with the seeds once in 2^18 times."""


def refuse_random(
    problem: Problem, instance: Instance, inputs: tuple[Any, ...], first: tuple[torch.Tensor, ...] | None = None
) -> None:
    """Raise ReferenceFailed when the reference is random: calls on different seeds differ more than those on one.

    `first`, if given, is a result on these inputs, for a check that also sees what changes from call to call.
    """
    results = [_seeded(instance, inputs, seed) for seed in (1, 1, 2)]
    following = _follows_seed(instance, inputs, *results)
    if following is not None:
        line, text = random_call(problem.outline.source)
        where = f"line {line}: `{text}`: " if line else ""
        raise ReferenceFailed(
            f"{where}the reference is random: output {following} changes with the random seed; a judge needs one right "
            "answer, so take dropout and random draws out of forward"
        )
    for result in (*results[1:], *([first] if first else [])):
        place = _unlike(results[0], result)
        if place is not None:
            raise ReferenceFailed(
                f"the reference is random: output {place} differs between two calls on the same inputs and seed; "
                "it may count calls, read a clock, or use memory that it did not write"
            )


def _follows_seed(
    instance: Instance,
    inputs: tuple[Any, ...],
    first: tuple[torch.Tensor, ...],
    again: tuple[torch.Tensor, ...],
    other: tuple[torch.Tensor, ...],
) -> int | None:
    """The first output that another seed changes by more than noise does, or None. The results are of the seeds 1, 1
    and 2; more calls are made as long as it looks so."""
    within, between = _distances(first, again), _distances(first, other)
    for _ in range(_ROUNDS):
        if _clearly(within, between) is None:
            return None
        one, two = (_seeded(instance, inputs, seed) for seed in (1, 2))
        within = list(map(max, within, _distances(first, one), _distances(other, two)))
        between = list(map(min, between, _distances(one, two)))
    return _clearly(within, between)


def _clearly(within: list[float], between: list[float]) -> int | None:
    found = (place for place, (noise, gap) in enumerate(zip(within, between, strict=True)) if gap > _CLEARLY * noise)
    return next(found, None)


def random_call(source: str) -> tuple[int, str]:
    """(line, text) of the first random draw in Model's methods other than __init__, or (0, "") when none is seen."""
    for model in ast.walk(ast.parse(source)):
        if isinstance(model, ast.ClassDef) and any(_draws_in(model)):
            call = min(_draws_in(model), key=lambda node: node.lineno)
            return call.lineno, ast.unparse(call)[:80]
    return 0, ""


def _draws_in(model: ast.ClassDef) -> Iterator[ast.Call]:
    layers = _random_layers(model)
    for method in model.body:
        if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
            continue
        for node in ast.walk(method):
            if not isinstance(node, ast.Call):
                continue
            if _name(node.func) in _DRAWS | layers or any(map(_live_dropout, node.keywords)):
                yield node


def _random_layers(model: ast.ClassDef) -> set[str]:
    """Attributes that __init__ binds to a random layer, or to a container or a recurrent layer that has one."""
    found: set[str] = set()
    for node in ast.walk(model):
        if not isinstance(node, ast.Assign):
            continue
        inner = [part for part in ast.walk(node.value) if isinstance(part, ast.Call)]
        if any(_name(part.func) in _RANDOM_LAYERS or any(map(_live_dropout, part.keywords)) for part in inner):
            found |= {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
    return found


def _live_dropout(keyword: ast.keyword) -> bool:
    """`dropout=0.1` or `dropout_p=p`: anything but a literal zero."""
    if keyword.arg not in ("dropout", "dropout_p"):
        return False
    return not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _seeded(instance: Instance, inputs: tuple[Any, ...], seed: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(seed)
    random.seed(seed)
    copied = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs)
    return call_reference(instance.call, copied)


def _distances(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> list[float]:
    """The largest difference of each output; infinite where only one of two is NaN, or shapes differ."""
    return [_distance(one, two) for one, two in zip(first, second, strict=True)]


def _distance(one: torch.Tensor, two: torch.Tensor) -> float:
    if one.shape != two.shape:
        return float("inf")
    one, two = one.double(), two.double()
    gaps = (one - two).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    gaps = gaps.masked_fill((one == two) | (one.isnan() & two.isnan()), 0.0)
    return float(gaps.max()) if gaps.numel() else 0.0


def _unlike(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> int | None:
    """The first output that differs by more than noise may, or None."""
    for place, (one, two) in enumerate(zip(first, second, strict=True)):
        if one.shape != two.shape or not torch.allclose(
            one.double(), two.double(), rtol=_NOISE, atol=_NOISE, equal_nan=True
        ):
            return place
    return None
