"""What the user of a request is shown and confirms: a problem with its source, and a whole job for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from problems.catalog import Outline, bundled
from search.requests.deriving import fit
from search.requests.matching import Match
from search.requests.understanding import Wish
from search.requests.writing import Written
from search.types import Target

MAX_ALTERNATIVES = 3


def by_matcher(
    wish: Wish, matches: Sequence[Match], target: Target, rest: Mapping[str, Any], notes: Sequence[str]
) -> dict[str, Any]:
    """The nearest bundled problem, fitted, as a proposal. Raises ProblemError: no workload of it fits the hardware."""
    best = matches[0]
    fitted = fit(best.problem, wish, target.hardware)
    said = [*notes, *_differences(best), *_types(wish), *fitted.notes]
    return _proposal("matcher", fitted.problem, target, rest, said) | {
        "score": best.score,
        "covers": list(best.covers),
        "lacks": list(best.lacks),
        "adds": list(best.adds),
        "alternatives": [_alternative(match) for match in matches[1 : 1 + MAX_ALTERNATIVES]],
    }


def by_model(
    written: Written, matches: Sequence[Match], target: Target, rest: Mapping[str, Any], notes: Sequence[str]
) -> dict[str, Any]:
    """A reference that a model wrote, as a proposal; the bundled problems that are near stand beside it."""
    said = [*notes, *([f"the model says: {written.assumed}"] if written.assumed else [])]
    return _proposal("model", written.problem, target, rest, said) | {
        "score": None,
        "covers": [],
        "lacks": [],
        "adds": [],
        "alternatives": [_alternative(match) for match in matches[:MAX_ALTERNATIVES]],
    }


def _proposal(
    by: str, problem: Outline, target: Target, rest: Mapping[str, Any], notes: Sequence[str]
) -> dict[str, Any]:
    known = bundled().get(problem.name)
    own = known is None or known.source_hash != problem.source_hash
    named: Any = {"name": problem.name, "source": problem.source} if own else problem.name
    return {
        "by": by,
        "job": {"problem": named, "target": dataclasses.asdict(target), **rest},
        "name": problem.name,
        "source": problem.source,
        "notes": list(notes),
    }


def _differences(match: Match) -> list[str]:
    if match.sure:
        return []
    parts = [f"it lacks {', '.join(match.lacks)}"] if match.lacks else []
    parts += [f"it adds {', '.join(match.adds)}"] if match.adds else []
    return [f"{match.problem.name} is the nearest bundled problem, not the same: {'; '.join(parts)}"] if parts else []


def _types(wish: Wish) -> list[str]:
    return [
        f"{dtype} was not set: a problem as a whole is not of this type, its file can name inputs that are"
        for dtype in wish.unsupported
    ]


def _alternative(match: Match) -> dict[str, Any]:
    return {
        "name": match.problem.name,
        "score": match.score,
        "lacks": list(match.lacks),
        "adds": list(match.adds),
    }
