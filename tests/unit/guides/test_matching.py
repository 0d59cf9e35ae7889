"""What a page prints and what a command printed: what may differ, and what may not."""

from __future__ import annotations

import pytest

from tests.support.guides.matching import difference

JOB, OTHER = "job_" + "0a" * 16, "job_" + "1b" * 16


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("queued 3", "queued 3\n"),
        (f'{{"id":"{JOB}"}}', f'{{"id":"{OTHER}"}}'),
        ("speedup 3.02x [2.10, 5.79]", "speedup 1.9x [1.75, 12.0]"),
        ("took 12 s, 883.2 us, 4 GB, 95 %", "took 1 min, 1.2 ms, 900 MB, 9 %"),
        ("2026-11-22 18:31:19 job.started", "2027-01-02 03:04:05 job.started"),
        ("at 2026-11-22T18:31:19.5Z", "at 2026-11-22T18:31:20Z"),
        ("api   pid 6788", "api pid 12"),
        ("a  b", "a\tb"),
        ("one\n...\nlast", "one\ntwo\nthree\nlast"),
        ("one\n...\nlast", "one\nlast"),
        ('"state":"queued", ... }', '"state":"queued", "version":1 }'),
        ("logs ~/.kernelwright/log", "logs /elsewhere/home/.kernelwright/log"),
        ("sha256 " + "ab" * 32, "sha256 " + "cd" * 32),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    ],
)
def test_what_may_differ(page: str, printed: str) -> None:
    assert difference(page, printed, "/elsewhere/home") is None


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("queued 3", "queued 4"),
        ("verdict ok", "verdict incorrect"),
        ("speedup 3.02x", "speed_up 3.02x"),
        ("speedup 3.02x", "speedup 3x"),
        (JOB, "cand_" + "1b" * 16),
        ("took 12 s", "took 12 GB"),
        ("one\ntwo", "one"),
        ("one", "one\ntwo"),
        ("one\n...\nlast", "one\ntwo"),
        ("a\nb", "b\na"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8081"),
        ("version 0.1.0", "version 0.2.0"),
    ],
)
def test_what_may_not_differ(page: str, printed: str) -> None:
    assert difference(page, printed, "/elsewhere/home") is not None


def test_the_line_that_was_not_printed_is_named() -> None:
    said = difference("one\ntwo 2.5\nthree", "one\ntwo 2\nthree\n", "/home")
    assert said is not None
    assert said.startswith("not printed: two 2.5\n--- printed ---\none\ntwo 2\n")
    assert str(difference("one", "one\ntwo\n", "/home")).startswith("more was printed than the page says\n")
