"""From values to places in a drawing, with round values to mark. The templates draw, and escape what they write."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixels, linearly; values outside are moved to the edge."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Pixels of a value."""
        span = (self.high - self.low) or 1.0
        share = (min(max(value, self.low), self.high) - self.low) / span
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values to mark: 1, 2 or 5 times a power of ten apart."""
        raw = (self.high - self.low) / max(most - 1, 1)
        if raw <= 0:
            return [self.low]
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(index * step, 12) for index in range(first, last + 1)]
