"""Where the command line's own log lines go: `event name=value …`, one a line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

_RENDER = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False)


def configure(file: Path | None) -> None:
    """Write to `file`, and repeat warnings on stderr; None: everything to stderr."""
    # Open for the life of the process.
    stream: TextIO = sys.stderr if file is None else file.open("a", buffering=1)
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if file is not None:
        processors.append(_repeat_warnings)
    structlog.configure(
        processors=[*processors, _RENDER],
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )


def _repeat_warnings(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if event["level"] in ("warning", "error", "critical"):
        shown = {name: value for name, value in event.items() if name not in ("timestamp", "level")}
        sys.stderr.write(f"kernelwright: {_RENDER(logger, method, shown)}\n")
    return event
