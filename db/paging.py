"""Keyset pages: a cursor names the last row seen, so that each row is seen once however many are inserted meanwhile."""

from __future__ import annotations

import base64
import binascii
import json
import math
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
CursorValue = str | int | float | None


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some rows, and the cursor of the next page (None on the last)."""

    items: tuple[Item, ...]
    next_cursor: str | None

    @property
    def has_more(self) -> bool:
        """Whether another page follows."""
        return self.next_cursor is not None


class InvalidCursor(ValueError):
    """This cursor is not of this list: take `next_cursor` of the page before, with the same filters and sort."""

    def __str__(self) -> str:
        return str(self.__doc__)


def encode_cursor(*values: CursorValue) -> str:
    """An opaque cursor for the sort values of the last row."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def number_in(value: CursorValue) -> float:
    """A cursor's value as a finite number. Raises InvalidCursor."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        return value
    raise InvalidCursor


def decode_cursor(cursor: str, length: int) -> list[CursorValue]:
    """The sort values in a cursor. Raises InvalidCursor when it does not hold exactly `length` of them."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        values = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
    except (ValueError, binascii.Error) as error:
        raise InvalidCursor from error
    if not isinstance(values, list) or len(values) != length:
        raise InvalidCursor
    if not all(value is None or isinstance(value, (str, int, float)) for value in values):
        raise InvalidCursor
    return values
