"""What may be drawn for each argument of a reference: as declared in SPEC, else inferred, and why.

An integer argument is an index below the size of what it indexes, which one traced call of the reference shows (gather,
embedding, index_add, cross-entropy, ...). Floats are real numbers unless the reference has an operation that not
every number suits (log, sqrt, binary cross-entropy, ...): then it is called with normal, positive and unit probes in
turn, and the first domain that leaves its results finite is the argument's. Whatever has a structure that random values
would break stays as get_inputs makes it.

    domains = {name: found.domain for name, found in infer_domains(problem, instance).items()}
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from problems.catalog import Domain, Param
from worker.judge.inputs import real_values
from worker.judge.reference.op_trace import Trace, Use
from worker.judge.reference.problem import Instance, Problem, call_reference
from worker.judge.verdict import ReferenceFailed

_LIMITED = frozenset({
    "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "xlogy", "logit", "lgamma", "digamma", "acos",
    "asin", "acosh", "atanh", "erfinv", "special_ndtri", "binary_cross_entropy", "multinomial", "bernoulli",
    "poisson", "linalg_cholesky_ex", "cholesky", "linalg_inv_ex",
})  # fmt: skip
"""Operations that give NaN, or refuse, for some numbers."""
_ASSERTING = frozenset({"binary_cross_entropy", "multinomial", "bernoulli", "poisson"})
"""Those that end a CUDA context when they refuse: they are probed on the CPU."""
_PROBE_SEED = 20
_FINITE_SHARE = 0.999


@dataclass(frozen=True, slots=True)
class InferredDomain:
    """The values that the judge draws for one argument."""

    kind: str
    """`real`, `positive`, `unit`, `index` or `fixed`; where a SPEC says so `ascending`, `strictly_ascending` or
    `shuffled`."""
    bound: int | None
    """Exclusive upper bound of an index; None for others, and for an index that keeps its example's range."""
    why: str
    """In words, for the user."""

    @property
    def domain(self) -> Domain:
        """In the form in which a SPEC declares it."""
        return Domain(self.kind, self.bound)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def infer_domains(problem: Problem, instance: Instance) -> dict[str, InferredDomain]:
    """The domain of every argument of `instance`, in order. Raises ReferenceFailed when the reference does not run."""
    params = problem.parameters(instance.workload)
    _check_declared(problem, instance, params)
    uses = _trace(instance)
    probing = _Probing(instance, uses.operations)
    found: dict[str, InferredDomain] = {}
    for place, (name, value) in enumerate(zip(instance.arguments, instance.like, strict=True)):
        declared = problem.spec.domains.get(name)
        if declared is not None:
            found[name] = _declared(declared, value, uses.bounds.get(name), params)
        elif place >= instance.forward_inputs:
            found[name] = InferredDomain("real", None, "the gradient that flows into an output")
        elif not isinstance(value, torch.Tensor):
            found[name] = InferredDomain("fixed", None, f"a {type(value).__name__}, not a tensor")
        elif value.is_floating_point():
            found[name] = _float(value, place, probing)
        else:
            found[name] = _integer(value, uses.bounds.get(name))
    return found


def resolved(problem: Problem, instance: Instance) -> dict[str, Domain]:
    """The domains in the form that `inputs.draw` takes."""
    return {name: found.domain for name, found in infer_domains(problem, instance).items()}


def _check_declared(problem: Problem, instance: Instance, params: Mapping[str, Param]) -> None:
    """Raise ReferenceFailed where the file's own indices lie outside of what SPEC declares: the reference would read
    out of bounds, which ends a CUDA context and the judge with it."""
    for name, value in zip(instance.arguments, instance.like, strict=True):
        declared = problem.spec.domains.get(name)
        limit = declared.limit(params) if declared is not None and declared.kind == "index" else None
        if limit is None or not isinstance(value, torch.Tensor) or not value.numel():
            continue
        if limit == 0 or int(value.max()) >= limit:
            raise ReferenceFailed(
                f"get_inputs makes {name} up to {int(value.max())}, but SPEC declares an index below {limit}: make "
                "its values smaller, or the declared limit larger"
            )


def _declared(declared: Domain, value: Any, use: Use | None, params: Mapping[str, Param]) -> InferredDomain:
    limit = declared.limit(params)
    if declared.kind != "index" or limit is not None or use is None or not isinstance(value, torch.Tensor):
        return InferredDomain(declared.kind, limit, "declared in SPEC")
    return InferredDomain("index", use.size, f"declared in SPEC; {use}")


# --- integers -----------------------------------------------------------------------------------------------------


def _integer(value: torch.Tensor, use: Use | None) -> InferredDomain:
    if value.is_complex() or not value.numel():
        return InferredDomain("fixed", None, "complex numbers" if value.is_complex() else "empty")
    if value.dtype == torch.bool:
        return InferredDomain("fixed", None, "a boolean mask")
    form = _structure_of(value)
    if form:
        return InferredDomain("fixed", None, form)
    if use is not None and int(value.max()) < use.size:
        return InferredDomain("index", use.size, str(use))
    low, high = int(value.min()), int(value.max())
    return InferredDomain("index", None, f"integers that index nothing: {low} to {high}, as get_inputs makes them")


def _structure_of(value: torch.Tensor) -> str:
    """Why these integers cannot be replaced by random ones, or nothing."""
    if value.dim() != 1 or value.numel() < 2:
        return ""
    steps = value.diff()
    if int(value[0]) == 0 and bool((steps >= 0).all()) and bool((steps > 0).any()):
        return "offsets or positions: sorted, from 0"
    if value.numel() >= 8 and torch.equal(value.sort().values, torch.arange(value.numel()).to(value)):
        return "a permutation"
    return ""


def _trace(instance: Instance) -> Trace:
    inputs = _copied(instance.like[: instance.forward_inputs])
    named = zip(instance.arguments, inputs, strict=False)
    trace = Trace({name: value for name, value in named if isinstance(value, torch.Tensor) and _integral(value)})
    with trace:
        call_reference(instance.model, inputs)
    return trace


# --- floats -------------------------------------------------------------------------------------------------------


def _float(value: torch.Tensor, place: int, probing: _Probing) -> InferredDomain:
    if not value.numel():
        return InferredDomain("fixed", None, "empty")
    if not bool(torch.isfinite(value).all()):
        return InferredDomain("fixed", None, "get_inputs puts infinities or NaN into it, as an additive mask has")
    low, high = float(value.min()), float(value.max())
    if low >= 0 and high == 1 and bool(((value == 0) | (value == 1)).all()):
        return InferredDomain("unit", None, "get_inputs makes only zeros and ones: so does the judge")
    if real_values.sums_to_one(value) and low >= 0:
        return InferredDomain("unit", None, "probabilities: its rows sum to 1, and those drawn do")
    form = real_values.structure(value)
    why = f"any number, {form} as get_inputs makes it" if form else "any number"
    if not probing.needed or probing.suits(place, "real"):
        return InferredDomain("real", None, why)
    if low >= 0 and probing.suits(place, "positive"):
        return InferredDomain("positive", None, "the reference gives NaN or fails where it is negative")
    if low >= 0 and high <= 1 and probing.suits(place, "unit"):
        return InferredDomain("unit", None, "the reference gives NaN or fails outside of [0, 1]")
    return InferredDomain("fixed", None, "the reference gives NaN or fails on random values: only get_inputs' own")


class _Probing:
    """Calls the reference with one argument replaced by draws of a domain."""

    def __init__(self, instance: Instance, operations: set[str]) -> None:
        self.needed = bool(operations & _LIMITED)
        self._instance = instance
        self._device = "cpu" if operations & _ASSERTING else None
        self._call: Callable[..., Any] | None = None
        self._inputs: tuple[Any, ...] = ()
        self._own_share = 1.0

    def suits(self, place: int, kind: str) -> bool:
        """Whether the results stay as finite as on the example when the argument at `place` is of this domain."""
        call = self._prepared()
        inputs = list(_copied(self._inputs))
        like = inputs[place]
        generator = torch.Generator(device=like.device).manual_seed(_PROBE_SEED)
        make = {"real": real_values.values, "positive": real_values.positive, "unit": real_values.unit}[kind]
        drawn = make(like, "normal", generator).to(like.dtype)
        inputs[place] = real_values.shaped_as(drawn, real_values.structure(like))
        try:
            return _finite_share(call_reference(call, tuple(inputs))) >= _FINITE_SHARE * self._own_share
        except ReferenceFailed:
            return False

    def _prepared(self) -> Callable[..., Any]:
        if self._call is None:
            instance = self._instance
            model, inputs = copy.deepcopy(instance.model), instance.like[: instance.forward_inputs]
            if self._device is not None:
                model = model.to(self._device)
                inputs = tuple(v.to(self._device) if isinstance(v, torch.Tensor) else v for v in inputs)
            self._call, self._inputs = model, inputs
            self._own_share = _finite_share(call_reference(model, _copied(inputs)))
        return self._call


def _finite_share(outputs: tuple[torch.Tensor, ...]) -> float:
    """The smallest share of finite values among the outputs."""
    return min((float(torch.isfinite(output).double().mean()) for output in outputs if output.numel()), default=1.0)


def _integral(value: torch.Tensor) -> bool:
    return not value.is_floating_point() and not value.is_complex()


def _copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs)
