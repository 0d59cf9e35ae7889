"""How much to measure, where, and for how long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

PARTS = ("aa", "planted", "cost", "protocol")
_FULL_LIMIT_S, _QUICK_LIMIT_S = 200.0, 45.0
"""Per part, after its warm-up (30 s for two problems): all four parts in quick mode stay under five minutes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for on the command line."""

    hardware: str
    """`cpu` or a GPU's id, such as `nvidia-h200`."""
    home: Path
    """Folder for the judge's caches."""
    quick: bool = False
    count: int | None = None
    """Runs or candidates of each part; None: the part's own number."""
    limit_s: float | None = None
    """So many seconds after its warm-up a part starts nothing more."""

    @property
    def on_gpu(self) -> bool:
        """Whether the judge times on a GPU."""
        return self.hardware != "cpu"

    @property
    def device(self) -> str:
        """As torch names it."""
        return "cuda:0" if self.on_gpu else "cpu"

    def runs(self, full: int, quick: int) -> int:
        """How many: what was asked for, or the part's own number for this mode."""
        return self.count or (quick if self.quick else full)

    def deadline(self, spent_s: float = 0.0) -> Deadline:
        """The end of a part that is warm now and has been measured for so long."""
        return Deadline((self.limit_s or (_QUICK_LIMIT_S if self.quick else _FULL_LIMIT_S)) - spent_s)


class Deadline:
    """Starts running when made."""

    def __init__(self, limit_s: float) -> None:
        self._end = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """Seconds left; negative when it has passed."""
        return self._end - time.monotonic()

    @property
    def passed(self) -> bool:
        """Whether nothing more should be started."""
        return self.left_s <= 0
