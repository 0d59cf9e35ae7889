"""Settings of every test process."""

from __future__ import annotations

import os
import random
import sys
import time

import pytest
import structlog

# OpenMP's threads spin for milliseconds after each parallel region. With more test processes than cores they take the
# cores from each other's work: a setup of 1 s took 16 s (measured, three processes on two cores).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# structlog's own default prints to whatever sys.stdout is, of which CPython's print() holds no reference: a thread that
# logged while pytest took a capture away crashed the interpreter (3.11), and xdist never ended. `write` holds one.
structlog.configure(logger_factory=lambda *_: structlog.WriteLogger(sys.stdout))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture. Where CI's cores are slow, tests that have not begun in time are skipped, and named at the
    end: the exhaustive ones first."""
    _same_values()
    exhaustive = item.get_closest_marker("exhaustive") is not None
    until = os.environ.get("CI_EXHAUSTIVE_UNTIL" if exhaustive else "CI_TESTS_UNTIL")
    if until is not None and time.time() > float(until):
        pytest.skip(f"CI has no time left for it: `make {'test-exhaustive' if exhaustive else 'test'}` runs it")


def _same_values() -> None:
    """Each test draws the same in every run: of 7,400 tests one drew, in one run of 65, a number of few bits that its
    claim does not hold for. What is secret on purpose, a judge's seeds, does not come from these generators."""
    random.seed(0)
    for name in ("numpy", "torch"):  # whoever has not imported it draws nothing from it; torch takes 1.5 s
        module = sys.modules.get(name)
        if module is not None:
            (module.random.seed if name == "numpy" else module.manual_seed)(0)
