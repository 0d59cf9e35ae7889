"""What a fingerprint sees of a build: machine code and the functions that it calls, and nothing that is only a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.judge.artefacts import _python, loaded_sections
from worker.runner.kernelwright import compile_cpp

CODE = """
#include <cmath>
static float helper(float value) { return std::exp(value) * 2; }
extern "C" void kernel(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) y[i] = helper(x[i]);  // each
}
"""
SAME = CODE.replace("helper", "renamed").replace("// each", "").replace("value", "v")


def built(code: str, folder: Path) -> bytes:
    folder.mkdir()
    return compile_cpp(code, (), folder)[0].read_bytes()


def test_names_and_comments_are_not_seen_and_code_and_calls_are(tmp_path: Path) -> None:
    first, same, calls_other, adds = (
        b"".join(loaded_sections(built(code, tmp_path / str(number))))
        for number, code in enumerate([CODE, SAME, CODE.replace("std::exp", "std::sin"), CODE.replace("* 2", "* 3")])
    )
    assert first == same
    assert first != calls_other
    assert first != adds


@pytest.mark.parametrize("cut", [0, 5, 63, 64, 200])
def test_a_broken_file_is_taken_as_it_is(cut: int, tmp_path: Path) -> None:
    broken = (b"\x7fELF\x02\x01" + b"\xff" * 300)[:cut]
    assert b"".join(loaded_sections(broken)) == broken


def test_the_python_counts_and_the_strings_that_were_built_do_not() -> None:
    source = f"import torch\nCODE = r'''{CODE}'''\nlib = load(CODE)\n"
    other = source.replace("// each", "// every single one")
    assert _python(source, [CODE]) == _python('"""Doc."""\n' + other, [CODE.replace("// each", "// every single one")])
    assert _python(source, [CODE]) != _python(other, [CODE])
    assert _python(source, [CODE]) != _python(source + "lib = load(CODE)\n", [CODE])
