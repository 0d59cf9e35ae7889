"""Real values, family by family, and the form of an example's values (triangular, symmetric, 0/1, summing to 1).

A *row* is the last dimension; a vector counts as rows of one element, so that its elements are mixed too. Every family
is finite except `special`. Magnitudes stay within 1e4, and within 64 in float16, which overflows at 65,504 and must
leave room for a sum of squares, and in 8-bit floats, the largest of which is 448.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_LIMITS = {torch.float16: 64.0, torch.float8_e4m3fn: 64.0, torch.float8_e5m2: 64.0}
_LADDER = (1e-3, 1e-2, 3.0, 30.0, 1e3)
_SHIFTS = (1.0, 100.0, 1e4)
_HOLD_SQUARES, _LEAST_SQUARE = (torch.float32, torch.float64, torch.bfloat16), 1e-16
"""An optimiser's eps of 1e-8, added within the root or before the correction, showed in no second moment of 1e-7."""
_NANS = (0x7FC00000, 0x7FFFFFFF, -0x00400000, -1, 0x7F800001)
"""NaN as bits of a float32, signed: the usual one, CUDA's, both negative, and a signalling one. A cast to bf16 that
rounds by adding to the bits made -0 of CUDA's. Negative ones on a CPU only: where CUDA's sort puts them was not looked
at."""
_SPIKE_DENSITY = 1e-4
_SPECIAL_ROWS = 64
_UNIT_NEAR_ONE, _POSITIVE_NEAR_ONE = 1 / 3, 1 / 8
_NEAR, _NEAR_TOTAL = 1e-3, 4.0
"""How far from 1 an element of a row near 1 is at most, and all elements of it together."""
_END = 6.0
"""More than any of 10^8 normal numbers: the largest of a row, if it is at the row's end."""
_EQUAL = 2.0**-14
"""All-equal rows are small powers of two (this is float16's smallest normal). The mean of n equal values is off by a
rounding in an honest kernel that multiplies by 1/n, and a normalisation divides what is left by sqrt(eps): at 1.0 that
is 2e-5 where the truth is 0, and at 2^-10 still 98 % of a tolerance (measured on LayerNorm, n = 1531)."""


def values(like: torch.Tensor, family: str, generator: torch.Generator) -> torch.Tensor:
    """Float32 (float64 for a float64 `like`) values of this family in `like`'s shape, on its device."""
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    normal = torch.randn(like.shape, generator=generator, device=like.device, dtype=wide)
    if not normal.numel() or family == "normal":
        return normal
    limit = _LIMITS.get(like.dtype, 1e4)
    rows = normal.reshape(-1, normal.shape[-1] if normal.dim() > 1 else 1)
    if family == "ends":
        return _ended(normal, generator)
    made = _MAKERS[family](rows, limit, generator).reshape(normal.shape)
    return _with_specials(made, like.dtype, generator) if family == "special" else made.clamp_(-limit, limit)


def positive(like: torch.Tensor, family: str, generator: torch.Generator) -> torch.Tensor:
    """Values above zero: the magnitudes of a real family; some rows of `mixed` have a product that float can hold."""
    found = values(like, family, generator).abs_()
    if family == "tiny" and like.dtype in _HOLD_SQUARES:  # as the second moments of what `tiny` draws elsewhere
        return found.square_().clamp_min_(_LEAST_SQUARE)
    found.clamp_min_(1e-7 if family == "tiny" else 1e-3)
    return _with_near_one(found, _POSITIVE_NEAR_ONE, generator) if family == "mixed" else found


def unit(like: torch.Tensor, family: str, generator: torch.Generator) -> torch.Tensor:
    """Values inside (0, 1): uniform, or close to both ends, some rows to 1 alone: a long product of any others is 0.
    Where the example holds only 0 and 1, so does the result; where its rows sum to 1, they do."""
    uniform = torch.rand(like.shape, generator=generator, device=like.device)
    if _binary(like):
        return (uniform < 0.5).to(torch.float32)
    if sums_to_one(like):
        sharpness = 1.0 if family == "normal" else 3.0
        return torch.softmax(sharpness * values(like.float(), "normal", generator), dim=-1)
    if family != "normal":  # as near to 0 as 1e-6, and half of the values as near to 1
        near = torch.pow(10.0, -6 * uniform)
        heads = torch.rand(like.shape, generator=generator, device=like.device) < 0.5
        uniform = _with_near_one(torch.where(heads, near, 1 - near), _UNIT_NEAR_ONE, generator)
    tiny = 1e-3 if like.dtype in (torch.float16, torch.bfloat16) else 1e-6
    return uniform.clamp_(tiny, 1 - max(tiny, 2.0**-8) if like.dtype == torch.bfloat16 else 1 - tiny)


def structure(like: torch.Tensor) -> str:
    """`diagonal`, `upper`, `lower` or `symmetric` when the example's square matrices have that form, else nothing.

    Kernels may rely on it (a triangular product does half the work), so what is drawn must keep it. A square of one
    value is no example of a form: cotangents, whose examples are ones, were symmetric until a transposed gradient was
    certified.
    """
    if like.dim() < 2 or like.shape[-1] != like.shape[-2] or like.shape[-1] < 4 or not like.is_floating_point():
        return ""
    corners = like[..., -1, 0], like[..., 0, -1]
    below, above = (bool((corner == 0).all()) for corner in corners)
    if not (below or above) and not torch.equal(*corners):
        return ""  # two elements settle nearly every tensor, without reading the rest
    upper = below and torch.equal(like.triu(), like)
    lower = above and torch.equal(like.tril(), like)
    if upper and lower:
        return "diagonal" if bool(like.any()) else ""
    if upper or lower:
        return "upper" if upper else "lower"
    return "symmetric" if torch.equal(like, like.mT) and not bool((like == like[..., :1, :1]).all()) else ""


def shaped_as(drawn: torch.Tensor, form: str) -> torch.Tensor:
    """`drawn` with the form that `structure` found."""
    if form == "diagonal":
        return drawn.triu().tril()
    if form == "symmetric":
        return drawn.triu() + drawn.triu(1).mT
    return drawn.triu() if form == "upper" else drawn.tril() if form == "lower" else drawn


def _with_near_one(made: torch.Tensor, share: float, generator: torch.Generator) -> torch.Tensor:
    """A matrix with a share of its rows just below 1, so that their product is above 1/250; each has one number from
    1/4 to 3/4. A logarithm of such a row would else be so small that an honest kernel's error of 1e-7 is not."""
    if made.dim() < 2 or not made.numel():
        return made
    rows = made.reshape(-1, made.shape[-1])
    uniform = torch.rand(rows.shape, generator=generator, device=rows.device).to(rows.dtype)
    near = 1 - min(_NEAR, _NEAR_TOTAL / rows.shape[1]) * uniform
    place = torch.randint(rows.shape[1], (rows.shape[0], 1), generator=generator, device=rows.device)
    near.scatter_(1, place, 0.25 + 0.5 * uniform.gather(1, place))
    chosen = torch.rand((rows.shape[0], 1), generator=generator, device=rows.device) < share
    return torch.where(chosen, near, rows).reshape(made.shape)


def _binary(like: torch.Tensor) -> bool:
    few = like.reshape(-1)[:64]
    return bool(((few == 0) | (few == 1)).all()) and bool(((like == 0) | (like == 1)).all())


def sums_to_one(like: torch.Tensor) -> bool:
    """Whether every row is a distribution over the last dimension (within 2 %, as in bfloat16)."""
    if like.dim() < 2 or like.shape[-1] < 2:
        return False
    totals = like.sum(-1, dtype=torch.float32)
    return bool(((totals - 1).abs() < 2e-2).all())


# --- families: each is given normal rows [rows, length], which it may overwrite ---------------------------------------


def _heavy(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """Signed log-normal with sigma 2, or Student's t with two degrees of freedom, by row."""
    second = torch.randn(rows.shape, generator=generator, device=rows.device, dtype=rows.dtype)
    tailed = _choice(rows, 2, generator) == 0
    log_normal = torch.exp(2.0 * second).mul_(rows.sign())
    waiting = torch.rand(rows.shape, generator=generator, device=rows.device, dtype=rows.dtype)
    student = rows / waiting.clamp_min_(1e-12).log_().neg_().clamp_min_(1e-8).sqrt_()
    return torch.where(tailed, log_normal, student)


def _mixed(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """Rows of every finite family. Shifts stop at 100: a row of 1e4 + N loosens the whole batch's tolerance 1,000
    times, one of 100 + N 10 times, while the error of a one-pass variance grows 10,000 times."""
    far = min(100.0, limit / 4)
    scales = torch.tensor([1.0, 1.0, 1e-2, 8.0, 1.0, 1.0, 1.0, 1.0, 1.0], device=rows.device, dtype=rows.dtype)
    shifts = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, far, 0.0, 0.0, 0.0], device=rows.device, dtype=rows.dtype)
    kind = _choice(rows, 9, generator)
    for number, make in ((1, _heavy), (6, _negative), (7, _integers), (8, _spiked)):
        chosen = (kind == number).reshape(-1).nonzero().reshape(-1)
        if chosen.numel():
            rows[chosen] = make(rows[chosen], limit, generator)
    return rows.mul_(scales[kind]).add_(shifts[kind])


def _shifted(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """1 + N, 100 + N or 1e4 + N by row: a variance as E[x^2] - E[x]^2 loses all its digits."""
    shifts = torch.tensor([min(shift, limit - 8) for shift in _SHIFTS], device=rows.device, dtype=rows.dtype)
    return rows.add_(shifts[_choice(rows, len(_SHIFTS), generator)])


def _ladder(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """One scale for the whole tensor, drawn for each tensor: a forgotten eps shows at 1e-3, a forgotten cap at 30."""
    allowed = [scale for scale in _LADDER if 3 * scale <= limit]
    place = int(torch.randint(len(allowed), (1,), generator=generator, device=rows.device))
    return rows.mul_(allowed[place])


def _offset(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """1e4 + N everywhere: rows of different means, as in `shifted`, hide what a variance over columns loses."""
    return rows.add_(limit - 8)


def _tiny(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """1e-5 times normal: what 1 + x loses of x shows."""
    return rows.mul_(1e-5)


def _signs(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """Rows all negative, all positive, of both signs, all equal, zero, and near one: a long product of any others is 0
    or infinite."""
    kind = _choice(rows, 6, generator)
    rows = torch.where(kind == 0, -rows.abs(), rows)
    rows = torch.where(kind == 1, rows.abs(), rows)
    equal = torch.where(rows[:, :1] < 0, -_EQUAL, _EQUAL)
    rows = torch.where(kind == 2, equal, rows)
    rows = torch.where(kind == 4, rows.sign() * (1 + 1e-3 * rows), rows)
    return torch.where(kind == 3, torch.zeros_like(equal), rows)


def _negative(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    return rows.abs_().neg_()


def _integers(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """-2 to 2: sums are exact in any order."""
    return torch.randint(-2, 3, rows.shape, generator=generator, device=rows.device).to(rows.dtype)


def _cancelling(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """x and -x + delta at random places of a row, or of a column: neighbours would favour one order of summing."""
    along_rows = rows.shape[1] > 1 and (
        rows.shape[0] < 2 or int(torch.randint(2, (1,), generator=generator, device=rows.device)) == 0
    )
    lanes = rows if along_rows else rows.t()
    half = lanes.shape[1] // 2
    order = torch.randperm(lanes.shape[1], generator=generator, device=rows.device)
    delta = 1e-2 * lanes[:, order[half : 2 * half]]
    lanes[:, order[half : 2 * half]] = delta - lanes[:, order[:half]]
    return rows


def _spiked(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """One value in 10,000 (one at least) is +-1e4: what a sample, a truncated top-k or a lost tail block misses."""
    flat = rows.reshape(-1)
    count = max(1, round(_SPIKE_DENSITY * flat.numel()))
    places = torch.randint(flat.numel(), (count,), generator=generator, device=rows.device)
    flat[places] = flat[places].sign() * limit
    return flat.reshape(rows.shape)


def _strided(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """In each row the elements that lie a power of two apart are large, all of one sign: those that one lane of 2 to
    256 looks at. A vector is one row. One row in four is in order, up or down: of its largest all lie side by side."""
    lanes = rows if rows.shape[1] > 1 else rows.t()
    most = max(1, min(8, lanes.shape[1].bit_length() - 2))
    stride = 2 ** (1 + _choice(lanes, most, generator).int())
    first = _choice(lanes, 1 << most, generator).int() % stride
    sign = 2 * _choice(lanes, 3, generator).clamp_max_(1) - 1  # two of three are positive
    place = torch.arange(lanes.shape[1], device=rows.device, dtype=torch.int32)  # 64 bits would be eight times the rows
    kind = _choice(lanes, 8, generator)
    ordered = lanes.sort(dim=1).values
    ordered = torch.where(kind == 0, ordered, ordered.flip(1))
    lanes.add_(torch.where(place % stride == first, sign.to(rows.dtype) * _END, 0.0))
    made = torch.where(kind < 2, ordered, lanes)
    return made if lanes is rows else made.t()


def _sparse(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    """Two rows of three are zero but for one element, anywhere: on a CPU of either sign, as masks and ReLU leave them.
    They are equal, and a sort by bits takes -0 for the smaller. (On a GPU torch's own sort was not looked at.)"""
    place = torch.randint(rows.shape[1], (rows.shape[0], 1), generator=generator, device=rows.device)
    kept = torch.arange(rows.shape[1], device=rows.device) == place
    zero = 0.0 * rows if rows.device.type == "cpu" else torch.zeros_like(rows[:1])
    return torch.where(kept | (_choice(rows, 3, generator) == 0), rows, zero)


def _plain(rows: torch.Tensor, limit: float, generator: torch.Generator) -> torch.Tensor:
    return rows


def _ended(made: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Normal, but three in four of the last elements along every dimension are large: a tail that is left out changes
    a sum, a maximum or a product, whatever the tail's length."""
    for dim in range(made.dim()):
        last = made.select(dim, -1)
        kept = torch.rand(last.shape, generator=generator, device=made.device) < 0.25
        last.copy_(torch.where(kept, last, last + _END * last.sign()))
    return made


def _with_specials(made: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """NaN, both infinities, -0 and a subnormal, one in each of a few rows; most rows, and in a matrix most columns,
    have none: what a NaN touches shows nothing else. Not the largest numbers: whether x * w / rms overflows depends on
    what is multiplied first."""
    limits = torch.finfo(dtype)
    planted = (float("nan"), float("inf"), float("-inf"), -0.0, limits.tiny / 4)
    rows = made.reshape(-1, made.shape[-1] if made.dim() > 1 else 1)
    free = rows.shape[1] // 4 if made.dim() > 1 else _SPECIAL_ROWS
    count = min(_SPECIAL_ROWS, max(1, rows.shape[0] // 8), max(1, free))
    chosen = torch.randperm(rows.shape[0], generator=generator, device=made.device)[:count]
    # No two in a column: where one has no part in a result (a masked key), another must not hide that.
    columns = torch.randperm(rows.shape[1], generator=generator, device=made.device)
    columns = columns[torch.arange(count, device=made.device) % rows.shape[1]]
    start = int(torch.randint(len(planted), (1,), generator=generator, device=made.device))
    cycle = [planted[(start + place) % len(planted)] for place in range(count)]
    rows[chosen, columns] = _with_any_nan(torch.tensor(cycle, device=made.device, dtype=made.dtype), generator)
    return rows.reshape(made.shape)


def _with_any_nan(planted: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each NaN in one of its forms, where a float32 holds them."""
    if planted.dtype != torch.float32:
        return planted
    some = _NANS if planted.device.type == "cpu" else tuple(bits for bits in _NANS if bits > 0)
    forms = torch.tensor(some, dtype=torch.int32, device=planted.device)
    which = torch.randint(len(some), planted.shape, generator=generator, device=planted.device)
    return torch.where(planted.isnan(), forms[which], planted.view(torch.int32)).view(torch.float32)


def _choice(rows: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """A number below `count` for every row, in random order: [rows, 1]."""
    return torch.randint(0, count, (rows.shape[0], 1), generator=generator, device=rows.device)


_MAKERS: dict[str, Callable[[torch.Tensor, float, torch.Generator], torch.Tensor]] = {
    "mixed": _mixed,
    "heavy": _heavy,
    "shifted": _shifted,
    "ladder": _ladder,
    "offset": _offset,
    "tiny": _tiny,
    "signs": _signs,
    "integers": _integers,
    "cancelling": _cancelling,
    "spikes": _spiked,
    "strided": _strided,
    "sparse": _sparse,
    "special": _plain,
}
