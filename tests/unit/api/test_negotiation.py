"""What Accept, Prefer and If-None-Match ask for."""

from __future__ import annotations

import pytest

from api.negotiation import etag, matches, negotiate, preferred_wait_s

JSON, TEXT, PYTHON = "application/json", "text/plain", "text/x-python"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("text/x-python", PYTHON),
        ("text/plain", TEXT),
        ("text/*", TEXT),
        ("TEXT/X-Python; q=0.9, application/json; q=0.1", PYTHON),
        ("text/x-python;q=0.5, */*;q=0.8", JSON),
        ("text/html, */*;q=0.1", JSON),
        ("image/png", JSON),
        ("text/plain;q=rubbish", JSON),
    ],
)
def test_negotiate(accept: str | None, chosen: str) -> None:
    assert negotiate(accept, JSON, TEXT, PYTHON) == chosen


@pytest.mark.parametrize(
    ("prefer", "wait_s"),
    [
        (None, None),
        ("respond-async", None),
        ("wait=30", 30.0),
        ("respond-async, wait=5", 5.0),
        ('wait="7"', 7.0),
        ("await=3", None),
        ("wait=-1", None),
        ("wait=soon", None),
    ],
)
def test_preferred_wait(prefer: str | None, wait_s: float | None) -> None:
    assert preferred_wait_s(prefer) == wait_s


@pytest.mark.parametrize(
    ("header", "known"),
    [(None, False), ('"17"', True), ('W/"17"', True), ('"1", "17"', True), ("*", True), ('"170"', False), ("1", False)],
)
def test_if_none_match(header: str | None, known: bool) -> None:
    assert matches(header, etag("17")) is known
