"""Error fingerprints: what is the same error stays the same, what differs in what it is about does not."""

from __future__ import annotations

import pytest

from search.knowledge.fingerprints import fingerprint, normalised

LOG = """In file included from /folder/build-a1/candidate.cpp:3:
/folder/build-a1/candidate.cpp:41:9: error: '{name}' was not declared in this scope
   41 |   auto v = {name}(x);
/folder/build-a1/candidate.cpp:44:1: error: expected ';' before '}}' token
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/a/b/k.cpp:12:5: error: 'foo' was not declared", "error: '<name>' was not declared"),
        ('k.cu(77): error: identifier "tmp_3" is undefined', "error: identifier '<name>' is undefined"),
        ("error: '_mm512_foo_ps' was not declared", "error: '_mm512_foo_ps' was not declared"),
        ("RuntimeError: size 1024 at 0x7ffe12 in /usr/x/y.py", "RuntimeError: size # at <address> in <path>"),
        ("\x1b[31mValueError: block 64x32 of -1.5e-3\x1b[0m", "ValueError: block #x# of #"),
    ],
)
def test_accidents_are_taken_out(line: str, message: str) -> None:
    assert normalised(line) == message


def test_one_error_in_two_files_is_one_error() -> None:
    one = fingerprint("build_error", "the build failed", LOG.format(name="helper"))
    other = fingerprint("build_error", "the build failed", LOG.format(name="other").replace("a1", "b2"))
    assert one is not None and one == other
    assert one.message == "error: '<name>' was not declared in this scope"


def test_an_interface_that_is_missing_is_another_error() -> None:
    one = fingerprint("build_error", None, LOG.format(name="_mm512_exp_ps"))
    other = fingerprint("build_error", None, LOG.format(name="_mm256_exp_ps"))
    assert one is not None and other is not None and one.digest != other.digest
    assert "_mm512_exp_ps" in one.message


def test_the_verdict_is_part_of_it_and_the_reason_serves_where_the_log_is_silent() -> None:
    build = fingerprint("build_error", "nvcc ran out of its time limit", None)
    launch = fingerprint("launch_error", "nvcc ran out of its time limit", "nothing here")
    assert build is not None and launch is not None
    assert build.message == launch.message and build.digest != launch.digest


@pytest.mark.parametrize("reason", [None, "", "error: 17", "exit 3"])
def test_what_would_fit_any_failure_has_none(reason: str | None) -> None:
    assert fingerprint("build_error", reason, None) is None
