"""`kernelwright health`: whether the workers of this machine live, for a container's health check. Exit 0 when they do.

A worker proves it in the database: its row is renewed every 10 s by the process that does the work's bookkeeping.
That a process exists would prove less, and asking it through Redis would call it dead whenever Redis is.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from sqlalchemy.exc import SQLAlchemyError

from cli.deployment import parse_queues
from cli.errors import CliError
from cli.options import JsonOption
from cli.show import put_json
from cli.worker import NoUrl
from db.models import Worker
from db.session import make_engine, make_sessions
from db.settings import Settings, SettingsError
from db.workers import list_workers

# A health check has a time limit of its own, shorter than a worker's patience with a busy database.
_STATEMENT_TIMEOUT_S = 5.0


class NotServed(CliError):
    """No living worker of {hostname} serves {queues}. Their output, or their logs below KERNELWRIGHT_HOME, say why."""


class NoDatabase(CliError):
    """The database cannot be asked who lives: {why}"""


def health(
    queues: Annotated[str, typer.Option(envvar="KERNELWRIGHT_QUEUES", help="Some of control, llm, cpu, gpu.")],
    json: JsonOption = False,
) -> None:
    """Say whether a living worker of this machine serves each of the queues; exit 1 when not."""
    missing = unserved(parse_queues(queues), _served_by(socket.gethostname()))
    if json:
        put_json({"alive": not missing, "unserved": missing})
    if missing:
        raise NotServed(hostname=socket.gethostname(), queues=", ".join(missing))
    if not json:
        typer.echo("alive")


def unserved(wanted: Sequence[str], served: Iterable[str]) -> list[str]:
    """Which of the wanted queues are not among those served; `gpu` stands for the queue of any GPU."""
    kinds = {queue.partition(".")[0] for queue in served}
    return [queue for queue in wanted if queue not in kinds]


def _served_by(hostname: str) -> set[str]:
    try:
        url = Settings().sqlalchemy_url
    except SettingsError as error:
        raise NoUrl(variable="KERNELWRIGHT_DATABASE_URL") from error
    name = f"kernelwright health {os.getpid()}"
    engine = make_engine(url, name, statement_timeout_s=_STATEMENT_TIMEOUT_S, pooled=False)
    try:
        with make_sessions(engine)() as session:
            alive: Sequence[Worker] = list_workers(session)
            return {queue for row in alive if row.hostname == hostname for queue in row.queues}
    except SQLAlchemyError as error:
        raise NoDatabase(why=str(error).splitlines()[0]) from error
    finally:
        engine.dispose()
