"""`kernelwright up`: the whole service on this machine, with its own Postgres and Valkey unless it is given others.

    kernelwright up [--host 127.0.0.1] [--port 8080] [--home ~/.kernelwright] [--queues control,llm,cpu,gpu]

KERNELWRIGHT_DATABASE_URL and KERNELWRIGHT_REDIS_URL replace the embedded servers. Ctrl-C or SIGTERM stops everything,
and a kill -9 of the process that was started leaves none of the others behind: see `cli.guard`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli import logs
from cli.deployment import (
    Surroundings,
    api_programs,
    counts_folder,
    exporter_program,
    migration_program,
    parse_queues,
    worker_programs,
)
from cli.embedded import EmbeddedPostgres, EmbeddedValkey
from cli.embedded.home import log_folder, open_home, run_folder
from cli.guard import guarded
from cli.instance import Instance, InstanceLock
from cli.preflight import check_auth, check_compiler, check_disk, check_packages, check_traces, listeners, url_of
from cli.programs import Program, Service, Step
from cli.supervisor import StopRequested, Supervisor
from db.settings import Settings
from worker.profile.gpus import Gpu
from worker.profile.gpus import gpus as find_gpus

_PACKAGES = ("sqlalchemy", "psycopg", "alembic", "celery", "redis", "fastapi", "uvicorn")
DATABASE_VARIABLE = "KERNELWRIGHT_DATABASE_URL"
REDIS_VARIABLE = "KERNELWRIGHT_REDIS_URL"

HomeOption = Annotated[
    Path, typer.Option("--home", envvar="KERNELWRIGHT_HOME", help="Folder for data, sockets, caches and logs.")
]
DEFAULT_HOME = Path("~/.kernelwright")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Everything that is to run."""

    home: Path
    listeners: Sequence[socket.socket]
    queues: tuple[str, ...]
    gpus: Sequence[Gpu]
    postgres: EmbeddedPostgres | None
    valkey: EmbeddedValkey | None


def up(
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond 127.0.0.1 only with KERNELWRIGHT_AUTH=required.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any that is free.", min=0, max=65535)] = 8080,
    home: HomeOption = DEFAULT_HOME,
    queues: Annotated[str, typer.Option(help="Which queues to serve here.")] = "control,llm,cpu,gpu",
) -> None:
    """Start everything on this machine: Postgres, Valkey, the API and the workers. Ctrl-C stops all of it."""
    chosen = parse_queues(queues)
    check_auth(host)
    home = open_home(home)
    lock = InstanceLock(home)
    lock.take()
    check_packages(_PACKAGES)
    check_traces()
    check_compiler(chosen)
    check_disk(home)
    plan = _Plan(
        home=home,
        listeners=listeners(host, port, Settings().api_processes),
        queues=chosen,
        gpus=find_gpus() if "gpu" in chosen else (),
        postgres=None if os.environ.get(DATABASE_VARIABLE) else EmbeddedPostgres(home),
        valkey=None if os.environ.get(REDIS_VARIABLE) else EmbeddedValkey(home),
    )
    pid = os.getpid()
    status = guarded(lambda: _supervise(plan, lock, pid))
    raise typer.Exit(status)


def _supervise(plan: _Plan, lock: InstanceLock, pid: int) -> int:
    logs.configure(log_folder(plan.home) / "supervisor.log")
    supervisor = Supervisor(_groups(plan))
    with supervisor.signals():
        typer.echo(f"Starting Kernelwright in {plan.home} ...")
        try:
            supervisor.start()
            lock.announce(Instance(pid=pid, home=str(plan.home), url=url_of(plan.listeners[0])))
            typer.echo(_summary(plan, supervisor.groups))
            supervisor.watch()
        except StopRequested:
            return 130
        typer.echo("Stopping ...")
        supervisor.stop()
    return 0


def _groups(plan: _Plan) -> list[list[Service]]:
    env = {"KERNELWRIGHT_HOME": str(plan.home)}
    if plan.postgres is not None:
        env[DATABASE_VARIABLE] = plan.postgres.url
    if plan.valkey is not None:
        env[REDIS_VARIABLE] = plan.valkey.url
    settings, run = Settings(), run_folder(plan.home)
    counts = counts_folder(settings, run)
    around = Surroundings(env=env, scratch=run, logs=log_folder(plan.home), counts=counts)
    servers: list[Service] = [server for server in (plan.postgres, plan.valkey) if server is not None]
    # Workers need a second to import what they need: they start while the API does, which alone is waited for.
    workers = [*exporter_program(settings, around), *_workers(plan, settings, around)]
    ours: list[Service] = [*workers, *api_programs(plan.listeners, around)]
    return [servers, [Step(migration_program(around, kernels=settings.bundled_kernels))], ours]


def _workers(plan: _Plan, settings: Settings, around: Surroundings) -> list[Program]:
    return worker_programs(plan.queues, plan.gpus, around, evaluators_per_gpu=settings.evaluators_per_gpu)


def _summary(plan: _Plan, groups: Sequence[Sequence[Service]]) -> str:
    lines = [f"Kernelwright runs at {url_of(plan.listeners[0])} (docs at /docs). Ctrl-C stops everything."]
    if plan.postgres is None:
        lines.append(f"  postgres        yours, {DATABASE_VARIABLE}")
    if plan.valkey is None:
        lines.append(f"  redis           yours, {REDIS_VARIABLE}")
    lines += [f"  {service.name:<15} pid {service.pid}" for group in groups for service in group if service.pid]
    if "gpu" in plan.queues:
        lines.append(f"  GPUs            {', '.join(gpu.name for gpu in plan.gpus) or 'none found'}")
    lines.append(f"  logs            {log_folder(plan.home)}")
    return "\n".join(lines)
