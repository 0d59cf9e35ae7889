"""Which proposals run without retrieval, and which items a proposal goes without: dice that fall the same again.

A proposal in five is made without anything retrieved, so that retrieval as a whole can be measured; of the others each
item is left out one time in ten, so that items that always come together can be told apart. Both are drawn before the
outcome can be known, from the job's seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

WITHOUT_ONE_IN = 5
"""A block of so many consecutive candidates has exactly one without retrieval: 20 %, even in a job of five."""

ITEM_LEFT_OUT_ONE_IN = 10

Withheld = Callable[[str], bool]
"""Whether the item of that id is to be left out."""


def retrieval_on(key: str, ordinal: int) -> bool:
    """Whether the candidate of that ordinal (from 0 or 1) is proposed with retrieval; `key` names problem and seed."""
    block, place = divmod(ordinal, WITHOUT_ONE_IN)
    return place != _draw(f"{key} block {block}", WITHOUT_ONE_IN)


def item_dice(key: str, ordinal: int) -> Withheld:
    """Says for each item whether the candidate goes without it."""
    return lambda item_id: _draw(f"{key} {ordinal} {item_id}", ITEM_LEFT_OUT_ONE_IN) == 0


def _draw(text: str, sides: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % sides
