"""Logging, set up once per process: an event name and fields, as JSON for machines and in colour on a terminal.

    log = structlog.get_logger(__name__)
    log.info("candidate.evaluated", verdict="ok", speedup=1.83)

Lines of libraries (Celery, uvicorn, SQLAlchemy) go through the same renderer. Context variables bound with
`structlog.contextvars.bound_contextvars(work_id=…)` are on every line inside, and where traces are made (`db.tracing`)
the ids of the trace and of the span.
"""

from __future__ import annotations

import logging
import sys
from typing import Final, Literal

import structlog
from structlog.typing import Processor

from db.tracing import add_ids

LogFormat = Literal["auto", "json", "console"]

# Chatty at INFO without saying what a job did, or saying again what our own lines say.
_QUIET: Final = (
    "kombu",
    "amqp",
    "celery.app.trace",
    "celery.worker.strategy",
    "httpx",
    "httpcore",
    "openai",  # at DEBUG it says every prompt
    "LiteLLM",
    "alembic.runtime.plugins",
    "uvicorn.access",
)


def configure_logging(level: str = "INFO", format: LogFormat = "auto") -> None:
    """Send everything to stderr. Calling it again replaces the earlier set-up."""
    structlog.configure(
        processors=[*_shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(_renderer(format)))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        add_ids,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _renderer(format: LogFormat) -> list[Processor]:
    if format == "console" or (format == "auto" and sys.stderr.isatty()):
        # Its own choice shows the local variables of every frame: tokens, passwords and whole prompts are among them.
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _formatter(renderer: list[Processor]) -> structlog.stdlib.ProcessorFormatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared(), structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )
