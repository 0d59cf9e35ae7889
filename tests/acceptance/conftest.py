"""Fixtures of the acceptance tests: a whole service of real processes. A test that fails tells what they were doing."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.acceptance.rig import Deployment
from tests.support.people import home_of


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """A running deployment for the tests of one module; at its end no process is left."""
    with home_of("self") as home, Deployment(home) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Whatever a test waited for in vain, the reason is in the programs' logs, which are gone soon after."""
    report = yield
    running = getattr(item, "funcargs", {}).get("deployment")
    if report.when == "call" and report.failed and isinstance(running, Deployment):
        report.sections.append(("the deployment", running.condition()))
    return report
