"""The class of a workload by the judge's own figures."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.profile.points import point
from worker.profile.roofline import Bound


@pytest.mark.parametrize(
    ("figures", "bound"),
    [
        ({"memory_us": 60.0}, Bound.MEMORY),
        ({"memory_us": 140.0}, Bound.MEMORY),
        ({"memory_us": 59.0}, Bound.LATENCY),
        ({"memory_us": 65.0, "compute_us": 70.0}, Bound.COMPUTE),
        ({"memory_us": 1.0, "latency_us": 20.0}, Bound.OVERHEAD),
        ({"memory_us": 1.0, "latency_us": 20.0, "kind": "cuda"}, Bound.LATENCY),
        ({"memory_us": 19.0, "latency_us": 20.0}, Bound.MEMORY),
    ],
)
def test_a_unit_that_is_in_use_to_sixty_percent_bounds(figures: dict[str, Any], bound: Bound) -> None:
    assert point(**figures).bound == bound


def test_the_roofs_leave_no_less_than_nothing() -> None:
    assert point(memory_us=25.0, compute_us=40.0).headroom == pytest.approx(0.6)
    assert point(memory_us=140.0).headroom == 0.0
