"""perf's report, read: counts, metrics, and why there are none."""

from __future__ import annotations

import pytest

from worker.profile.counters import NotCounted, metrics, parse

COUNTED = """\
# started on Sat Nov 21 22:40:01 2026

4000000,,cycles:u,2000000,100.00,,
3000000,,instructions:u,2000000,100.00,0.75,insn per cycle
15625,,cache-misses:u,1500000,75.00,,
8000,,branch-misses:u,1500000,75.00,,
<not supported>,,dTLB-load-misses:u,0,100.00,,
"""
REFUSED = "<not supported>,,cycles:u,0,100.00,,\n<not supported>,,instructions:u,0,100.00,,\n"


def test_counts_are_read_and_what_is_not_supported_is_left_out() -> None:
    assert parse(COUNTED) == {"cycles": 4e6, "instructions": 3e6, "cache-misses": 15625.0, "branch-misses": 8000.0}


def test_metrics_are_shares_and_ratios() -> None:
    found = metrics(parse(COUNTED), least_bytes=500_000.0)
    assert found == {
        "instructions_per_cycle": 0.75,
        "branch_stall_share": pytest.approx(0.03),
        "tlb_stall_share": 0.0,
        "traffic_ratio": pytest.approx(2.0),
    }
    assert metrics(parse(COUNTED), least_bytes=0.0)["traffic_ratio"] is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (REFUSED, "cycles: not supported"),
        ("<not counted>,,cycles:u,0,0.00,,\n", "cycles: not counted"),
        ("0,,cycles:u,0,100.00,,\n5,,instructions:u,0,100.00,,\n", "no cycles"),
        ("", "no cycles"),
    ],
)
def test_a_machine_without_counters_says_so(text: str, why: str) -> None:
    with pytest.raises(NotCounted, match=why):
        parse(text)
