"""Tests of `db.paging`."""

from __future__ import annotations

import math

import pytest

from db.paging import CursorValue, InvalidCursor, Page, decode_cursor, encode_cursor, number_in


@pytest.mark.parametrize("values", [("2026-01-01", "job_1"), (1.5, 3), (None, 7), ("",)])
def test_a_cursor_gives_back_what_it_was_made_of(values: tuple[CursorValue, ...]) -> None:
    cursor = encode_cursor(*values)
    assert decode_cursor(cursor, len(values)) == list(values)
    assert cursor.replace("-", "").replace("_", "").isalnum()  # goes into a URL as it is


@pytest.mark.parametrize("cursor", ["", "%%%", "é", "bm90IGpzb24", "e30", "W1tdXQ", encode_cursor(1)])
def test_anything_else_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidCursor, match="next_cursor"):
        decode_cursor(cursor, 2 if cursor == encode_cursor(1) else 1)


@pytest.mark.parametrize("value", ["1", None, math.nan, math.inf])
def test_a_number_is_finite(value: CursorValue) -> None:
    with pytest.raises(InvalidCursor):
        number_in(value)


def test_the_last_page_has_no_more() -> None:
    assert not Page((1, 2), None).has_more
    assert Page((1, 2), "x").has_more
