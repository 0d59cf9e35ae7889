"""One output against its truth: special values, slices, single elements, bias; and against eager's on the same inputs.

What each of them may be is `tolerance`'s to say, and how it is measured `measures`'.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import torch

from worker.judge.numerics.hot_rows import accumulation_fault
from worker.judge.numerics.measures import bias, bias_of_most, element_bound, element_excess, slice_error
from worker.judge.numerics.precision import EIGHT_BITS, representable, unit, widened
from worker.judge.numerics.slices import parts_of, sized
from worker.judge.numerics.tolerance import Tolerance

_FEW_ELEMENTS = 1 << 18
_NEAR_OVERFLOW = 0.1
"""Of the largest number: no tolerance, however wide, makes an infinity right below nine tenths of it."""
_UNSURE = 4.0
"""Times the threshold, relative to its row: a factor as small as this may have either sign in honest arithmetic."""
_FRESH = 2.0
"""Timed values are made from a case's, but not those that its threshold was calibrated on."""
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
    excess = element_excess(output, truth, limit, dtype)
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
        mean = bias_of_most(output, truth, bound)
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
    excess = element_excess(output, exact, both, dtype)
    return f"a single element is off by {excess:.1f} times its bound" if excess > 1 else ""


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


def _may_overflow(truth: torch.Tensor, limit: Tolerance, dtype: torch.dtype) -> torch.Tensor:
    """Where an honest result may be infinite although the truth is not: it is as near to the end of `dtype` as an
    element may be wrong, or beyond. Of a million fp16 sums of size 10^5 one to eight fell on the other side of 65,520
    than eager's (measured)."""
    if dtype in EIGHT_BITS or dtype == torch.float64:
        return torch.zeros_like(truth, dtype=torch.bool)
    held, most = representable(truth, dtype), torch.finfo(dtype).max
    if _far_from(most, held, limit, dtype):
        return torch.zeros_like(truth, dtype=torch.bool)
    near = [
        rows.abs() + element_bound(rows, scale, limit, dtype).clamp_(max=_NEAR_OVERFLOW * most) >= most
        for rows, scale in sized(held)
    ]
    finite = [torch.isfinite(exact) for (exact,) in parts_of(truth)]
    return torch.cat(finite).logical_and_(torch.cat(near).reshape(-1)).reshape(truth.shape)


def _far_from(most: float, held: torch.Tensor, limit: Tolerance, dtype: torch.dtype) -> bool:
    """Whether no element can be wrong by so much that it is `most`, which need not be told one by one."""
    largest = max(abs(float(end)) for end in torch.aminmax(held)) if held.numel() else 0.0
    scale = torch.tensor(max(largest, torch.finfo(torch.float32).tiny), dtype=torch.float64)
    return largest + min(float(element_bound(scale, scale, limit, dtype)), _NEAR_OVERFLOW * most) < most


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
