"""The floor on real exhibits, with ceilings set by hand: what is faster than light, and what is exempt."""

from __future__ import annotations

import pytest
import torch

from tests.unit.judge.physics.test_work import exhibit_of
from worker.judge.exhibits import Exhibit
from worker.judge.physics.ceilings import Ceilings
from worker.judge.physics.floor import PhysicsFloor, upper_median_us
from worker.judge.report import Evaluation, WorkloadTiming
from worker.judge.verdict import Verdict

BYTES = 3 * 512 * 1024 * 4
"""Moved by the sum below: 6.3 MB."""


class Fixed(Ceilings):
    """1 GB/s from memory, 10 GB/s from a cache whose size is given; `again` finds `better` times as much."""

    def __init__(self, cache_bytes: int, better: float = 1.0) -> None:
        super().__init__("cpu")
        self._cache, self._better = cache_bytes, better
        self._bandwidths |= {"memory": 1e9, "cache": 1e10}
        self._products |= {(torch.float32, False): 1e9}
        self.asked_again = 0

    @property
    def cache_bytes(self) -> int:
        return self._cache

    def again(self) -> None:
        self.asked_again += 1
        self._bandwidths["memory"] *= self._better


@pytest.fixture(scope="module")
def sums() -> Exhibit:
    return exhibit_of("def forward(self, x, y):\n    return x + y", "[torch.randn(512, 1024)] * 2")


def floor_with(ceilings: Ceilings) -> PhysicsFloor:
    floor = PhysicsFloor("cpu")
    floor.ceilings = ceilings
    return floor


def timed(exhibit: Exhibit, candidate_us: float, eager_us: float = 1e6) -> Evaluation:
    row = WorkloadTiming(
        name=exhibit.name,
        latency_us=candidate_us,
        baselines_us={"eager": eager_us},
        baseline="eager",
        speedup=eager_us / candidate_us,
        ci95=(1.0, 1.0),
        samples_us={"candidate": [candidate_us] * 20, "eager": [eager_us] * 20},
    )
    return Evaluation("c", verdict=Verdict.OK, workloads=[row])


def test_faster_than_the_bytes_can_move_is_suspicious_and_the_sentence_has_the_figures(sums: Exhibit) -> None:
    floor = floor_with(Fixed(cache_bytes=0))
    evaluation = timed(sums, 0.85 * BYTES / 1e3)  # 1 GB/s is 1e3 bytes a microsecond
    found = floor.check([sums], evaluation)
    assert not found.passed
    assert evaluation.verdict == Verdict.SUSPICIOUS
    assert "6 MB" in evaluation.reason
    assert found.detail == evaluation.reason


def test_a_kernel_at_the_ceiling_passes_with_its_speed_of_light(sums: Exhibit) -> None:
    floor = floor_with(Fixed(cache_bytes=0))
    evaluation = timed(sums, 2 * BYTES / 1e3)
    assert floor.check([sums], evaluation).passed
    assert evaluation.verdict == Verdict.OK
    (row,) = evaluation.workloads
    assert row.sol_us == pytest.approx(BYTES / 1e3)
    assert row.sol_fraction == pytest.approx(0.5)


def test_what_fits_the_cache_has_no_floor_and_is_measured_against_the_cache(sums: Exhibit) -> None:
    floor = floor_with(Fixed(cache_bytes=BYTES))
    evaluation = timed(sums, 0.1 * BYTES / 1e3)
    found = floor.check([sums], evaluation)
    assert found.passed
    assert "no floor for default" in found.detail
    assert evaluation.workloads[0].sol_fraction == pytest.approx(1.0)


def test_a_ceiling_measured_in_a_bad_moment_is_measured_again_before_anyone_is_accused(sums: Exhibit) -> None:
    ceilings = Fixed(cache_bytes=0, better=2.0)
    evaluation = timed(sums, 0.6 * BYTES / 1e3)
    assert floor_with(ceilings).check([sums], evaluation).passed
    assert ceilings.asked_again == 1
    assert evaluation.verdict == Verdict.OK


def test_what_a_trusted_baseline_reaches_is_no_ground_for_suspicion(sums: Exhibit) -> None:
    evaluation = timed(sums, 0.5 * BYTES / 1e3, eager_us=0.5 * BYTES / 1e3)
    assert floor_with(Fixed(cache_bytes=0)).check([sums], evaluation).passed


def test_operations_alone_never_make_a_kernel_suspicious() -> None:
    product = exhibit_of("def forward(self, x, y):\n    return x @ y", "[torch.randn(256, 256)] * 2")
    floor = floor_with(Fixed(cache_bytes=0))
    evaluation = timed(product, 1000.0)  # 786 us for the bytes, 33,554 us for the operations
    assert floor.check([product], evaluation).passed
    assert evaluation.workloads[0].sol_fraction == pytest.approx(33.55, rel=0.01)


def test_the_interval_and_not_the_median_is_held_against_a_candidate() -> None:
    scattered = [float(value) for value in range(1, 42)]
    assert upper_median_us(scattered) == 27.0
    assert upper_median_us([5.0]) == 5.0


def test_real_ceilings_are_plausible_and_kept() -> None:
    ceilings = Ceilings("cpu")
    assert 1e8 < ceilings.bytes_per_s < 1e13
    assert ceilings.cache_bytes_per_s >= ceilings.bytes_per_s
    assert 1 << 18 <= ceilings.cache_bytes < 1 << 32
    assert 1e8 < ceilings.flops_per_s(torch.float32) < 1e15
    for eight_bits in (torch.float8_e4m3fn, torch.float8_e5m2):
        assert ceilings.flops_per_s(torch.float32) <= ceilings.flops_per_s(eight_bits) < 1e15
    before = ceilings.bytes_per_s
    assert ceilings.bytes_per_s == before
    ceilings.reached(2 * before)
    assert ceilings.bytes_per_s == 2 * before
