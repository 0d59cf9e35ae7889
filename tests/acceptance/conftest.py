"""Fixtures of the acceptance tests: a whole service of real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.rig import Deployment
from tests.support.people import home_of


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """A running deployment for the tests of one module; at its end no process is left."""
    with home_of("self") as home, Deployment(home) as running:
        yield running
