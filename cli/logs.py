"""Where the command line's own log lines go: `event name=value …`, one a line."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import structlog
from structlog.typing import EventDict, WrappedLogger

_RENDER = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False)
_RENDER_BRIEFLY = structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False)


def configure(file: Path) -> None:
    """Write to `file`, and repeat warnings on stderr."""
    # Open for the life of the process.
    stream = file.open("a", buffering=1)
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _repeat_warnings,
        _RENDER,
    ]
    structlog.configure(
        processors=processors,
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )


def to_stderr() -> None:
    """Warnings on stderr and nothing on stdout: for commands whose stdout is their answer."""
    structlog.configure(
        processors=[_RENDER_BRIEFLY],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )


def _repeat_warnings(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if event["level"] in ("warning", "error", "critical"):
        shown = {name: value for name, value in event.items() if name not in ("timestamp", "level")}
        sys.stderr.write(f"kernelwright: {_RENDER_BRIEFLY(logger, method, shown)}\n")
    return event
