"""Probes and variants of a problem: what else a candidate is asked beside the workloads. Made once per problem.

A *probe* changes one input, one parameter or one element of a parameter of the smallest workload and nothing else. A
*variant* is a workload of other shapes, in another memory layout, or with values that its families do not have.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from problems.catalog import Domain, Param, Workload
from worker.judge.inputs import families, ordered
from worker.judge.inputs.constants import other_arguments, other_constants
from worker.judge.inputs.layouts import LAYOUTS
from worker.judge.numerics.case import PARKED_BYTES, Case
from worker.judge.numerics.truth import Truth
from worker.judge.reference.domains import resolved
from worker.judge.reference.problem import Instance, Problem, call_reference, cotangents_of
from worker.judge.verdict import ReferenceFailed, ReferenceFull

_SIZES = (3, 7, 33, 257)
"""Sizes that no tile divides: odd, just over a warp, just over a block."""
_MAX_SHAPES, _MAX_PROBES, _MAX_CONSTRUCTED = 12, 16, 4
_MAX_GROWTH, _MORE_INPUTS, _MORE_PARAMETERS = 4.0, 1 << 20, 20 << 20
"""A variant's inputs may be this much larger than the smallest workload's, and its parameters, and have so many bytes
more: weights that one layer makes for each sample are of a size squared (9.5 GB in the judge of a CPU)."""
_GROWN = 1.5
"""A variant with so many times the bytes of the smallest workload is one that was stretched."""
_MOVED_UNITS = 8.0
_LARGE_TIMES = 8.0
_CANNOT_HOLD = (RuntimeError, ValueError, IndexError)
"""What drawing values for sizes that a family or a domain cannot hold ends in: such a variant is left out."""
_FULL = (torch.OutOfMemoryError, ReferenceFull)
"""No reason to leave a variant out: whoever fills the device would be spared its checks."""
_BEYOND_16_BITS = 70_000
_LONG, _LONG_BYTES = 65_539, 20 << 20
"""A size that 16 bits cannot count, for each parameter with which the inputs are no larger than this: a sort of edges
by 16-bit numbers was right on each of up to 65,536, however many numbers an edge had."""
_FEW = 8
"""Elements of a cotangent that are not zero, in `sparse`."""
_BOTH_BYTES = 1 << 20
"""Variants with more bytes of inputs are asked for one family: comparing 8 MiB of outputs costs 0.1 s on two cores."""
_MASKED_SHARE, _MAX_MASKED = 0.05, 4
_FEW_MASKED_ROWS, _MASKED_TRIES = 2, 3
"""Masks in so few rows where masks in all make a result infinite, as one of 1,024 targets is hidden then: for the mean
of a loss that takes 0 times -inf there was no mask at all. Two rows spare their targets nine times of ten."""
_GROSS_ERROR = 1e-2


@dataclass(frozen=True, slots=True)
class Probe:
    """The base case with one tensor drawn anew, or one element of it."""

    name: str
    """The input's or parameter's name."""
    case: Case
    state: Mapping[str, torch.Tensor] | None
    """The changed parameter, for a probe of a parameter."""
    moved: tuple[bool, ...]
    """For each output: whether the reference's result changed by more than its own rounding."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Another workload or layout."""

    name: str
    instance: Instance
    cases: tuple[Case, ...]
    shift: int = 0
    """Elements by which every input is misaligned."""
    compared: bool = True
    """Whether the reference has results there to compare with."""
    listed: bool = False
    """Whether its sizes are a workload's own, so that nothing of it may be refused."""
    threads: int = 0
    """How many a CPU's runner has meanwhile, if it is not the usual number."""


def make_probes(truth: Truth, base: Case, domains: Mapping[str, Domain], generator: torch.Generator) -> list[Probe]:
    """One probe per float or index input, and two per parameter of one workload: of all its elements, and of one, which
    a kernel misses that keeps prepared weights and looks at some of them. Raises ReferenceFailed."""
    instance = truth.instance
    probes = []
    for index, name in enumerate(instance.arguments):
        value = base.inputs[index]
        if families.kind_of(value, domains.get(name)) == "fixed":
            continue
        drawn = families.draw(instance.like, instance.arguments, domains, instance.workload.params, "normal", generator)
        changed = (*base.inputs[:index], drawn[index], *base.inputs[index + 1 :])
        case = truth.case(f"other {name}", changed)
        probes.append(Probe(name, case, None, _moved(base, case)))
    probes += _of_all_parameters(truth, base, generator) + _of_statistics(truth, base, generator)
    parameters = [(name, each) for name, each in instance.model.named_parameters() if each.is_floating_point()]
    for other, fewest in ((_other_values, 1), (_another_element, 2)):
        for name, parameter in parameters:
            if parameter.numel() >= fewest and len(probes) < _MAX_PROBES:
                state = {name: other(parameter, generator)}
                case = truth.with_state(state).case(f"other {name}", base.inputs)
                probes.append(Probe(name, case, state, _moved(base, case)))
    return probes[:_MAX_PROBES]


def _of_all_parameters(truth: Truth, base: Case, generator: torch.Generator) -> list[Probe]:
    """All parameters at once, as they are nowhere near their beginning."""
    named = [(name, each) for name, each in truth.instance.model.named_parameters() if each.is_floating_point()]
    states = (
        ("with signs and zeros", {name: _signs_and_zeros(each, generator) for name, each in named}),
        ("large", {name: each.detach() * _LARGE_TIMES for name, each in named}),
    )
    cases = ((what, state, truth.with_state(state).case("other parameters", base.inputs)) for what, state in states)
    return [
        Probe(f"all parameters, {what}", case, state, _moved(base, case))
        for what, state, case in cases
        if named and case.finite
    ]


def _of_statistics(truth: Truth, base: Case, generator: torch.Generator) -> list[Probe]:
    """Each buffer of floats: folded into weights once, they were never read again."""
    model, found = truth.instance.model, []
    kept = model.state_dict()
    for name, buffer in model.named_buffers():
        if name in kept and buffer.is_floating_point() and buffer.numel():
            noise = torch.rand(buffer.shape, generator=generator, device=buffer.device)
            state = {name: (buffer * (1 + noise)).to(buffer.dtype)}  # of the same sign, as a variance has to be
            case = truth.with_state(state).case(f"other {name}", base.inputs)
            found += [Probe(name, case, state, _moved(base, case))] if case.finite else []
    return found


def _signs_and_zeros(parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Half of the signs turned, and a quarter of the elements zero, as gains that start at zero have it: a scale that
    was taken for positive, and a backward that divides by one, were certified."""
    if parameter.numel() == 1:
        return -parameter.detach()
    chosen = torch.rand(parameter.shape, generator=generator, device=parameter.device)
    flipped = torch.where(chosen < 0.5, -parameter.detach(), parameter.detach())
    return torch.where((chosen * 4) % 1 < 0.25, torch.zeros_like(flipped), flipped)


def _other_values(parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(parameter.shape, generator=generator, device=parameter.device)
    spread = float(parameter.detach().float().std()) if parameter.numel() > 1 else 1.0
    return parameter.detach() + (0.5 * (spread or 1.0) * noise).to(parameter.dtype)


def _another_element(parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The same values but for one, anywhere, which moves by two standard deviations."""
    changed = parameter.detach().clone()
    place = tuple(
        int(torch.randint(size, (1,), generator=generator, device=generator.device)) for size in changed.shape
    )
    changed[place] += 2.0 * (float(changed.float().std()) or 1.0)
    return changed


def _moved(base: Case, case: Case) -> tuple[bool, ...]:
    found: list[bool] = []
    for index, (after, eager) in enumerate(zip(case.truth, case.eager, strict=True)):
        before = base.exact(index)
        if before.shape != after.shape or not eager.is_floating_point():
            found.append(before.shape != after.shape or not torch.equal(before, after))
            continue
        unit = torch.finfo(eager.dtype).eps
        change = (after - before).abs().nan_to_num(0.0)
        found.append(bool((change > _MOVED_UNITS * unit * before.abs().nan_to_num(0.0) + 1e-30).any()))
    return tuple(found)


def make_shapes(problem: Problem, smallest: Instance, domains: Mapping[str, Domain], seed: int) -> list[Variant]:
    """Workloads of other sizes on which the reference runs, with one case each."""
    device = _device_of(smallest)
    found: list[Variant] = []
    rng = random.Random(seed)
    indexed = any(_integral(value) for value in smallest.like)
    elements = max((value.numel() for value in smallest.like if isinstance(value, torch.Tensor)), default=1)
    for workload in _resized(smallest.workload, elements, rng):
        if len(found) == _MAX_SHAPES:
            break
        variant = _shape_variant(problem, workload, device, seed, smallest, indexed=indexed)
        if variant is not None:
            found.append(variant)
    return found or _resized_batches(problem, smallest, domains, seed)


def make_patterns(truth: Truth, domains: Mapping[str, Domain], seed: int) -> list[Variant]:
    """A workload with values and indices that whoever samples them, or shares them out to lanes, gets wrong. Cotangents
    of `sparse` are zero but for a few elements in all. Where there are indices, offsets or keys, a case follows in
    which a few of them moved, and nothing else: who knows those of the last call again by some of them is wrong."""
    instance = truth.instance
    generator = torch.Generator(device=_device_of(instance)).manual_seed(seed)
    if families.applicable(instance.arguments, domains, instance.like) == (families.OWN,):
        return []
    cases = []
    params = instance.workload.params
    for family in families.PATTERNS:
        inputs = families.draw(instance.like, instance.arguments, domains, params, family, generator)
        if family == families.SPARSE:
            own, cotangents = inputs[: instance.forward_inputs], inputs[instance.forward_inputs :]
            inputs = (*own, *(_all_but_few_zero(value, generator) for value in cotangents))
        cases.append(_pattern(truth, family, inputs))
        if family == families.STRIDED:
            moved = _with_some_moved(instance, inputs, domains, random.Random(seed))
            cases += [_pattern(truth, families.MOVED, moved)] if moved else []
    kept = tuple(case for case in cases if case is not None and case.finite)
    return [Variant(f"{instance.workload.name} with patterns", instance, kept, listed=True)] if kept else []


def _pattern(truth: Truth, family: str, inputs: tuple[Any, ...]) -> Case | None:
    """None outside of the reference's domain."""
    try:
        case = truth.case(family, inputs)
    except _FULL:
        raise
    except ReferenceFailed:
        return None
    return case.parked() if case.nbytes > PARKED_BYTES else case


def _with_some_moved(
    instance: Instance, inputs: tuple[Any, ...], domains: Mapping[str, Domain], rng: random.Random
) -> tuple[Any, ...] | None:
    """`inputs` with some indices changed, and some elements of what has an order; None where there is neither."""
    kinds = [families.kind_of(value, domains.get(name)) for name, value in zip(instance.arguments, inputs, strict=True)]
    if set(kinds).isdisjoint(families.SPREAD):
        return None
    changed = [value.clone() if kind in families.SPREAD else value for kind, value in zip(kinds, inputs, strict=True)]
    for kind, value in zip(kinds, changed, strict=True):
        if kind in families.SPREAD:
            ordered.move_some(value, kind, rng)
    return tuple(changed)


def make_masked(truth: Truth, domains: Mapping[str, Domain], seed: int) -> list[Variant]:
    """A workload with -inf for one in twenty of an argument's numbers, as a mask leaves them, one argument after the
    other, and where no result is infinite for it. Among other special values a loss is NaN for other reasons. Not of
    8-bit floats, most of which have no infinity."""
    instance = truth.instance
    generator = torch.Generator(device=_device_of(instance)).manual_seed(seed)
    cases: list[Case | None] = []
    for name, value in zip(instance.arguments[: instance.forward_inputs], instance.like, strict=False):
        real = families.kind_of(value, domains.get(name)) == "real" and value.element_size() > 1
        if not real or value.dim() < 2 or len(cases) == _MAX_MASKED:
            continue
        cases.append(_with_a_mask(truth, domains, name, generator))
    kept = tuple(case for case in cases if case is not None)
    return [Variant(f"{instance.workload.name} with a mask", instance, kept, listed=True)] if kept else []


def _with_a_mask(truth: Truth, domains: Mapping[str, Domain], name: str, generator: torch.Generator) -> Case | None:
    """None where every mask of this argument makes a result infinite."""
    instance, params = truth.instance, truth.instance.workload.params
    tries = _MASKED_TRIES if any(_integral(value) for value in instance.like) else 1  # else nothing can be spared
    for attempt in range(tries):
        inputs = families.draw(instance.like, instance.arguments, domains, params, "normal", generator)
        inputs = tuple(
            _masked(each, generator, few=attempt > 0) if other == name else each
            for other, each in zip(instance.arguments, inputs, strict=True)
        )
        case = _pattern(truth, families.MASKED, inputs)
        if case is not None and case.finite:
            return case
    return None


def _masked(value: torch.Tensor, generator: torch.Generator, *, few: bool) -> torch.Tensor:
    hidden = torch.rand(value.shape, generator=generator, device=value.device) < _MASKED_SHARE
    hidden[..., :1] = False  # no row is hidden whole
    if few:
        rows = hidden.view(-1, hidden.shape[-1])
        order = torch.randperm(len(rows), generator=generator, device=value.device)
        rows[order[_FEW_MASKED_ROWS:]] = False
    return torch.where(hidden, torch.full_like(value, -torch.inf), value)


def make_served(problem: Problem, instance: Instance, seed: int) -> list[Variant]:
    """A workload that is trained with, called for its results alone: one rounded them to bf16 then."""
    if not instance.backward:
        return []
    workload = replace(instance.workload, name=f"{instance.workload.name} without gradients", backward=False)
    indexed = any(_integral(value) for value in instance.like)
    variant = _shape_variant(problem, workload, _device_of(instance), seed, instance, indexed=indexed)
    return [replace(variant, listed=True)] if variant is not None and variant.compared else []


def make_constructed(problem: Problem, instance: Instance, seed: int) -> list[Variant]:
    """A workload whose model gets other numbers than the file lists (rates, epsilons, a temperature), one float or
    tuple of floats of its constructor after the other: an AdamW with its defaults for constants was certified."""
    device = _device_of(instance)
    found: list[Variant] = []
    for name, value, init in itertools.islice(other_constants(instance), _MAX_CONSTRUCTED):
        workload = replace(instance.workload, name=f"{instance.workload.name} made with {name}={value}")
        with _unless_it_cannot_be():
            other = problem.instance(workload, device, seed, init)
            found.append(_variant(problem, other, resolved(problem, other), device, seed, grown=False))
    return found


def make_called(problem: Problem, instance: Instance, seed: int) -> list[Variant]:
    """A workload that is called with other numbers than get_inputs gives, where forward has arguments that are no
    tensors: a kernel with those of the file in its source was accepted."""
    device = _device_of(instance)
    found: list[Variant] = []
    for name, value, like in itertools.islice(other_arguments(instance), _MAX_CONSTRUCTED):
        workload = replace(instance.workload, name=f"{instance.workload.name} called with {name}={value}")
        with _unless_it_cannot_be():
            own = like[: instance.forward_inputs]
            slopes = cotangents_of(instance.model, own) if instance.backward else ()
            other = replace(instance, workload=workload, like=(*own, *slopes))
            found.append(_variant(problem, other, resolved(problem, other), device, seed, grown=False))
    return [variant for variant in found if variant.compared]


def make_one_more(problem: Problem, instance: Instance, seed: int) -> list[Variant]:
    """A large workload with one more of each size, or of the first for which the reference takes that: a kernel may
    leave out what follows the last whole piece where there is much, and nowhere else."""
    params = instance.workload.params
    sizes = {key: value for key, value in params.items() if type(value) is int and value > 1}
    device = _device_of(instance)
    indexed = any(_integral(value) for value in instance.like)
    for keys in (tuple(sizes), *((key,) for key in sizes)):
        workload = _with_params(instance.workload, {key: sizes[key] + 1 for key in keys})
        variant = _shape_variant(problem, workload, device, seed, instance, indexed=indexed)
        if variant is not None:
            return [variant]
    return []


def _all_but_few_zero(cotangent: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    places = torch.randint(cotangent.numel(), (_FEW,), generator=generator, device=cotangent.device)
    drawn = torch.randn(_FEW, generator=generator, device=cotangent.device).to(cotangent.dtype)
    flat = torch.zeros(cotangent.numel(), dtype=cotangent.dtype, device=cotangent.device)
    return torch.empty_like(cotangent).copy_(flat.index_copy_(0, places, drawn).view(cotangent.shape))


def _device_of(instance: Instance) -> str:
    return next((value.device.type for value in instance.like if isinstance(value, torch.Tensor)), "cpu")


def _resized(workload: Workload, elements: int, rng: random.Random) -> Iterator[Workload]:
    """Every size parameter at one; each of them larger, so that an input of `elements` elements has more than 16 bits
    can count; the first at zero; each beyond 16 bits; each larger by one, which is even where the workload's is odd;
    then sizes at random that no tile divides."""
    sizes = {key: value for key, value in workload.params.items() if type(value) is int and value > 1}
    if not sizes:
        return
    for key in sizes:
        yield _with_params(workload, {key: 1})
    times = max(2, _BEYOND_16_BITS // max(1, elements) + 1)
    for key, size in sizes.items():
        yield _with_params(workload, {key: times * size + 1})
    yield _with_params(workload, {next(iter(sizes)): 0})
    for key in sizes:
        yield _with_params(workload, {key: _LONG})
    for key, size in sizes.items():
        yield _with_params(workload, {key: size + 1})
    others = [(key, size) for key, value in sizes.items() for size in (*_SIZES, value - 1) if size != value]
    rng.shuffle(others)
    for key, size in others:
        yield _with_params(workload, {key: size})


def _with_params(workload: Workload, changes: Mapping[str, Param]) -> Workload:
    text = ", ".join(f"{key}={value}" for key, value in changes.items())
    return replace(workload, name=f"{workload.name} with {text}", params={**workload.params, **changes})


def _size(instance: Instance) -> int:
    """Bytes of one set of inputs."""
    return sum(getattr(value, "nbytes", 0) for value in instance.like)


def _stretched(workload: Workload, smallest: Workload) -> bool:
    """Whether a size is many times the smallest workload's."""
    pairs = ((value, smallest.params.get(key)) for key, value in workload.params.items())
    return any(type(new) is int and type(old) is int and new > _MAX_GROWTH * old for new, old in pairs)


def _parameter_bytes(instance: Instance) -> int:
    return sum(parameter.nbytes for parameter in instance.model.parameters())


def _shape_variant(
    problem: Problem, workload: Workload, device: str, seed: int, smallest: Instance, *, indexed: bool
) -> Variant | None:
    """None when the reference does not accept these sizes, or they are too large beside those of `smallest`. `indexed`:
    some inputs are integers."""
    largest = _MAX_GROWTH * _size(smallest) + _MORE_INPUTS
    most_parameters = _MAX_GROWTH * _parameter_bytes(smallest) + _MORE_PARAMETERS
    try:
        # Before any of it is made: 65,539 columns may be gigabytes.
        long = _LONG in workload.params.values()
        expected = problem.footprint(workload) if long or _stretched(workload, smallest.workload) else None
        if expected is not None and expected.parameters > most_parameters:
            return None
        if long:
            if expected is None or expected.inputs + expected.parameters + expected.outputs > _LONG_BYTES:
                return None
            largest = _LONG_BYTES
        if indexed and device != "cpu":
            # An index out of bounds is an error on the CPU; on a GPU it ends the context, and the judge with it.
            first = problem.instance(workload, "cpu", seed)
            if _size(first) <= largest:
                call_reference(first.model, first.like[: first.forward_inputs])
        instance = problem.instance(workload, device, seed)
        if _size(instance) > largest or _parameter_bytes(instance) > most_parameters:
            return None
        grown = _size(instance) > _GROWN * _size(smallest)
        return _variant(problem, instance, resolved(problem, instance), device, seed, grown=grown)
    except _FULL:
        raise
    except (ReferenceFailed, *_CANNOT_HOLD):
        return None


def _integral(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())


def _variant(
    problem: Problem, instance: Instance, domains: Mapping[str, Domain], device: str, seed: int, *, grown: bool
) -> Variant:
    """Rows of all families, and rows of one size with large ends: among rows of 1e4, a maximum that misses the tail of
    a normal row is not seen. A mean of no rows is NaN, and nobody's contract: there a candidate must only survive."""
    generator = torch.Generator(device=device).manual_seed(seed)
    truth = Truth(instance, problem.spec.precision, domains)
    wanted: tuple[str, ...] = (families.ENDS,)
    if _size(instance) <= _BOTH_BYTES:
        wanted = ("mixed", families.ENDS, families.OFFSET) if grown else ("mixed", families.ENDS)
    drawn = [
        families.draw(instance.like, instance.arguments, domains, instance.workload.params, family, generator)
        for family in wanted
    ]
    cases = [_gross(truth.case(family, inputs)) for family, inputs in zip(wanted, drawn, strict=True)]
    finite = tuple(case for case in cases if case.finite)
    if finite:
        return Variant(instance.workload.name, instance, finite)
    own = truth.case(families.OWN, problem.example_inputs(instance, device, seed))
    compared = all(bool(torch.isfinite(exact).any()) for exact in own.truth if exact.numel())
    return Variant(instance.workload.name, instance, (own,), compared=compared)


def _gross(case: Case) -> Case:
    """With one offset for everything only what cancels away is looked for: it costs all digits (a one-pass variance is
    300 times too large), while honest attention, whose scores are 1e9 there, is off by 1e-4 where eager is by 1e-6."""
    if case.family != families.OFFSET:
        return case
    wide = tuple(replace(limit, threshold=max(limit.threshold, _GROSS_ERROR)) for limit in case.tolerances)
    return replace(case, tolerances=wide)


def _resized_batches(problem: Problem, smallest: Instance, domains: Mapping[str, Domain], seed: int) -> list[Variant]:
    """For a problem without size parameters: fewer items along the first dimension, where the reference allows it, and
    if all are small more of them. A kernel right for 1, 255 and 256 of 256 rows and no others was accepted."""
    first = next((value for value in smallest.like if isinstance(value, torch.Tensor) and value.dim()), None)
    if first is None or first.shape[0] < 2:
        return []
    found: list[Variant] = []
    count = first.shape[0]
    small = sum(value.nbytes for value in smallest.like if isinstance(value, torch.Tensor)) <= _LONG_BYTES
    for size in sorted({1, count // 2 + 1, count - 1} | ({2 * count + 1} if small else set())):
        like = tuple(
            value[torch.arange(size, device=value.device) % count]
            if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == first.shape[0]
            else value
            for value in smallest.like
        )
        name = f"{smallest.workload.name} with a first dimension of {size}"
        instance = replace(smallest, workload=replace(smallest.workload, name=name), like=like)
        with _unless_it_cannot_be():
            found.append(_variant(problem, instance, domains, first.device.type, seed, grown=size > _GROWN * count))
    return found


def make_repeated(truth: Truth, case: Case) -> list[Variant]:
    """One row that stands for all, of each input and cotangent that has rows of floats, as `expand` gives: a kernel may
    take the stride of 0 for none. None where the reference does not take it."""
    inputs = tuple(_one_for_all(value) for value in case.inputs)
    if all(a is b for a, b in zip(inputs, case.inputs, strict=True)):
        return []
    found: list[Variant] = []
    with _unless_it_cannot_be():
        repeated = truth.case(case.family, inputs)
        name = f"{truth.instance.workload.name} with one row for all"
        found += [Variant(name, replace(truth.instance, like=inputs), (repeated,))] if repeated.finite else []
    return found


@contextmanager
def _unless_it_cannot_be() -> Iterator[None]:
    """Go on without a variant for which values cannot be drawn or the reference fails. Where the device is full, that
    is raised."""
    try:
        yield
    except _FULL:
        raise
    except (ReferenceFailed, *_CANNOT_HOLD):
        return


def _one_for_all(value: Any) -> Any:
    rows = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1 and value.shape[0] > 1
    return value[:1].expand_as(value) if rows else value


def make_layouts(instance: Instance, case: Case) -> list[Variant]:
    """The same values in other memory: four ways to lie apart, and at last every input off its alignment."""
    found: list[Variant] = []
    for what, laid in LAYOUTS.items():
        inputs = tuple(laid(value) if isinstance(value, torch.Tensor) else value for value in case.inputs)
        if any(a is not b for a, b in zip(inputs, case.inputs, strict=True)):
            name = f"{instance.workload.name} with {what}"
            found.append(Variant(name, replace(instance, like=inputs), (replace(case, inputs=inputs),)))
    if any(isinstance(value, torch.Tensor) for value in case.inputs):
        found.append(Variant(f"{instance.workload.name} off alignment", instance, (case,), shift=1))
    return found
