"""From a job's candidates to findings: each is one candidate's word on one lesson.

Two sources. *Pairs*: a parent and its child, both accepted and timed, whose difference has a name; the finding is the
effect with its interval. *Failures*: an error's fingerprint, and whether the repair that followed it worked.
AdaExplore (arXiv 2604.16625) keeps failures, AccelOpt pairs from slow to fast; a slow-down is worth knowing as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search.hardware import kin
from search.knowledge.changes import change_between, difference
from search.knowledge.effects import Effect, effect_between
from search.knowledge.fingerprints import VAGUE, Fingerprint, fingerprint
from search.knowledge.standing import LessonKind, Says
from search.lineage import REPAIRABLE
from search.types import Operator, Verdict

BOUNDS = ("memory", "compute", "latency", "launch")
_ALSO_CALLED = {"overhead": "launch", "bandwidth": "memory", "dram": "memory"}

PAIRS = frozenset({Operator.REFINE, Operator.REWRITE, Operator.TUNE})
"""Operators with one parent whose child differs by what was done to it."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What the job was about; lessons hold for this language and the kin of this hardware."""

    op_family: str
    hardware: str
    language: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A judged candidate."""

    id: str
    operator: str
    parents: tuple[str, ...]
    source: str
    verdict: str
    reason: str | None = None
    log: str | None = None
    speedup: float | None = None
    ci95: tuple[float, float] | None = None
    bound: str = ""
    """What held it back, where a profile says so."""


@dataclass(frozen=True, slots=True)
class LessonKey:
    """What makes two lessons the same one. Empty: whatever it was."""

    kind: str
    language: str
    hardware: str
    op_family: str
    bound: str
    key: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One candidate's word on a lesson. `statement` is the lesson without its figures."""

    lesson: LessonKey
    statement: str
    candidate_id: str
    parent_id: str | None
    says: str
    effect: Effect | None = None
    note: str | None = None


def distil(scene: Scene, attempts: Iterable[Attempt]) -> list[Finding]:
    """Everything that the attempts of one job have to say, in their order. The same attempts give the same findings."""
    known = {attempt.id: attempt for attempt in attempts}
    findings: list[Finding] = []
    for attempt in known.values():
        parent = known.get(attempt.parents[0]) if len(attempt.parents) == 1 else None
        findings += _of_failure(scene, attempt)
        if parent is not None and attempt.operator in PAIRS:
            findings += _of_pair(scene, parent, attempt)
        if parent is not None and attempt.operator == Operator.REPAIR:
            findings += _of_repair(scene, parent, attempt)
    return findings


def bound_of(report: Mapping[str, Any]) -> str:
    """What held a kernel back, by the profile in the judge's report; empty where there is none."""
    profile = report.get("profile")
    if not isinstance(profile, Mapping):
        return ""
    word = str(profile.get("bound") or profile.get("roofline_class") or "").lower().removesuffix("_bound")
    word = _ALSO_CALLED.get(word, word)
    return word if word in BOUNDS else ""


def _of_pair(scene: Scene, parent: Attempt, child: Attempt) -> Iterator[Finding]:
    if not (_timed(parent) and _timed(child)) or parent.speedup is None or child.speedup is None:
        return
    change = change_between(parent.source, child.source)
    effect = effect_between(parent.speedup, parent.ci95, child.speedup, child.ci95)
    if change is None or effect is None:
        return
    lesson = LessonKey(
        LessonKind.CHANGE, scene.language, kin(scene.hardware), scene.op_family, parent.bound, change.key
    )
    says = {1: Says.FASTER, -1: Says.SLOWER, 0: Says.UNCLEAR}[effect.sign]
    yield Finding(lesson, change.says, child.id, parent.id, says, effect, change.note)


def _of_failure(scene: Scene, attempt: Attempt) -> Iterator[Finding]:
    mark = _mark(attempt)
    if mark is not None and mark.verdict not in VAGUE:
        yield Finding(_failure(scene, mark), _cannot(mark), attempt.id, None, Says.OCCURRED)


def _of_repair(scene: Scene, parent: Attempt, child: Attempt) -> Iterator[Finding]:
    """A repair worked when its error is gone, though another may have come; wrong values must have become right."""
    mark = _mark(parent)
    if mark is None or child.verdict == Verdict.INFRA_ERROR:
        return
    after = _mark(child)
    same = (
        child.verdict == parent.verdict if mark.verdict in VAGUE else after is not None and after.digest == mark.digest
    )
    fixed = child.verdict == Verdict.OK if mark.verdict in VAGUE else not same
    says = Says.FIXED if fixed else Says.NOT_FIXED
    note = difference(parent.source, child.source) if fixed else None
    yield Finding(_failure(scene, mark), _cannot(mark), child.id, parent.id, says, None, note)


def _failure(scene: Scene, mark: Fingerprint) -> LessonKey:
    """Errors belong to a language on a kind of hardware; the op family is where they happened, not why."""
    return LessonKey(LessonKind.FAILURE, scene.language, kin(scene.hardware), "", "", mark.digest)


def _cannot(mark: Fingerprint) -> str:
    return f"cannot: {mark.message} ({mark.verdict})"


def _mark(attempt: Attempt) -> Fingerprint | None:
    if attempt.verdict not in REPAIRABLE:
        return None
    return fingerprint(attempt.verdict, attempt.reason, attempt.log)


def _timed(attempt: Attempt) -> bool:
    return attempt.verdict == Verdict.OK and attempt.speedup is not None


def by_lesson(findings: Sequence[Finding]) -> dict[LessonKey, list[Finding]]:
    """The findings of each lesson, lessons in a fixed order: whoever locks rows by it cannot meet another halfway."""
    grouped: dict[LessonKey, list[Finding]] = {}
    for finding in findings:
        grouped.setdefault(finding.lesson, []).append(finding)
    return dict(sorted(grouped.items(), key=lambda pair: (pair[0].kind, pair[0].key, repr(pair[0]))))
