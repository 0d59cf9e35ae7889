"""What is typed after `kernelwright submit` becomes the body of a job, or one line that says what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.job_schemas import NAME_PATTERN
from cli.commands.submit import problem_of, target_of, usd_of
from cli.service import UnusableInput


def test_a_word_is_a_bundled_problem() -> None:
    assert problem_of("softmax") == "softmax"


@pytest.mark.parametrize("name", ["my op (v2).py", "1_Softmax.py", ".hidden.py", "-.py", "é.py", "x" * 150 + ".py"])
def test_a_file_is_sent_with_its_source_under_a_name_that_the_api_takes(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("class Model: ...\n")
    problem = problem_of(str(tmp_path / name))
    assert isinstance(problem, dict)
    assert problem["source"] == "class Model: ...\n"
    assert re.fullmatch(NAME_PATTERN, problem["name"])


def test_a_name_is_kept_where_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "12_softmax-v2.py").write_text("")
    problem = problem_of(str(tmp_path / "12_softmax-v2.py"))
    assert isinstance(problem, dict)
    assert problem["name"] == "12_softmax-v2"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "absent.py", tmp_path / "bytes.py", tmp_path):
        with pytest.raises(UnusableInput, match=path.name):
            problem_of(str(path))


@pytest.mark.parametrize(
    "said",
    [
        ("cpu:cpp", None, None),
        ("cpu", None, "cpp"),
        (None, "cpu", "cpp"),
        ("cpu:cpp", "cpu", "cpp"),
        (":cpp", "cpu", None),
    ],
)
def test_a_target_may_be_said_in_one_or_in_two_options(said: tuple[str | None, str | None, str | None]) -> None:
    assert target_of(*said) == {"hardware": "cpu", "language": "cpp"}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ((None, None, None), "no hardware"),
        (("cpu", None, None), "no language"),
        ((":cpp", None, None), "no hardware"),
        (("cpu:cpp", None, "triton"), "two values for the language: cpp and triton"),
        (("cpu:cpp", "nvidia-h100", None), "two values for the hardware"),
    ],
)
def test_half_a_target_or_two_are_refused(said: tuple[str | None, str | None, str | None], why: str) -> None:
    with pytest.raises(UnusableInput, match=why):
        target_of(*said)


def test_dollars_are_a_decimal_string() -> None:
    assert [usd_of("5"), usd_of("$2.50"), usd_of("1e2")] == ["5", "2.50", "100"]
    with pytest.raises(UnusableInput, match="no amount"):
        usd_of("five")
