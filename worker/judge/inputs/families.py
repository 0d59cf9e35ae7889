"""Input families: what the judge draws for each domain.

Uniform positive inputs cannot see precision cheats (fp32 against TF32 at K = 16,384 differs 2.3x on U(0, 1), but 94x on
N(0, 1) and 133x on signed log-normal values, measured), so several families are drawn, and `mixed` puts rows of all of
them into one batch in a secret order: a kernel that recognises one scale meets the others in the same call.

A family names a pair: how real values are drawn, and how indices are, in `real_values` and `indices`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from problems.catalog import Domain
from worker.judge.inputs import indices, ordered, real_values

SPECIAL = "special"
STRIDED, SPARSE, MOVED, MASKED = "strided", "sparse", "moved", "masked"
"""What a kernel that looks at a part of the values, or shares them out to lanes, decides wrongly on: large values a
power of two apart and indices in order but for three; and rows and cotangents of zeros but for a few, with indices most
of which are one. Of 27 wrong C++ candidates that were written without a look at the judge 17 were accepted without:
among them a top-k whose 64 lanes kept 8 numbers each, a histogram with counters of 16 bits, and gradients that are zero
where 4,096 sampled cotangents are. `moved` is `strided` with a few indices, offsets or keys moved; `masked` has
-inf in one argument."""
PATTERNS = (STRIDED, SPARSE)
ENDS, OFFSET = "ends", "offset"
"""For other sizes than the workloads': what a kernel leaves out at the end of a dimension shows, and so does a variance
over any dimensions that cancels."""
LISTED, LISTED_MIXED = "listed", "listed_mixed"
"""Two draws of the file's own get_inputs, but for real values, which see precision: what is timed of a problem that has
indices, or tensors that may not be drawn, such as offsets. How long a scatter takes hangs on how indices are spread,
and that is part of what a workload lists: eager's histogram of evenly spread numbers took 9.7 ms where two of three
cases that were timed were Zipf's and duplicates, and 0.9 ms in a look on what the file draws (H100). Two, since a
kernel that kept the offsets of its first call was accepted as long as they were the same in all cases, and since what
sees precision on one problem does not on another: `mixed` did not for scatter_add in bf16 (H100)."""
AS_LISTED = (LISTED, LISTED_MIXED)
OWN = "own"
"""The file's own get_inputs: the only family of a problem none of whose arguments may be drawn."""


@dataclass(frozen=True, slots=True)
class _Pair:
    real: str
    index: str


_PAIRS = {
    "normal": _Pair("normal", "zipf"),  # the tightest tolerance with the ids that show most
    "mixed": _Pair("mixed", "zipf"),
    "heavy": _Pair("heavy", "zipf"),
    "shifted": _Pair("shifted", "uniform"),
    "ladder": _Pair("ladder", "zipf"),
    "tiny": _Pair("tiny", "uniform"),
    "cancelling": _Pair("cancelling", "uniform"),
    "spikes": _Pair("spikes", "zipf"),
    "integers": _Pair("integers", "duplicates"),
    "signs": _Pair("signs", "uniform"),
    "special": _Pair("special", "uniform"),
    "zipf": _Pair("normal", "zipf"),
    "uniform": _Pair("normal", "uniform"),
    "duplicates": _Pair("normal", "duplicates"),
    "edges": _Pair("normal", "edges"),
    STRIDED: _Pair("strided", "nearly_sorted"),
    SPARSE: _Pair("sparse", "hot"),
    ENDS: _Pair("ends", "edges"),
    OFFSET: _Pair("offset", "uniform"),
    LISTED: _Pair("normal", indices.EXAMPLE),
    LISTED_MIXED: _Pair("mixed", indices.EXAMPLE),
    OWN: _Pair("normal", "uniform"),
}
FAMILIES = (
    "normal",
    "mixed",
    "shifted",
    "heavy",
    "ladder",
    "signs",
    "spikes",
    "cancelling",
    "tiny",
    "integers",
    "special",
)
"""The families of real values, in order of power. `special` alone holds NaN and infinities."""
INDEX_FAMILIES = ("zipf", "uniform", "duplicates", "edges")
"""The families of a problem whose only free arguments are indices."""
SPREAD = ("index", *ordered.KINDS)
"""The domains whose values a family spreads, rather than sizes: how long a call takes hangs on that."""
_POSITIVE = ("normal", "mixed", "shifted", "heavy", "ladder", "tiny", "spikes")
_UNIT = ("normal", "mixed")


def kind_of(value: Any, domain: Domain | None) -> str:
    """How an argument is drawn: `real`, `positive`, `unit`, `index`, as `ordered` says, or `fixed` for what stays as
    the example is."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return "fixed"
    kind = domain.kind if domain else "real" if value.is_floating_point() else "index"
    if kind == "fixed" or value.dtype == torch.bool or value.is_complex():
        return "fixed"
    return kind if value.is_floating_point() or kind in ordered.KINDS else "index"


def applicable(names: tuple[str, ...], domains: Mapping[str, Domain], like: tuple[Any, ...]) -> tuple[str, ...]:
    """The families that make sense for these arguments, the most powerful first; `("own",)` when none may be drawn."""
    kinds = {kind_of(value, domains.get(name)) for value, name in zip(like, names, strict=True)}
    discrete = not kinds.isdisjoint(SPREAD)
    indexed = ("duplicates", "edges") if discrete else ()
    if "real" in kinds:
        return (*FAMILIES, *indexed)
    if "positive" in kinds:
        return (*_POSITIVE, *indexed)
    if "unit" in kinds:
        return (*_UNIT, *indexed)
    return INDEX_FAMILIES if discrete else (OWN,)


def as_listed(names: tuple[str, ...], domains: Mapping[str, Domain], like: tuple[Any, ...]) -> tuple[str, ...]:
    """The families to time on where any tensor has indices or may not be drawn; one number, a seed say, is neither."""
    kept = [
        value
        for value, name in zip(like, names, strict=True)
        if isinstance(value, torch.Tensor) and kind_of(value, domains.get(name)) in (*SPREAD, "fixed")
    ]
    return AS_LISTED if any(value.numel() > 1 for value in kept) else ()


def draw(
    like: tuple[Any, ...],
    names: tuple[str, ...],
    domains: Mapping[str, Domain],
    params: Mapping[str, Any],
    family: str,
    generator: torch.Generator,
) -> tuple[Any, ...]:
    """New values for every tensor of `like`, by its domain; other arguments and `fixed` tensors stay as they are.

    Shapes, dtypes and strides are `like`'s, and so is a triangular, diagonal or symmetric form. Raises KeyError for an
    unknown family.
    """
    pair = _PAIRS[family]
    special = _special_argument(like, names, domains, generator) if family == SPECIAL else ""
    drawn: list[Any] = []
    for value, name in zip(like, names, strict=True):
        domain = domains.get(name)
        kind = kind_of(value, domain)
        if kind == "fixed" or family == OWN:
            drawn.append(value.clone() if isinstance(value, torch.Tensor) else value)
        elif kind == "index":
            limit = domain.limit(params) if domain else None
            drawn.append(_same_layout(indices.indices(value, limit, pair.index, generator), value))
        elif kind in ordered.KINDS:
            drawn.append(_same_layout(ordered.drawn(value, kind, pair.index, generator), value))
        else:
            spared = family == SPECIAL and name != special
            drawn.append(_same_layout(_real(value, kind, "normal" if spared else pair.real, generator), value))
    return tuple(drawn)


def _special_argument(
    like: tuple[Any, ...], names: tuple[str, ...], domains: Mapping[str, Domain], generator: torch.Generator
) -> str:
    """The one argument that gets special values: in two at once, one would hide what the other has no part in. A matrix
    if there is any: a NaN in a vector of weights reaches everything."""
    real = [
        (value, name) for value, name in zip(like, names, strict=True) if kind_of(value, domains.get(name)) == "real"
    ]
    chosen = [name for value, name in real if value.dim() > 1] or [name for _value, name in real]
    if not chosen:
        return ""
    return chosen[int(torch.randint(len(chosen), (1,), generator=generator, device=generator.device))]


def _real(like: torch.Tensor, kind: str, family: str, generator: torch.Generator) -> torch.Tensor:
    if kind == "positive":
        values = real_values.positive(like, family if family in (*_POSITIVE, ENDS, OFFSET) else "normal", generator)
    elif kind == "unit":
        values = real_values.unit(like, family, generator)
    else:
        values = real_values.values(like, family, generator)
    return real_values.shaped_as(values.to(like.dtype), real_values.structure(like))


def _same_layout(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`values` with the strides of `like`, so that a non-contiguous argument stays one."""
    if values.stride() == like.stride():
        return values
    placed = torch.empty_strided(like.shape, like.stride(), dtype=values.dtype, device=values.device)
    return placed.copy_(values)
