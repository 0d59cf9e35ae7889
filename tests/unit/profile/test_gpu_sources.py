"""What comes back from a GPU's rungs, read: ncu's page, CUPTI's records, ptxas's log, a Triton build."""

from __future__ import annotations

from typing import Any

import pytest

from worker.profile import ncu
from worker.profile.counters import NotCounted
from worker.profile.loops import Malformed
from worker.profile.occupancy import Occupancy, occupancy
from worker.profile.resources import Kernel, of_launches, of_log, of_record
from worker.runner.kernel_list import counted, listed

PAGE = """\
==PROF== Connected to process 77 (/usr/bin/python3.11)
==PROF== Profiling "softmax" - 0: 0%....50%....100% - 11 passes
"ID","Kernel Name","Block Size","Grid Size","dram__bytes_read.sum","dram__bytes_write.sum",\
"dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","launch__registers_per_thread",\
"smsp__average_warp_latency_per_inst_issued.ratio",\
"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
"","","block","block","byte","byte","%","ns","register/thread","cycle","inst"
"0","fill(float *)","(256, 1, 1)","(4, 1, 1)","0","1,024","1.5","2,000","16","4","1"
"1","softmax(float *, int)","(256, 1, 1)","(4096, 1, 1)","20,000,000","9,998,976","80.5","18,000","40","20","15"
"""


def answer(text: str = PAGE) -> dict[str, Any]:
    return {"kernels": counted(text, ncu.WANTED), "code": 0, "said": ""}


def test_the_raw_page_of_ncu_is_read_kernel_by_kernel() -> None:
    first, second = answer()["kernels"]
    assert (first["name"], second["name"]) == ("fill(float *)", "softmax(float *, int)")
    assert first["counters"]["gpu__time_duration.sum"] == 2000.0
    assert second["counters"]["dram__bytes_read.sum"] == 20_000_000.0
    assert "Block Size" not in second["counters"]


def test_metrics_are_of_the_call_and_of_its_longest_kernel() -> None:
    found = ncu.read(answer(), latency_us=25.0, least_bytes=10e6)
    assert found.metrics == {
        "device_share": pytest.approx(0.8),
        "kernels_per_call": 2.0,
        "traffic_ratio": pytest.approx(3.0),
        "dram_share": pytest.approx(0.805),
        "registers": 40.0,
        "stall_memory": pytest.approx(0.75),
    }
    assert [(kernel["us"], kernel["share"]) for kernel in found.kernels] == [(18.0, 0.9), (2.0, 0.1)]


@pytest.mark.parametrize(
    "forbidden",
    [
        {"kernels": [], "code": 1, "said": "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"},
        {"kernels": [{"name": "x", "counters": {}}], "code": 0, "said": "ERR_NVGPUCTRPERM"},
        {"kernels": [{"name": "x", "counters": {"gpu__time_duration.sum": "soon"}}, 7], "said": "ERR_NVGPUCTRPERM"},
    ],
)
def test_forbidden_counters_are_told_in_ncus_words(forbidden: dict[str, Any]) -> None:
    with pytest.raises(NotCounted, match="ERR_NVGPUCTRPERM"):
        ncu.read(forbidden, 25.0, 10e6)


EVENT = {
    "cat": "kernel",
    "name": "softmax",
    "dur": 9.0,
    "args": {
        "grid": [528, 1, 1],
        "block": [256, 1, 1],
        "registers per thread": 64,
        "shared memory": 0,
        "blocks per SM": 4.0,
        "est. achieved occupancy %": 50,
    },
}


def test_kernels_of_a_trace_are_added_up_without_the_eviction() -> None:
    eviction = EVENT | {"name": "void at::native::bitwise_not_kernel_cuda", "dur": 500.0}
    other = {"cat": "cpu_op", "name": "aten::empty", "dur": 3.0}
    small = EVENT | {"name": "sum", "dur": 1.0}
    (first, second) = listed([EVENT, eviction, other, small, EVENT])
    assert (first["name"], first["count"], first["total_us"], first["registers"]) == ("softmax", 2, 18.0, 64)
    assert second["name"] == "sum"


def test_cupti_tells_launches_occupancy_and_waves() -> None:
    found = of_launches({"kernels": listed([EVENT] * 4)}, calls=2, latency_us=36.0, capability=90, multiprocessors=132)
    assert found.metrics == {
        "device_share": 0.5,
        "kernels_per_call": 2.0,
        "registers": 64,
        "occupancy": 0.5,
        "waves": 1.0,
    }
    assert found.kernels[0]["grid"] == [528, 1, 1]


@pytest.mark.parametrize("forged", [{}, {"kernels": []}, {"kernels": [{"name": "x"}]}, {"kernels": 3}])
def test_a_list_that_is_none_is_malformed(forged: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        of_launches(forged, 2, 36.0, 90, 132)


PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'silu' for 'sm_90a'
ptxas info    : Function properties for silu
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compiling entry function 'fat' for 'sm_90a'
ptxas info    : Function properties for fat
    96 bytes stack frame, 92 bytes spill stores, 120 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 96 bytes cumulative stack size
"""


def test_ptxas_says_what_each_kernel_needs() -> None:
    assert list(of_log(PTXAS)) == [Kernel("silu", 12, 0, 1024), Kernel("fat", 255, 120, 0)]
    assert list(of_log("warning: variable declared but never referenced")) == []


def test_a_triton_build_says_it_too() -> None:
    kernel = {"name": "k", "registers": 40, "stack_bytes": None, "shared_bytes": 4096, "num_warps": 8, "num_stages": 3}
    assert of_record({"kernels": [kernel]}) == [Kernel("k", 40, 0, 4096, 256)]
    with pytest.raises(Malformed):
        of_record({"kernels": [{"name": "k"}]})


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "expected"),
    [
        (256, 32, 0, Occupancy(8, 1.0, "warps")),
        (256, 255, 0, Occupancy(1, 0.125, "registers")),
        (128, 32, 100 << 10, Occupancy(2, 0.125, "shared memory")),
        (32, 16, 0, Occupancy(32, 0.5, "blocks")),
        (1024, 64, 0, Occupancy(1, 0.5, "registers")),
    ],
)
def test_occupancy_on_hopper(threads: int, registers: int, shared_bytes: int, expected: Occupancy) -> None:
    assert occupancy(90, threads, registers, shared_bytes) == expected


def test_occupancy_of_an_unknown_device_is_unknown() -> None:
    assert occupancy(20, 256, 32, 0) is None
