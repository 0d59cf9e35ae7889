"""Tests of `db.logging`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from structlog.contextvars import bound_contextvars

from db.logging import LogFormat, configure_logging


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def test_a_line_is_an_event_its_fields_and_its_context(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "json")
    with bound_contextvars(work_id="work_1"):
        structlog.get_logger("worker.evaluating").info("candidate.evaluated", verdict="ok", speedup=1.83)
    line = json.loads(capsys.readouterr().err)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "candidate.evaluated",
        "verdict": "ok",
        "speedup": 1.83,
        "work_id": "work_1",
        "level": "info",
        "logger": "worker.evaluating",
    }


def test_lines_of_libraries_look_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "json")
    logging.getLogger("celery.worker").warning("lost %s", "it")
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"], line["logger"]) == ("lost it", "warning", "celery.worker")


def test_a_traceback_is_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "json")
    try:
        raise RuntimeError("it broke")
    except RuntimeError:
        structlog.get_logger("x").exception("work.failed")
    assert "RuntimeError: it broke" in json.loads(capsys.readouterr().err)["exception"]


@pytest.mark.parametrize("format", ["json", "console"])
def test_a_traceback_does_not_show_what_the_variables_held(
    capsys: pytest.CaptureFixture[str], format: LogFormat
) -> None:
    def fail(token: str) -> None:
        raise RuntimeError(f"it broke at {len(token)}")

    configure_logging("DEBUG", format)
    try:
        fail("kw_live_" + "x" * 43)
    except RuntimeError:
        structlog.get_logger("x").exception("work.failed")
    said = capsys.readouterr().err
    assert "it broke at 51" in said and "in fail" in said
    assert "x" * 8 not in said


def test_the_level_holds_and_auto_is_json_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning", "auto")
    structlog.get_logger("x").info("unheard")
    structlog.get_logger("x").warning("heard")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["heard"]


def test_a_person_reads_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO", "console")
    structlog.get_logger("x").info("job.advanced", added=2)
    line = capsys.readouterr().err
    assert "job.advanced" in line
    assert not line.startswith("{")


@pytest.mark.parametrize("format", ["console", "json"])
def test_a_traceback_shows_no_locals(capsys: pytest.CaptureFixture[str], format: str) -> None:
    configure_logging("INFO", format)
    key = "-".join(["a", "canary"])  # so that no line of source has it
    try:
        raise RuntimeError("it broke" if key else "")
    except RuntimeError:
        structlog.get_logger("x").exception("work.failed")
    logged = capsys.readouterr().err
    assert "it broke" in logged and "a-canary" not in logged
