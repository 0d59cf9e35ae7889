"""A service with a history: one finished job of 22 candidates, one that runs, what was learned and who works.

Written by the functions that the workers use, so that what a page shows could be real; the report is one that the judge
wrote, with its times scaled to the speedup that a candidate of the story has.
"""

from __future__ import annotations

from tests.support.showcase.filling import CHEEKY, Showcase, fill

__all__ = ["CHEEKY", "Showcase", "fill"]
