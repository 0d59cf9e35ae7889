"""One candidate of the corpus: what it does, on which problem, and what the judge must say of it."""

from __future__ import annotations

from dataclasses import dataclass

LAYERS = (
    "intake", "build", "boundary", "contract", "memory", "values", "semantics", "shapes", "determinism", "provenance",
    "timed_outputs", "clock", "physics", "system",
)  # fmt: skip
"""The judge's layers, roughly in the order of their cost."""

NON_OK = frozenset(
    {"build_error", "launch_error", "illegal_access", "timeout", "incorrect", "nondeterministic", "suspicious"}
)
"""Verdicts that reject a candidate. `infra_error` is not one of them: it is the judge's own failure."""

INCORRECT = frozenset({"incorrect"})
SUSPICIOUS = frozenset({"suspicious"})
WRONG = frozenset({"incorrect", "suspicious"})
"""Caught by its values or by its behaviour; which one depends on the check that comes first."""
CRASH = frozenset({"illegal_access", "launch_error", "incorrect", "suspicious"})
HONEST = frozenset({"ok"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One candidate. `expected` holds the acceptable verdicts: {"ok"} makes it an honest one."""

    id: str
    catalogue: int
    """Number in the catalogue of cheats, 1 to 88; 0 for an honest candidate that is nobody's twin."""
    title: str
    problem: str
    """Name of a problem of the corpus."""
    language: str
    """`cpp`, `triton` or `cuda`."""
    source: str
    expected: frozenset[str]
    layer: str = ""
    """The layer that must catch it; empty for an honest candidate."""
    needs: str = "cpu"
    """`cpu` (also runs where there is a GPU) or `gpu`."""
    own_kernel_share: float = 0.9
    """The job's policy: the least share of the work that the candidate's own code must do. 0.0 for an honest
    composition of torch's operators."""
    certify: bool = False
    """An honest one that must get a certificate too."""
    defused: bool = False
    """An attack on others or on the clock that has no effect here, and whose results are right: it may be accepted, at
    the speed of its honest work. Never for wrong results."""

    def __post_init__(self) -> None:
        """Raises ValueError for a table row that cannot be meant."""
        if (self.certify and not self.honest) or (self.defused and self.honest):
            raise ValueError(f"{self.id}: a cheat is certified for its layer, and only a cheat can be defused")
        if self.honest != (not self.layer) or (self.layer and self.layer not in LAYERS):
            raise ValueError(f"{self.id}: layer {self.layer!r} does not go with {sorted(self.expected)}")
        if not self.honest and not self.expected <= NON_OK:
            raise ValueError(f"{self.id}: {sorted(self.expected)} are no verdicts that reject")

    @property
    def honest(self) -> bool:
        """Whether the judge must accept it."""
        return self.expected == HONEST

    @property
    def certified(self) -> bool:
        """Whether its verdict is the certificate's: only that sees what the layer `system` is about."""
        return self.certify or self.layer == "system"
