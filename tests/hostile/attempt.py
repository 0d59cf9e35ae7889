"""One escape attempt: what is tried, the candidate that tries it, and what outside would tell of its success."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.hostile.ground import Ground

TOPICS = ("network", "files", "writes", "processes", "resources", "kernel", "descriptors", "builds")
DEFAULT = "namespaces"


class Trap(Protocol):
    """What lies in wait outside the sandbox for one attempt."""

    targets: Mapping[str, str | int]
    """What the candidate is told: where to look, and `token`, which it prints when a call gave it what it wanted."""

    def seen(self, log: str) -> str:
        """How the success shows, in a few words; "" where there is none. `log`: what the candidate printed."""
        ...

    def close(self) -> None:
        """Remove it, and whatever a success left."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One row of the table."""

    id: str
    topic: str
    what: str
    """In words, after "the candidate ..."."""
    source: str
    """A Python module behind the prelude of `tests.hostile.ground`."""
    trap: Callable[[Ground], Trap]
    uncovered: Mapping[str, str] = field(default_factory=dict)
    """Sandbox levels at which it may succeed, and why: the documented limits. Never the default level."""
    control: bool = True
    """Whether the same source is run once without a sandbox, to see that the trap would tell."""

    def __post_init__(self) -> None:
        """Raises ValueError for a row that cannot be meant."""
        if self.topic not in TOPICS or DEFAULT in self.uncovered:
            raise ValueError(f"{self.id}: topic {self.topic!r}, uncovered at {sorted(self.uncovered)}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attempt at one level (`none`: without a sandbox)."""

    attempt: Attempt
    level: str
    seen: str
    """How its success showed; "" when it was refused."""
    ended: str
    """How its process ended: the fault, or that it was loaded."""
    log: str = field(repr=False, default="")

    @property
    def documented(self) -> bool:
        """Whether this is the outcome that the attempt's row allows."""
        return not self.seen or self.level in self.attempt.uncovered
