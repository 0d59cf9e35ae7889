"""Error against an fp64 truth, by slices, and thresholds calibrated from both sides.

For an output c with truth y and error e = c - y, every slice g (rows, columns, blocks of 1,024, the whole) has

    r_g = rms_g(e) / max(rms_g(y), 1e-3 * median over slices of rms(y), smallest normal)

(for columns also 2^-24 * rms(y): most columns of a softmax of large numbers hold nothing but 1e-38s),

and E is the largest r_g. An *accept anchor* E_A is the error of honest arithmetic (eager in the problem's dtype, and
not less than 16 units of fp32 rounding: an honest sequential fp32 sum over 16,384 terms is 12 to 21 times worse than a
blocked one, measured). A *reject anchor* E_R is the error of the reference one precision lower. The threshold is their
geometric mean when they are at least 16 apart, but not below 64 * E_A as long as that is under a quarter of E_R;
otherwise the family cannot see precision and 8 * E_A guards logic only (in fp32 at least 64 units of 16: a sequential
sum of 8,191 nearly equal numbers rounds the same way every time and is 34 of them off, measured).

Where an honest 16-bit result's error is much larger in a few slices than in most, as where what is large in a row of a
gradient cancels, E_A is the luck of one draw. There a slice over the threshold also passes within 4 times what honest
roundings, eager's and two draws', left of that very slice (`Tolerance.noise`).

No global percentage of matching elements: one wrong row in a hundred thousand is a wrong kernel.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from problems.catalog import Precision
from worker.judge.numerics.hot_rows import accumulation_fault, hot_row_slices
from worker.judge.numerics.slices import elements, errors, parts_of, sized, slices

_FP32_ULP = 2.0**-24
_ACCEPT_FLOOR = {
    torch.float64: 2.0**-50,
    torch.float32: 16 * _FP32_ULP,
    torch.float16: 2.0**-12,
    torch.bfloat16: 2.0**-9,
    torch.float8_e4m3fn: 2.0**-6,
    torch.float8_e5m2: 2.0**-5,
}
"""Of 8-bit types: the truth lies on their grid as well, so that an honest result is exact but where a rounding before
the last tips a number to its neighbour, 1/8 (1/4) away. One such in a row of 16 is 1/32 of it, if it is as large as the
others, and four times as much if there is no other."""
_UNIT = {
    torch.float64: 2.0**-53,
    torch.float32: _FP32_ULP,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}
_NARROW = frozenset({torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2})
_EIGHT_BITS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
"""Types for which torch has few operations: they are compared as float32, which holds them exactly."""
SIXTEEN_BITS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""Values of a SPEC's `compute` that are narrower than float32 storage."""
_ELEMENT_KAPPA = 16.0
_FEW_ELEMENTS = 1 << 18
_NEAR_OVERFLOW = 0.1
"""Of the largest number: no tolerance, however wide, makes an infinity right below nine tenths of it."""
_UNSURE = 4.0
"""Times the threshold, relative to its row: a factor as small as this may have either sign in honest arithmetic."""
_FRESH = 2.0
"""Timed values are made from a case's, but not those that its threshold was calibrated on."""
_BIAS_BLOCKS, _BIAS_MIN_BLOCK = 32, 64
_LEAST = torch.finfo(torch.float64).tiny
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BIAS_UNITS = {
    torch.float16: 0.5,
    torch.bfloat16: 0.5,
    torch.float32: 64.0,
    torch.float64: 64.0,
    torch.float8_e4m3fn: 1 / 32,
    torch.float8_e5m2: 1 / 32,
}
"""Allowed bias in units of rounding. A 16-bit result cut off instead of rounded is biased by 0.7 units; an honest
polynomial for exp in fp32 by 1, an exp2 of a rounded product by 5, and a sequential fp32 sum of 1,500 terms with few
different values (small integers) by 25: they round the same way every time. An 8-bit result has its truth on the same
grid and tips either way, so that here a scale that is 1 % off shows."""
_GENEROUS = 64.0
"""An honest sequential fp32 LayerNorm over 8,192 columns is 18 accept floors off (measured)."""
_AS_HONEST = 4.0
"""Times autocast's error, or that of roundings to 16 bits: other places to round, and other luck. Where a column of a
result is hardly anything but the rounding of a bias that cancels, autocast is 0.2 to 0.8 off, and an honest kernel 0.3
(measured)."""
_UNEVEN = 4.0
"""Times the median of the slices that are not exact. An honest result's worst slice is less than that on normal values
(but where causal attention's first token has no gradient), and up to hundreds of it where few terms decide."""
_SEPARATION = 16.0
"""With nearer anchors the threshold would lie within 4 accept floors, where honest sequential sums land."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The threshold for one output of one case."""

    accept_error: float
    reject_error: float
    threshold: float
    sees_precision: bool
    rounded_to: torch.dtype | None = None
    """The type that honest arithmetic may round to, where it is narrower than the output's."""
    bias: float = 0.0
    """Of honest arithmetic in that type, as `bias` measures it."""
    element: float = 0.0
    """In place of the threshold for single elements, where honest ones are further off than that allows."""
    noise: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False)
    """The rms error that honest roundings have in each slice, by kind of slice, where it is `uneven`."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output against its truth."""

    passed: bool
    reason: str
    error: float
    """Largest slice error, relative."""
    worst_slice: str
    element_excess: float
    """Largest elementwise error over its bound; above 1 is a failure."""
    bias: float | None = None
    """Mean of <e, y> / <y, y> over blocks, relative; None for outputs too small to tell."""
    bias_limit: float = 0.0


def working_type(dtype: torch.dtype, precision: Precision) -> torch.dtype:
    """What arithmetic on values stored as `dtype` may round to: a policy of 16-bit arithmetic loosens float32's, and
    nothing else's."""
    compute = SIXTEEN_BITS.get(precision.compute)
    return compute if compute is not None and dtype == torch.float32 else dtype


def tolerance(accept_error: float, reject_error: float, dtype: torch.dtype) -> Tolerance:
    """The two-sided threshold for an output that honest arithmetic rounds to `dtype`."""
    floor = _ACCEPT_FLOOR.get(dtype, 16 * _FP32_ULP)
    accept = max(accept_error, floor)
    if reject_error < _SEPARATION * accept:
        least = 0.0 if dtype in _NARROW else _GENEROUS * floor
        return Tolerance(accept, reject_error, max(8 * accept, least), sees_precision=False, rounded_to=dtype)
    threshold = max(math.sqrt(accept * reject_error), min(_GENEROUS * accept, reject_error / 4))
    if dtype in _NARROW:
        threshold = min(threshold, max(8 * accept, _SEPARATION * floor))
    return Tolerance(accept, reject_error, threshold, sees_precision=True, rounded_to=dtype)


def loosened(limit: Tolerance, error: float, bias: float) -> Tolerance:
    """A tolerance that admits honest arithmetic of 16 bits that eager's result does not tell of: `error` and `bias` are
    what autocast, or roundings to as many bits, made of the truth."""
    threshold = max(limit.threshold, _AS_HONEST * error)
    sees = limit.sees_precision and threshold < limit.reject_error
    accept = max(limit.accept_error, error)
    return replace(limit, accept_error=accept, threshold=threshold, sees_precision=sees, bias=abs(bias))


def with_elements(limit: Tolerance, error: float) -> Tolerance:
    """A tolerance that admits single elements as those of an honest result: `error` is their `element_error`. All that
    is wrong with a row may be in one of its elements, and is sqrt(n) times as large there as in the row: of 65,536 fp16
    results of a softmax that is nearly one-hot, the gradient of the largest is what rounding left of 1 - y, in eager as
    well, and was 1.8 times the bound (measured)."""
    return replace(limit, element=_AS_HONEST * error)


def with_noise(limit: Tolerance, noise: Mapping[str, torch.Tensor], element: float) -> Tolerance:
    """A tolerance that also admits the errors of one more honest result: in slices `slice_noise`, and in elements
    `element_error`."""
    most = {name: torch.maximum(error, limit.noise.get(name, error)) for name, error in noise.items()}
    return replace(limit, noise=most, element=max(limit.element, _AS_HONEST * element))


def relaxed(limit: Tolerance, seeing: float) -> Tolerance:
    """A tolerance of a family that cannot see precision, at least as wide as one that can (`seeing`): small integers
    leave eager without any error, but not an honest kernel that divides by a sum."""
    return limit if limit.sees_precision else replace(limit, threshold=max(limit.threshold, seeing))


def slice_error(
    output: torch.Tensor,
    truth: torch.Tensor,
    hits: torch.Tensor | None = None,
    limit: Tolerance | None = None,
) -> tuple[float, str]:
    """The largest relative slice error of `output` against the fp64 `truth`, and which slice it is in.

    With `hits` (how many index values name each row of the output, from `hot_rows.row_hits`), rows hit about equally
    often are one more kind of slice. Slices over the threshold of `limit` whose error is within `_AS_HONEST` times its
    noise there do not count.
    Positions where the truth is not finite are left out here: `compare` checks them exactly.
    """
    worst, where = 0.0, "none" if truth.numel() else "empty"
    for name, error, ratio in _ratios(output, truth, hits):
        if limit is not None and limit.noise:
            honest = (ratio > limit.threshold) & (error <= _AS_HONEST * limit.noise[name])
            ratio = ratio.masked_fill(honest, 0.0)
        top = int(ratio.argmax())
        if float(ratio[top]) > worst:
            worst, where = float(ratio[top]), f"{name} {top}"
    return worst, where


def slice_noise(output: torch.Tensor, truth: torch.Tensor, hits: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The rms error of every slice, by kind of slice, as `slice_error` takes it; infinite where a result is."""
    return {name: error.nan_to_num(nan=math.inf) for name, error, _ratio in _ratios(output, truth, hits)}


def uneven(output: torch.Tensor, truth: torch.Tensor, hits: torch.Tensor | None) -> bool:
    """Whether the worst slice of an honest result tells of luck: its relative error is over `_UNEVEN` times the median
    of those that have an error."""
    for _name, _error, ratio in _ratios(output, truth, hits):
        some = ratio[ratio > 0]
        if some.numel() and float(some.max()) > _UNEVEN * float(some.median()):
            return True
    return False


def _ratios(
    output: torch.Tensor, truth: torch.Tensor, hits: torch.Tensor | None
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """(name, rms error, relative error) of the slices of every kind."""
    if not truth.numel():
        return
    kinds = slices(output, truth)
    hot = hot_row_slices(*errors(output, truth), hits) if hits is not None else None
    whole = float(kinds[0][2])
    for name, error, scale in [*kinds, *([hot] if hot else [])]:
        faint = _FP32_ULP * whole if name == "column" else 0.0
        floor = max(1e-3 * float(scale.median()), faint, torch.finfo(torch.float32).tiny)
        ratio = error / scale.clamp_min(floor)
        yield name, error, torch.nan_to_num(ratio, nan=math.inf, posinf=math.inf)


def compare(
    output: torch.Tensor,
    truth: torch.Tensor,
    eager: torch.Tensor,
    limit: Tolerance,
    hits: torch.Tensor | None = None,
    unsure: torch.Tensor | None = None,
) -> Comparison:
    """Judge one output: exact for integers and booleans, exact maps of NaN and infinities, slices, single elements.

    `hits` as in `slice_error`: an error that grows with the number of hits is named as low-precision accumulation.
    `unsure`: where an infinity may have either sign or be NaN (`Case.unsure`).
    """
    if not output.is_floating_point():
        return _compare_exact(output, eager)
    dtype, output, eager = output.dtype, widened(output).contiguous(), widened(eager)
    may_overflow = _may_overflow(truth, limit, dtype)
    special = _compare_special(output, truth, eager, may_overflow, unsure)
    if special:
        return Comparison(False, special, math.inf, "special values", math.inf)
    truth = representable(truth, dtype)
    output = forgiven(output, truth, eager)
    output = _instead(output, may_overflow & torch.isinf(output), truth)
    error, where = slice_error(output, truth, hits, limit)
    excess = _element_excess(output, truth, limit, dtype)
    if error > limit.threshold:
        reason = (
            f"relative error {error:.2e} in {where} is over {limit.threshold:.2e} (honest: {limit.accept_error:.2e})"
        )
        cause = accumulation_fault(output, truth, hits) if hits is not None else ""
        reason = f"{reason}; {cause}" if cause else reason
        return Comparison(False, reason, error, where, excess)
    if excess > 1:
        return Comparison(False, f"a single element is off by {excess:.1f} times its bound", error, where, excess)
    found = bias(output, truth)
    if found is None:
        return Comparison(True, "", error, where, excess)
    mean, spread = found
    honest = bias(eager, truth)
    rounded_to = limit.rounded_to or dtype
    usual = max(abs(honest[0]) if honest else 0.0, limit.bias)
    bound = max(4 * spread, _BIAS_UNITS.get(rounded_to, 64.0) * unit(rounded_to), 4 * usual)
    if abs(mean) > bound:
        reason = f"the result is biased: it is {mean:+.1e} of the true one too large on average (bound {bound:.1e})"
        return Comparison(False, reason, error, where, excess, mean, bound)
    return Comparison(True, "", error, where, excess, mean, bound)


def agree(output: torch.Tensor, eager: torch.Tensor, limit: Tolerance, rng: random.Random | None) -> str:
    """Why `output` cannot be the same result as `eager` on the same inputs, or nothing.

    Both have errors: the bound is the threshold and eager's own error together. With `rng` only 64 random rows are
    compared (a millionth of the cost on large outputs), which a result that was not computed does not survive either.
    """
    if rng is not None and output.dim() > 1 and output.numel() > _FEW_ELEMENTS:
        last = output.shape[-1]
        rows = torch.tensor([rng.randrange(output.numel() // last) for _ in range(64)], device=output.device)
        output, eager = output.reshape(-1, last)[rows], eager.reshape(-1, last)[rows]
    if not output.is_floating_point():
        return _compare_exact(output, eager).reason
    dtype, output, eager = output.dtype, widened(output).contiguous(), widened(eager)
    both = replace(limit, threshold=_FRESH * limit.threshold, element=_FRESH * limit.element)
    exact = eager.to(torch.float64)
    may_overflow = _may_overflow(exact, both, dtype)
    special = _compare_special(output, exact, eager, may_overflow, None)
    if special:
        return special
    output = _instead(output, may_overflow & torch.isinf(output), eager)
    error, where = slice_error(output, exact)
    if error > both.threshold:
        return f"relative difference {error:.2e} from eager in {where} is over {both.threshold:.2e}"
    excess = _element_excess(output, exact, both, dtype)
    return f"a single element is off by {excess:.1f} times its bound" if excess > 1 else ""


def bias(output: torch.Tensor, truth: torch.Tensor) -> tuple[float, float] | None:
    """(mean, standard error) over 32 blocks of <e, y> / <y, y>: the factor by which the result is systematically too
    large. Rounding noise averages out in training; a factor does not. None below 64 elements a block, and below 32
    rows: what has one sum in common is one sample."""
    rows = truth.numel() // max(1, truth.shape[-1]) if truth.dim() > 1 else 0
    size = truth.numel() // _BIAS_BLOCKS
    if size < _BIAS_MIN_BLOCK or rows < _BIAS_BLOCKS:
        return None
    products, powers = [], []
    blocks = (torch.split(side.reshape(-1)[: size * _BIAS_BLOCKS], size) for side in (output, truth))
    for result, exact in zip(*blocks, strict=True):
        finite = torch.isfinite(exact) & torch.isfinite(result)
        y = torch.where(finite, exact, 0.0)
        products.append((result.to(torch.float64) - exact).masked_fill_(~finite, 0.0).mul_(y).sum())
        powers.append(y.square_().sum())
    product, power = torch.stack(products), torch.stack(powers)
    used = power > 0
    if int(used.sum()) < _BIAS_BLOCKS // 2:
        return None
    beta = (product / power.clamp_min(torch.finfo(torch.float64).tiny))[used]
    return float(beta.mean()), float(beta.std() / math.sqrt(beta.numel()))


def samples(truth: torch.Tensor, rounded_to: torch.dtype) -> float:
    """How many samples of rounding the rows of a truth of shape (..., n) are: rows that are equal in `rounded_to` are
    rounded alike and are one. Squares weigh, in each block of `bias` by themselves."""
    rows = truth.reshape(-1, truth.shape[-1])
    factors = torch.randint(1, 1 << 62, (rows.shape[-1],), generator=torch.Generator().manual_seed(0)).to(truth.device)
    hashes, squares = [], []
    for part in torch.split(rows, max(1, _FEW_ELEMENTS // max(1, rows.shape[-1]))):
        bits = part.to(rounded_to).contiguous().view(_BITS[rounded_to.itemsize])
        hashes.append((bits.to(torch.int64) * factors).sum(-1))
        squares.append(torch.where(torch.isfinite(part), part, 0.0).to(torch.float64).square().sum(-1))
    found, which = torch.unique(torch.cat(hashes), return_inverse=True)
    power = torch.cat(squares)
    block = torch.arange(len(rows), device=truth.device) * _BIAS_BLOCKS // max(1, len(rows))
    share = power / power.new_zeros(_BIAS_BLOCKS).index_add_(0, block, power).clamp_min(_LEAST)[block]
    weights = share.new_zeros(len(found)).index_add_(0, which, share)
    return float(weights.sum().square() / weights.square().sum().clamp_min(_LEAST))


def unit(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number: the largest relative rounding error."""
    return _UNIT.get(dtype, _FP32_ULP)


def forgiven(output: torch.Tensor, truth: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """`output` with the truth wherever it may be NaN or infinite: where eager is, although the truth is not. It may be
    zero there too: so flash attention calls a row whose only score is -inf, which is NaN in eager, and a value by rule
    (a softmax of one number is 1 whatever the number)."""
    free = [
        torch.isfinite(exact) & ~torch.isfinite(honest) & (~torch.isfinite(result) | (result == 0))
        for result, exact, honest in parts_of(output, truth, eager)
    ]
    return _instead(output, torch.cat(free).reshape(output.shape), truth) if free else output


def _instead(output: torch.Tensor, places: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`output` with `other` in these places; itself where there are none, which are gigabytes that need no copy."""
    return torch.where(places, other.to(output.dtype), output) if bool(places.any()) else output


def _compare_exact(output: torch.Tensor, eager: torch.Tensor) -> Comparison:
    wrong = int((output != eager).sum())
    reason = f"{wrong} of {output.numel()} integers differ" if wrong else ""
    return Comparison(not wrong, reason, float(wrong), "integers", float(wrong))


def representable(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The truth without what `dtype` cannot hold: 70,000 is 65,504 in fp16, or infinite (`_compare_special` knows).
    Infinities stay, and so do 8-bit types, whose overflow the reference decides on. In place of 70,000 itself eager's
    infinity would be an infinite error, and then every error would be as small as an honest one."""
    if dtype in _EIGHT_BITS or dtype == torch.float64:
        return truth
    most = torch.finfo(dtype).max
    if not truth.numel() or all(abs(float(end)) <= most for end in torch.aminmax(truth)):  # NaN is not
        return truth
    held = torch.empty_like(truth, memory_format=torch.contiguous_format)
    for part, exact in parts_of(held, truth):
        part.copy_(torch.where(torch.isinf(exact), exact, exact.clamp(-most, most)))
    return held


def _may_overflow(truth: torch.Tensor, limit: Tolerance, dtype: torch.dtype) -> torch.Tensor:
    """Where an honest result may be infinite although the truth is not: it is as near to the end of `dtype` as an
    element may be wrong, or beyond. Of a million fp16 sums of size 10^5 one to eight fell on the other side of 65,520
    than eager's (measured)."""
    if dtype in _EIGHT_BITS or dtype == torch.float64:
        return torch.zeros_like(truth, dtype=torch.bool)
    held, most = representable(truth, dtype), torch.finfo(dtype).max
    if _far_from(most, held, limit, dtype):
        return torch.zeros_like(truth, dtype=torch.bool)
    near = [
        rows.abs() + _element_bound(rows, scale, limit, dtype).clamp_(max=_NEAR_OVERFLOW * most) >= most
        for rows, scale in sized(held)
    ]
    finite = [torch.isfinite(exact) for (exact,) in parts_of(truth)]
    return torch.cat(finite).logical_and_(torch.cat(near).reshape(-1)).reshape(truth.shape)


def _far_from(most: float, held: torch.Tensor, limit: Tolerance, dtype: torch.dtype) -> bool:
    """Whether no element can be wrong by so much that it is `most`, which need not be told one by one."""
    largest = max(abs(float(end)) for end in torch.aminmax(held)) if held.numel() else 0.0
    scale = torch.tensor(max(largest, torch.finfo(torch.float32).tiny), dtype=torch.float64)
    return largest + min(float(_element_bound(scale, scale, limit, dtype)), _NEAR_OVERFLOW * most) < most


def unsure_signs(up: torch.Tensor, down: torch.Tensor, limit: Tolerance) -> torch.Tensor:
    """Where rounding decides the sign of an infinity: `up` and `down` are the results with large numbers of either sign
    in its place, and their difference, which is what the infinity is multiplied with, is next to nothing in its row. Of
    a bf16 MLP's gradient in 16,384 weights a few have the other sign because an activation is 0.001 (measured)."""
    factor = up - down
    small = [rows.abs() <= _UNSURE * limit.threshold * scale for rows, scale in sized(factor)]
    return torch.cat(small).reshape(up.shape) & torch.isfinite(factor) if small else factor.bool()


def _compare_special(
    output: torch.Tensor,
    truth: torch.Tensor,
    eager: torch.Tensor,
    may_overflow: torch.Tensor,
    unsure: torch.Tensor | None,
) -> str:
    """Why the non-finite positions are wrong, or nothing. Where eager and truth disagree, either is right, and nothing
    else; so is either where the result `may_overflow`. Where it is `unsure`, or eager alone is not finite, an infinity
    has either sign and is as good as NaN."""
    sides = (output, truth, eager, may_overflow, *([] if unsure is None else [unsure]))
    counts = [_wrong_specials(*parts) for parts in parts_of(*sides)]
    found = torch.stack(counts).sum(0).tolist() if counts else 6 * [0]
    nans, nans_made, infinities, infinities_made, numbers, signs = found
    for name, wrong, extra in (("NaN", nans, nans_made), ("infinity", infinities, infinities_made)):
        if wrong:
            return f"{name} at {wrong} places where it is wrong ({extra} too many, {wrong - extra} missing)"
    if numbers:
        return f"a number at {numbers} places where there is none"
    return "an infinity has the wrong sign" if signs else ""


def _wrong_specials(
    output: torch.Tensor,
    truth: torch.Tensor,
    eager: torch.Tensor,
    may_overflow: torch.Tensor,
    unsure: torch.Tensor | None = None,
) -> torch.Tensor:
    """How many places are wrong, int64 [6]: NaN, and where it is too much; infinity, likewise; a number; a sign."""
    garbled = torch.isfinite(truth) & ~torch.isfinite(eager)
    either = garbled if unsure is None else garbled | (unsure & ~torch.isfinite(truth) & ~torch.isfinite(output))
    counts = []
    for found, may_be in ((torch.isnan, either), (torch.isinf, either | may_overflow)):
        mine, by_truth, by_eager = found(output), found(truth), found(eager)
        wrong = (mine != by_truth) & (by_truth == by_eager) & ~may_be
        counts += [wrong.sum(), (wrong & mine).sum()]
    made_up = torch.isfinite(output) & ~torch.isfinite(truth) & ~torch.isfinite(eager) & ~may_overflow
    signs = torch.isinf(output) & (torch.isinf(truth) | may_overflow)
    signs &= torch.sign(output) != torch.sign(truth).to(output.dtype)
    signs &= ~(torch.isinf(eager) & (torch.sign(output) == torch.sign(eager).to(output.dtype)))
    if unsure is not None:
        signs &= ~unsure
    return torch.stack([*counts, made_up.sum(), signs.sum()])


def element_error(output: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> float:
    """The least threshold at which no finite element is over its bound for outputs of `dtype`."""
    worst = 0.0
    for rows, e, scale in elements(output, truth):
        own = rows.abs_().mul_(_ELEMENT_KAPPA * 2 * unit(dtype))
        worst = max(worst, float(e.sub_(own).div_(_ELEMENT_KAPPA * scale).max()))
    return worst


def _element_excess(output: torch.Tensor, truth: torch.Tensor, limit: Tolerance, dtype: torch.dtype) -> float:
    """Largest |e| over kappa * (2 u |y| + threshold * row scale): a bound that one wrong element breaks. The threshold
    is the tolerance's, or what honest elements need (`with_elements`)."""
    found = elements(output, truth)
    return max(
        (float(e.div_(_element_bound(rows, scale, limit, dtype)).max()) for rows, e, scale in found), default=0.0
    )


def _element_bound(rows: torch.Tensor, scale: torch.Tensor, limit: Tolerance, dtype: torch.dtype) -> torch.Tensor:
    return _ELEMENT_KAPPA * (2 * unit(dtype) * rows.abs() + max(limit.threshold, limit.element) * scale)


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """An 8-bit float tensor as float32; any other as it is."""
    return tensor.to(torch.float32) if tensor.dtype in _EIGHT_BITS else tensor


def degrade(tensor: torch.Tensor, dtype: torch.dtype, *, tf32_allowed: bool) -> torch.Tensor:
    """`tensor` rounded one precision below `dtype`: fp32 to TF32's 10 bits (or bf16's 7 where TF32 is allowed), 16-bit
    types to 3 bits, 8-bit types to 1. Integers pass unchanged. The result keeps the tensor's dtype."""
    if not tensor.is_floating_point():
        return tensor
    if dtype == torch.float64:
        return tensor.to(torch.float32).to(tensor.dtype)
    kept = (7 if tf32_allowed else 10) if dtype == torch.float32 else 1 if dtype in _EIGHT_BITS else 3
    dropped = 52 - kept
    bits = tensor.to(torch.float64).view(torch.int64)
    rounded = (bits + (1 << (dropped - 1))) >> dropped << dropped  # a carry into the exponent is right
    return torch.where(torch.isfinite(widened(tensor)), rounded.view(torch.float64).to(tensor.dtype), tensor)
