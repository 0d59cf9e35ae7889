"""The report on g++'s loops: of a really compiled source, and of listings as objdump prints them."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from worker.languages import BuildError, language
from worker.languages.cpp_report import analysis
from worker.profile.loops import Report
from worker.runner import kernelwright

SOURCE = """\
#include <cstdint>
extern "C" void scaled(const float* __restrict__ x, float* __restrict__ y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * 2.0f + 1.0f;
}
extern "C" void until(const float* x, float* y, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n && x[i] < 9.0f; i++)
        sum = sum * 0.5f + x[i];
    *y = sum;
}
"""
VECTOR_LINE, SCALAR_LINE = 4, 9

needs_tools = pytest.mark.skipif(
    shutil.which("g++") is None or shutil.which("objdump") is None or platform.machine() != "x86_64",
    reason="needs g++, objdump and an x86-64 processor",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    language("cpp_report").build(SOURCE, ("-mprefer-vector-width=256",), "native", folder)
    return folder


@needs_tools
def test_loops_know_their_lines_and_their_arithmetic(built: Path) -> None:
    report = Report.from_json(json.loads((built / "report.json").read_text()))
    widths = {line: loop.vector_bytes for loop in report.loops for line in report.lines_of(loop)}
    assert widths[SCALAR_LINE] == 4
    assert VECTOR_LINE in widths
    assert any(loop.vector_bytes == 32 for loop in report.loops if VECTOR_LINE in report.lines_of(loop))


@needs_tools
def test_the_compiler_says_what_it_did_and_why_not(built: Path) -> None:
    remarks = json.loads((built / "report.json").read_text())["remarks"]
    said = {(line, kind): text for line, kind, text in reversed(remarks)}
    assert "vectorized using 32 byte vectors" in said[3, "optimized"]
    assert "control flow" in said[8, "missed"]
    assert not any("clobbers" in text for _line, _kind, text in remarks)


@needs_tools
def test_the_report_is_of_the_very_code_that_is_judged(built: Path, tmp_path: Path) -> None:
    judged, _log = kernelwright.compile_cpp(SOURCE, ("-mprefer-vector-width=256",), tmp_path)
    texts = []
    for library in (judged, built / "kernel.so"):
        text = tmp_path / "text"
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", str(library), str(text)], check=True)
        texts.append(text.read_bytes())
    assert texts[0] == texts[1] != b""


def test_torchs_headers_are_not_read_twice(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="too long"):
        language("cpp_report").build("  #  include <ATen/ATen.h>\n", (), "native", tmp_path)


CODE = """\

kernel.so:     file format elf64-x86-64


Disassembly of section .text:

0000000000001100 <f>:
    1100:	xor    %eax,%eax
    1102:	vxorps %xmm0,%xmm0,%xmm0
    1106:	nopw   0x0(%rax,%rax,1)
    1110:	vmovups (%rsi,%rax,1),%ymm1
    1118:	vfmadd231ps (%rdx,%rax,1),%ymm1,%ymm0
    1120:	vdivps %ymm1,%ymm0,%ymm0
    1128:	add    $0x20,%rax
    112c:	cmp    %rax,%rcx
    112f:	jne    1110 <f+0x10>
    1131:	vaddss %xmm0,%xmm1,%xmm0
    1135:	call   1040 <expf@plt>
    113a:	jg     1106 <f+0x6>
    113c:	jmp    1200 <g>
    113e:	ret

0000000000001200 <g>:
    1200:	jmp    1100 <f>
"""
HEADERS = " 11 .text         00000140  0000000000001100  0000000000000100  00000100  2**4\n"
LINES = """\
kernel.cpp                                     7              0x1100               x
kernel.cpp                                     9              0x1110               x
kernel.cpp                                    10              0x1118       1       x
kernel.cpp                                     -              0x113f
"""


def test_a_loop_is_a_jump_back_within_its_function() -> None:
    report = analysis("", HEADERS, LINES, CODE)
    inner, outer = sorted(report["loops"], key=lambda loop: loop["end"] - loop["start"])
    assert (inner["start"], inner["end"]) == (0x1110, 0x112F)
    assert inner["mix"] == {"all": 6, "packed32": 2, "divide": 1}
    assert (outer["start"], outer["end"]) == (0x1106, 0x113A)
    assert outer["mix"] == {"all": 10, "packed32": 2, "divide": 1, "scalar": 1, "call": 1}
    assert report["shift"] == 0x1000
    assert report["lines"] == [(0x1100, 7), (0x1110, 9), (0x1118, 10)]


@pytest.mark.parametrize(
    ("log", "remarks"),
    [
        ("kernel.cpp:8:5: missed: not vectorized: control flow in loop.", [(8, "missed", "control flow in loop.")]),
        ("kernel.cpp:8:5: missed: statement clobbers memory: free (_1);", []),
        ("/usr/include/c++/12/cmath:8:5: missed: not vectorized: x", []),
        ("kernel.cpp:8:5: warning: unused variable", []),
    ],
)
def test_remarks_are_those_on_loops_of_the_candidate(log: str, remarks: list[Any]) -> None:
    assert analysis(log, "", "", "")["remarks"] == remarks
