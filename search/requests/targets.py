"""Where a request's kernel shall run, and in which language: what is said wins, what is not is chosen and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.requests.understanding import Wish
from search.types import Target

CPU = "cpu"
USUAL_GPU = "nvidia-h100"
"""Where a GPU is meant, none is named and none is here."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The target, and what was assumed for it, in words."""

    target: Target
    notes: tuple[str, ...] = ()


def choose(wish: Wish, hardware: str | None, language: str | None, served: Sequence[str]) -> Chosen:
    """The target of a request. `hardware` and `language` are what was said beside the words; `served` is the hardware
    that live workers have."""
    language = language or wish.language
    notes: list[str] = []
    place = hardware or _named(wish, served) or _assumed(wish, language, served, notes)
    if language is None:
        language = "cpp" if place == CPU else "triton"
        notes.append(f"no language was named: {language} is assumed")
    return Chosen(Target(place, language), tuple(notes))


def _named(wish: Wish, served: Sequence[str]) -> str | None:
    if wish.chip == CPU:
        return CPU
    if wish.vendor is None or wish.chip is None:
        return None
    named = f"{wish.vendor}-{wish.chip}"
    # A worker's own id may say more than people do: nvidia-h100-nvl.
    same = [each for each in served if each == named or each.startswith(f"{named}-")]
    return min(same, key=len, default=named)


def _assumed(wish: Wish, language: str | None, served: Sequence[str], notes: list[str]) -> str:
    gpus = sorted(each for each in served if each != CPU)
    if wish.chip == "gpu" or language in ("triton", "cuda"):
        place = gpus[0] if gpus else USUAL_GPU
    else:
        place = gpus[0] if gpus and language is None else CPU
    notes.append(f"no hardware was named: {place} is assumed")
    return place
