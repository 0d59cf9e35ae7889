"""Errors of an output against its fp64 truth: of slices, of single elements, and what they have in common.

For an output c with truth y and error e = c - y, every slice g (rows, columns, blocks of 1,024, the whole) has

    r_g = rms_g(e) / max(rms_g(y), 1e-3 * median over slices of rms(y), smallest normal)

(for columns also 2^-24 * rms(y): most columns of a softmax of large numbers hold nothing but 1e-38s),

and the error of the output is the largest r_g. No global percentage of matching elements: one wrong row in a hundred
thousand is a wrong kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from worker.judge.numerics.hot_rows import hot_row_slices
from worker.judge.numerics.precision import FP32_ULP, unit
from worker.judge.numerics.slices import elements, errors, slices
from worker.judge.numerics.tolerance import AS_HONEST, Tolerance

_ELEMENT_KAPPA = 16.0
_BIAS_BLOCKS, _BIAS_MIN_BLOCK = 32, 64
_BY_ITSELF, _FEW = 8.0, 1 / 16
"""Eight times a bias's bound is about what a slice may be off where precision is seen: in bf16 both are 1.6e-2."""
_LEAST = torch.finfo(torch.float64).tiny
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNEVEN = 4.0
"""Times the median of the slices that are not exact. An honest result's worst slice is less than that on normal values
(but where causal attention's first token has no gradient), and up to hundreds of it where few terms decide."""
_AT_ONCE = 1 << 18
"""Elements of rows that are told apart at a time."""


def slice_error(
    output: torch.Tensor,
    truth: torch.Tensor,
    hits: torch.Tensor | None = None,
    limit: Tolerance | None = None,
) -> tuple[float, str]:
    """The largest relative slice error of `output` against the fp64 `truth`, and which slice it is in.

    With `hits` (how many index values name each row of the output, from `hot_rows.row_hits`), rows hit about equally
    often are one more kind of slice. Slices over the threshold of `limit` whose error is within `AS_HONEST` times its
    noise there do not count.
    Positions where the truth is not finite are left out here: `compare` checks them exactly.
    """
    worst, where = 0.0, "none" if truth.numel() else "empty"
    for name, error, ratio in _ratios(output, truth, hits):
        if limit is not None and limit.noise:
            honest = (ratio > limit.threshold) & (error <= AS_HONEST * limit.noise[name])
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
        faint = FP32_ULP * whole if name == "column" else 0.0
        floor = max(1e-3 * float(scale.median()), faint, torch.finfo(torch.float32).tiny)
        ratio = error / scale.clamp_min(floor)
        yield name, error, torch.nan_to_num(ratio, nan=math.inf, posinf=math.inf)


def element_error(output: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> float:
    """The least threshold at which no finite element is over its bound for outputs of `dtype`."""
    worst = 0.0
    for rows, e, scale in elements(output, truth):
        own = rows.abs_().mul_(_ELEMENT_KAPPA * 2 * unit(dtype))
        worst = max(worst, float(e.sub_(own).div_(_ELEMENT_KAPPA * scale).max()))
    return worst


def element_excess(output: torch.Tensor, truth: torch.Tensor, limit: Tolerance, dtype: torch.dtype) -> float:
    """Largest |e| over kappa * (2 u |y| + threshold * row scale): a bound that one wrong element breaks. The threshold
    is the tolerance's, or what honest elements need (`with_elements`)."""
    found = elements(output, truth)
    return max((float(e.div_(element_bound(rows, scale, limit, dtype)).max()) for rows, e, scale in found), default=0.0)


def element_bound(rows: torch.Tensor, scale: torch.Tensor, limit: Tolerance, dtype: torch.dtype) -> torch.Tensor:
    return _ELEMENT_KAPPA * (2 * unit(dtype) * rows.abs() + max(limit.threshold, limit.element) * scale)


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
        product, power = _products(result, exact)
        products.append(product.sum())
        powers.append(power.sum())
    return _mean_and_error(products, powers)


def bias_of_most(output: torch.Tensor, truth: torch.Tensor, bound: float) -> float:
    """The mean of `bias` without the few rows that are far off by themselves: by more than `_BY_ITSELF` times `bound`,
    where they hold at most `_FEW` of their block's <y, y>. A factor is in all rows; what is wrong with one row is for
    slices to tell, and blocks are no independent samples of it where rows repeat. One of 128 columns of a sample's
    matrix was 33 % off in 4 rows of each block, since rounding decides the sign that GELU looks at: a bias of 1.1e-2
    +- 1.7e-5, and eager's was 7.6e-3 in another draw (of 57 of interformer_pffn's gradient, bound 2e-3; measured)."""
    width, products, powers = truth.shape[-1], [], []
    blocks = (torch.tensor_split(side.reshape(-1, width), _BIAS_BLOCKS) for side in (output, truth))
    for result, exact in zip(*blocks, strict=True):
        product, power = (terms.sum(-1) for terms in _products(result, exact))
        apart = product.abs() > _BY_ITSELF * bound * power
        if float(power[apart].sum()) <= _FEW * float(power.sum()):
            product, power = product[~apart], power[~apart]
        products.append(product.sum())
        powers.append(power.sum())
    found = _mean_and_error(products, powers)
    return found[0] if found else 0.0


def _products(result: torch.Tensor, exact: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e y and y y of each element; 0 where a side is not finite."""
    finite = torch.isfinite(exact) & torch.isfinite(result)
    y = torch.where(finite, exact, 0.0)
    return (result.to(torch.float64) - exact).masked_fill_(~finite, 0.0).mul_(y), y.square_()


def _mean_and_error(products: list[torch.Tensor], powers: list[torch.Tensor]) -> tuple[float, float] | None:
    """(mean, standard error) over blocks of <e, y> / <y, y>; None where most have no <y, y>."""
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
    for part in torch.split(rows, max(1, _AT_ONCE // max(1, rows.shape[-1]))):
        bits = part.to(rounded_to).contiguous().view(_BITS[rounded_to.itemsize])
        hashes.append((bits.to(torch.int64) * factors).sum(-1))
        squares.append(torch.where(torch.isfinite(part), part, 0.0).to(torch.float64).square().sum(-1))
    found, which = torch.unique(torch.cat(hashes), return_inverse=True)
    power = torch.cat(squares)
    block = torch.arange(len(rows), device=truth.device) * _BIAS_BLOCKS // max(1, len(rows))
    share = power / power.new_zeros(_BIAS_BLOCKS).index_add_(0, block, power).clamp_min(_LEAST)[block]
    weights = share.new_zeros(len(found)).index_add_(0, which, share)
    return float(weights.sum().square() / weights.square().sum().clamp_min(_LEAST))
