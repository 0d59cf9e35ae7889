"""What is read from a sanitizer's report."""

from __future__ import annotations

from worker.judge.certificate.system import sanitizers

REPORT = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at relu+0x1b0
=========     by thread (0,0,0) in block (0,0,0)
=========         Host Frame: cuLaunchKernel [0x2cd8ff] in libcuda.so.1
=========
========= ERROR SUMMARY: 1 error
"""


def test_a_finding_is_named_by_its_headline_and_not_by_a_frame() -> None:
    answer = {"report": REPORT.split("\n", 1)[1], "summary": []}
    where = "at relu+0x1b0; by thread (0,0,0) in block (0,0,0)"
    said = f"========= Invalid __global__ read of size 4 bytes; {where}"
    assert sanitizers._finding(answer, sanitizers._HEADLINE) == said


def test_a_race_is_named_by_both_accesses() -> None:
    race = "========= Error: Race reported between Write access at scan+0x1b0 in a.py:3"
    report = f"{race}\n=========     and Read access at scan+0x2c0 in a.py:7 [96 hazards]\n========= \n"
    said = sanitizers._finding({"report": report, "summary": []}, sanitizers._HEADLINE)
    assert said == f"{race}; and Read access at scan+0x2c0 in a.py:7 [96 hazards]"


def test_a_report_that_begins_in_the_middle_is_quoted_as_it_is() -> None:
    frames = "=========         Host Frame: at::native::add [0x1] in libtorch_cuda.so\n========= ERROR SUMMARY: 1 error"
    assert sanitizers._finding({"report": frames, "summary": []}, sanitizers._HEADLINE) == frames


def test_errors_are_counted_in_the_tools_own_summary() -> None:
    assert sanitizers._errors(["========= ERROR SUMMARY: 3 errors"]) == 3
    hazards = "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)"
    assert sanitizers._errors([hazards]) == 1
    assert sanitizers._errors(["nothing"]) is None


def test_a_process_that_failed_is_told_by_its_exception_and_not_by_the_advice_after_it() -> None:
    advice = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n" * 20
    printed = f"Traceback (most recent call last):\n  File\ntorch.AcceleratorError: CUDA error: out of memory\n{advice}"
    ending = (
        "Exception ignored in: <function Pool.__del__>\nTraceback\nAttributeError: 'NoneType' has no attribute 'close'"
    )
    for report in (printed, printed + ending):
        assert sanitizers._cause(report).startswith("torch.AcceleratorError: CUDA error: out of memory")
    assert sanitizers._cause("no exception" * 100) == ("no exception" * 100)[-300:]
