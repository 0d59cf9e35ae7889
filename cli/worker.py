"""`kernelwright worker`: Celery workers of a deployment whose Postgres and Redis are elsewhere.

    KERNELWRIGHT_DATABASE_URL=… KERNELWRIGHT_REDIS_URL=… kernelwright worker --queues llm,gpu

One process for each queue and one for each GPU, pinned to it, watched and restarted; they write to stdout. A deployment
needs one that serves `control`: it also runs the reaper, which finds lost work.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cli.deployment import Surroundings, counts_folder, exporter_program, parse_queues, worker_programs
from cli.embedded.home import open_home, run_folder
from cli.errors import CliError
from cli.guard import guarded
from cli.preflight import check_compiler, check_packages, check_traces
from cli.programs import Service
from cli.supervisor import StopRequested, Supervisor
from cli.up import DATABASE_VARIABLE, DEFAULT_HOME, REDIS_VARIABLE, HomeOption
from db.logging import configure_logging
from db.settings import get_settings
from worker.profile.gpus import gpus as find_gpus


class NoUrl(CliError):
    """{variable} is not set: a worker needs the Postgres and the Redis of its deployment (`kernelwright up` starts its
    own, with workers)."""

    exit_code = 2


class NoGpu(CliError):
    """No NVIDIA GPU is visible here (nvidia-smi finds none that CUDA_VISIBLE_DEVICES allows), and --queues asks for
    gpu: give the container a GPU, or leave gpu out."""

    exit_code = 2


def worker(
    queues: Annotated[str, typer.Option(envvar="KERNELWRIGHT_QUEUES", help="Some of control, llm, cpu, gpu.")],
    llm_threads: Annotated[int, typer.Option(help="Calls to models at a time.", min=1)] = 8,
    grace_s: Annotated[float, typer.Option(help="Seconds for work in hand when asked to stop.", min=0)] = 25.0,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Run workers against KERNELWRIGHT_DATABASE_URL and KERNELWRIGHT_REDIS_URL. SIGTERM stops them."""
    chosen = parse_queues(queues)
    for variable in (DATABASE_VARIABLE, REDIS_VARIABLE):
        if not os.environ.get(variable):
            raise NoUrl(variable=variable)
    check_packages(("sqlalchemy", "psycopg", "celery", "redis"))
    check_traces()
    check_compiler(chosen)
    gpus = find_gpus() if "gpu" in chosen else []
    if "gpu" in chosen and not gpus:
        raise NoGpu
    home = open_home(home)
    settings, run = get_settings(), run_folder(home)
    counts = counts_folder(settings, run)
    around = Surroundings(env={"KERNELWRIGHT_HOME": str(home)}, scratch=run, logs=None, counts=counts)
    programs = exporter_program(settings, around)
    many = {"llm_threads": llm_threads, "evaluators_per_gpu": settings.evaluators_per_gpu}
    programs += worker_programs(chosen, gpus, around, **many, grace_s=grace_s)
    raise typer.Exit(guarded(lambda: _supervise(list(programs))))


def _supervise(services: list[Service]) -> int:
    settings = get_settings()
    configure_logging(settings.log_level, settings.log_format)
    supervisor = Supervisor([services])
    with supervisor.signals():
        try:
            supervisor.start()
            supervisor.watch()
        except StopRequested:
            return 130
        supervisor.stop()
    return 0
