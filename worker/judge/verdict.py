"""What the judge says of a candidate: verdicts, the checks behind them, and the fault that ends a judgement early."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How a judgement ended. `infra_error` never counts against a candidate."""

    OK = "ok"
    BUILD_ERROR = "build_error"
    LAUNCH_ERROR = "launch_error"
    ILLEGAL_ACCESS = "illegal_access"
    TIMEOUT = "timeout"
    INCORRECT = "incorrect"
    NONDETERMINISTIC = "nondeterministic"
    SUSPICIOUS = "suspicious"
    INFRA_ERROR = "infra_error"


CANNOT = (Verdict.LAUNCH_ERROR, Verdict.BUILD_ERROR)
"""What a candidate ends in that says that it cannot do what is asked."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked, and what was found."""

    name: str
    passed: bool
    detail: str = ""
    figures: dict[str, float | str] = field(default_factory=dict)
    """Statistics and thresholds, with their units in the names."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Fault(Exception):
    """The candidate failed: a verdict, the reason in one sentence, and the tail of what it printed."""

    def __init__(self, verdict: Verdict, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.verdict, self.reason, self.log = verdict, reason, log


class BaselineFault(Fault):
    """A baseline failed while it was timed beside a candidate: `infra_error`, which says nothing of the candidate."""

    def __init__(self, name: str, cause: Fault) -> None:
        super().__init__(Verdict.INFRA_ERROR, f"the baseline {name}: {cause.reason}", cause.log)
        self.name, self.cause = name, cause


class ReferenceFailed(Exception):
    """The problem's own reference cannot be judged against. The message says what failed and what to change."""


class ReferenceFull(ReferenceFailed):
    """A device had no memory left for it: the problem's fault where no other judge has a part of that device."""
