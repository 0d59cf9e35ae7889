"""A browser's requests to the real server of the API's tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

FORM = {"bundled": "softmax", "hardware": "cpu", "language": "cpp", "candidates": "4"}
ACCEPT = {"Accept": "text/html,*/*;q=0.8"}


@pytest.fixture
def browser(url: str) -> Iterator[httpx2.Client]:
    """Asks for pages, as a browser does."""
    with httpx2.Client(base_url=url, timeout=30, headers=ACCEPT) as client:
        yield client
