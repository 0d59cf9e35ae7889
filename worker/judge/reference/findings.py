"""What the admission test found: per family and for the problem as a whole, as data and as plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from worker.judge.reference.domains import InferredDomain

ADMITTED, WARNED, REFUSED = "admitted", "admitted with warnings", "refused"
NEEDED = 3
"""Informative families that a problem needs: one alone may be recognised, and its tolerance be off."""


@dataclass(frozen=True, slots=True)
class FamilyFinding:
    """What one family of inputs can tell."""

    name: str
    usable: bool
    """Whether the reference's results are finite on it; others are not judged by."""
    passing: tuple[str, ...] = ()
    """The wrong answers that pass: the family is vacuous for them."""
    passing_outputs: Mapping[str, tuple[str, ...]] | None = None
    """By output, the wrong answers that pass for this output though not for all."""
    sees_precision: bool = False

    @property
    def informative(self) -> bool:
        """Whether no wrong answer passes, precision aside."""
        return self.usable and not self.passing


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a problem can be judged, and what its user must know."""

    problem: str
    hardware: str
    verdict: str
    """`admitted`, `admitted with warnings` or `refused`."""
    reason: str = ""
    workload: str = ""
    """The one that was tried: the smallest."""
    domains: Mapping[str, InferredDomain] | None = None
    families: tuple[FamilyFinding, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is wrong with the problem but made good by the judge."""

    @property
    def informative(self) -> tuple[str, ...]:
        """The families that no wrong answer passes."""
        return tuple(found.name for found in self.families if found.informative)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"informative": list(self.informative)}

    def lines(self) -> list[str]:
        """For a reader."""
        written = [f"{self.problem} on {self.hardware}: {self.verdict}" + (f": {self.reason}" if self.reason else "")]
        for name, domain in (self.domains or {}).items():
            bound = f" below {domain.bound}" if domain.bound is not None else ""
            written.append(f"  argument {name}: {domain.kind}{bound} ({domain.why})")
        for found in self.families:
            state = "informative" if found.informative else "vacuous" if found.usable else "not finite, not used here"
            state += ", sees precision" if found.sees_precision else ""
            state += f": {'; '.join(found.passing)} would pass" if found.passing else ""
            written.append(f"  family {found.name}: {state}")
        written += [f"  warning: {text}" for text in self.warnings]
        return written + [f"  note: {text}" for text in self.notes]


def warnings_of(findings: tuple[FamilyFinding, ...]) -> tuple[str, ...]:
    usable = [found for found in findings if found.usable]
    texts = []
    passing = dict.fromkeys(mutant for found in usable for mutant in found.passing)
    for mutant in passing:
        where = [found.name for found in usable if mutant in found.passing]
        texts.append(f"{mutant} would pass in {len(where)} of {len(usable)} families ({', '.join(where)})")
    partly = dict.fromkeys(
        (name, m) for found in usable for name, ms in (found.passing_outputs or {}).items() for m in ms
    )
    for name, mutant in partly:
        where = [found.name for found in usable if mutant in (found.passing_outputs or {}).get(name, ())]
        if len(where) == len(usable):
            texts.append(f"{mutant} would pass for {name} in every family")
    if usable and not any(found.sees_precision for found in usable):
        texts.append("no family tells one precision from the next: only the logic of a kernel is judged")
    return tuple(texts)


def refusal_of(findings: tuple[FamilyFinding, ...]) -> str:
    """Why the problem cannot be judged, or nothing."""
    usable = [found for found in findings if found.usable]
    if not usable:
        return "the reference gives finite results on none of the input families: declare its domains in SPEC"
    informative = [found for found in usable if found.informative]
    if len(informative) >= min(NEEDED, len(usable)):
        return ""
    most = dict.fromkeys(mutant for found in usable for mutant in found.passing)
    return (
        f"{len(informative)} of {len(usable)} input families tell a right answer from a wrong one, and "
        f"{min(NEEDED, len(usable))} are needed: {', '.join(most)} would pass in the others"
    )
