"""What a lesson's evidence amounts to: tentative, confirmed by independent jobs, or quarantined for contradictions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from search.knowledge.effects import Effect, pooled

CONFIRMING_JOBS = 2
"""Independent jobs that must agree before a lesson is told. A rerun is not independent of what it repeats."""

TOLERATED_OPPOSITION = 0.2
"""Share of the jobs with an opinion that may say the opposite; above it, the lesson is about something that we do not
see, and is told to nobody."""

MAX_NOTES = 2


class LessonKind(StrEnum):
    """`change` is an edit and what it did to speed; `failure` an error, and what repaired it."""

    CHANGE = "change"
    FAILURE = "failure"


class LessonState(StrEnum):
    """Only `confirmed` lessons are retrieved."""

    TENTATIVE = "tentative"
    CONFIRMED = "confirmed"
    QUARANTINED = "quarantined"


class Says(StrEnum):
    """What one candidate says on a lesson: of a change how it went, of a failure that it happened or was repaired."""

    FASTER = "faster"
    SLOWER = "slower"
    UNCLEAR = "unclear"
    OCCURRED = "occurred"
    FIXED = "fixed"
    NOT_FIXED = "not_fixed"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One candidate's word. `origin` is the job, or the first of the chain of reruns that it belongs to."""

    origin: str
    says: str
    at: datetime
    effect: Effect | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What all evidence together says. Counts are of independent jobs; `effect` is pooled over them."""

    state: LessonState
    evidence: int
    supporting: int
    opposing: int
    effect: Effect | None
    last_confirmed: datetime | None
    notes: tuple[str, ...] = ()
    """Examples, newest first: values of a tunable, or the difference that repaired a failure."""


def standing_of(kind: str, evidence: Sequence[Evidence]) -> Standing:
    """The standing of a lesson of that kind."""
    return _of_failure(evidence) if kind == LessonKind.FAILURE else _of_change(evidence)


def _of_change(evidence: Sequence[Evidence]) -> Standing:
    per_job = {origin: pooled([e.effect for e in own if e.effect]) for origin, own in _by_origin(evidence).items()}
    effects = {origin: effect for origin, effect in per_job.items() if effect is not None}
    overall = pooled(list(effects.values()))
    sign = overall.sign if overall else 0
    # Without a clear sign overall the larger camp is the one that is opposed.
    leading = sign or (1 if sum(effect.sign for effect in effects.values()) >= 0 else -1)
    supporting = {origin for origin, effect in effects.items() if effect.sign == leading}
    opposing = sum(effect.sign == -leading for effect in effects.values())
    state = _state(len(supporting) if sign else 0, opposing, len(supporting) + opposing)
    agreeing = [e for e in evidence if e.origin in supporting and e.effect and e.effect.log * leading > 0]
    return Standing(state, len(evidence), len(supporting), opposing, overall, _latest(agreeing), _notes(agreeing))


def _of_failure(evidence: Sequence[Evidence]) -> Standing:
    """An error cannot be contradicted, only its repair: one that failed more often than it worked is not offered."""
    seen = [e for e in evidence if e.says == Says.OCCURRED]
    fixed = [e for e in evidence if e.says == Says.FIXED]
    in_vain = sum(e.says == Says.NOT_FIXED for e in evidence)
    jobs = len({e.origin for e in seen})
    state = LessonState.CONFIRMED if jobs >= CONFIRMING_JOBS else LessonState.TENTATIVE
    notes = _notes(fixed) if len(fixed) > in_vain / 2 else ()
    return Standing(state, len(evidence), jobs, 0, None, _latest(seen), notes)


def _state(supporting: int, opposing: int, voices: int) -> LessonState:
    if voices and opposing / voices > TOLERATED_OPPOSITION:
        return LessonState.QUARANTINED
    return LessonState.CONFIRMED if supporting >= CONFIRMING_JOBS else LessonState.TENTATIVE


def _by_origin(evidence: Iterable[Evidence]) -> dict[str, list[Evidence]]:
    by_origin: dict[str, list[Evidence]] = defaultdict(list)
    for each in evidence:
        by_origin[each.origin].append(each)
    return by_origin


def _latest(evidence: Sequence[Evidence]) -> datetime | None:
    return max((each.at for each in evidence), default=None)


def _notes(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    newest = sorted((each for each in evidence if each.note), key=lambda each: each.at, reverse=True)
    return tuple(dict.fromkeys(each.note for each in newest if each.note))[:MAX_NOTES]
