"""Which processes serve which queues: the Celery command line of each worker, and the API's."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cli.errors import CliError
from cli.programs import Program, own_environment
from db.settings import Settings
from db.vocabulary import target_queue
from worker.profile.gpus import Gpu

QUEUES = ("control", "llm", "cpu", "gpu")
_CELERY = (
    sys.executable,
    "-m",
    "celery",
    "--quiet",
    "-A",
    "worker.app",
    "worker",
    "--without-gossip",
    "--without-mingle",
)


_THREADS = "KERNELWRIGHT_JUDGE_THREADS"


class UnknownQueue(CliError):
    """{queue} is no queue: choose among control, llm, cpu and gpu, separated by commas."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every process of ours is given: its environment on top of ours, and where its output goes."""

    env: Mapping[str, str]
    scratch: Path
    """Working folder; anything may lie there."""
    logs: Path | None
    """A folder for one log file each; None: they write where we write."""
    counts: Path | None = None
    """A folder where the workers count for the exporter of their metrics; None: they do not."""

    def log(self, name: str) -> Path | None:
        """The log file of the process `name`."""
        return self.logs / f"{name}.log" if self.logs is not None else None


def parse_queues(text: str) -> tuple[str, ...]:
    """`control, llm` as a tuple, in the order in which they start. Raises UnknownQueue."""
    chosen = [word.strip() for word in text.split(",") if word.strip()]
    for word in chosen:
        if word not in QUEUES:
            raise UnknownQueue(queue=repr(word))
    if not chosen:
        raise UnknownQueue(queue="the empty list")
    return tuple(queue for queue in QUEUES if queue in chosen)


def worker_programs(
    queues: Sequence[str],
    gpus: Sequence[Gpu],
    around: Surroundings,
    *,
    llm_threads: int = 8,
    evaluators_per_gpu: int = 1,
    grace_s: float = 10.0,
) -> list[Program]:
    """One program for each queue, and for `gpu` as many as are to share a device for each device, pinned to it."""
    programs = []
    if "control" in queues:
        # The reaper lives here. A second such process would only look for lost work twice as often.
        threads = ("--pool", "threads", "--concurrency", "2")
        programs.append(_worker("control", "control", threads, around, grace_s=grace_s))
    if "llm" in queues:
        threads = ("--pool", "threads", "--concurrency", str(llm_threads))
        programs.append(_worker("llm", "llm", threads, around, secrets=True, grace_s=grace_s))
    alone = ("--pool", "prefork", "--concurrency", "1")
    if "cpu" in queues:
        # Without this the evaluator of the CPU would open a context on the first GPU.
        programs.append(_worker("cpu", "cpu", alone, around, {"CUDA_VISIBLE_DEVICES": ""}, grace_s=grace_s))
    if "gpu" in queues:
        shared = _share_of_cores(len(gpus) * evaluators_per_gpu)
        for gpu in gpus:
            pinned = {"CUDA_VISIBLE_DEVICES": gpu.uuid, **shared}
            names = [f"gpu{gpu.index}", *(f"gpu{gpu.index}-{number}" for number in range(2, evaluators_per_gpu + 1))]
            programs += [
                _worker(name, target_queue(gpu.hardware), alone, around, pinned, grace_s=grace_s) for name in names
            ]
    return programs


def _share_of_cores(judges: int) -> dict[str, str]:
    """What tells several judges of GPUs how many threads each has, unless somebody has said so.

    With a thread for each of 64 cores four judges had a load of 12 to 20 and one of 1.4, and judged 3.4 times as many
    candidates as one; with shares, and four threads for a GPU's runners, a load of 4 to 5, and 3.8 times as many
    (H100s).
    """
    if judges < 2 or _THREADS in os.environ:
        return {}
    return {_THREADS: str(max(1, len(os.sched_getaffinity(0)) // judges))}


def _worker(
    name: str,
    queue: str,
    options: Sequence[str],
    around: Surroundings,
    env: Mapping[str, str] | None = None,
    *,
    secrets: bool = False,
    grace_s: float,
) -> Program:
    counts = {"PROMETHEUS_MULTIPROC_DIR": str(around.counts)} if around.counts is not None else {}
    node = f"{name}.{os.getpid()}@{socket.gethostname()}"
    return Program(
        name=f"worker-{name}",
        argv=[*_CELERY, "--queues", queue, "--hostname", node, "--loglevel", "INFO", *options],
        env=own_environment({**around.env, **counts, **(env or {})}, secrets=secrets),
        cwd=around.scratch,
        log=around.log(f"worker-{name}"),
        grace_s=grace_s,
    )


def counts_folder(settings: Settings, run: Path) -> Path | None:
    """An empty folder in `run` where workers count for their metrics; None where no port is set to serve them."""
    if settings.metrics_port is None:
        return None
    return _emptied(run / "metrics")


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def exporter_program(settings: Settings, around: Surroundings) -> list[Program]:
    """What serves the metrics that this node's workers count; nothing where they do not count."""
    if settings.metrics_port is None or around.counts is None:
        return []
    host, port = settings.metrics_host, settings.metrics_port
    env = {
        **around.env,
        **_scrape_token(settings),
        "KERNELWRIGHT_METRICS_HOST": host,
        "KERNELWRIGHT_METRICS_PORT": str(port),
        "PROMETHEUS_MULTIPROC_DIR": str(around.counts),
    }
    program = Program(
        name="exporter",
        argv=[sys.executable, "-m", "worker.exporter"],
        env=own_environment(env, secrets=False),
        cwd=around.scratch,
        log=around.log("exporter"),
        ready=lambda: _healthy(host, port),
    )
    return [program]


def _scrape_token(settings: Settings) -> dict[str, str]:
    """It is no key of a model provider, so it goes where those do not."""
    token = settings.metrics_token
    return {"KERNELWRIGHT_METRICS_TOKEN": token.get_secret_value()} if token is not None else {}


def api_programs(listeners: Sequence[socket.socket], around: Surroundings) -> list[Program]:
    """An API server on each. Of several, each counts into one folder, so that a scrape of any of them tells of all."""
    if len(listeners) == 1:
        return [api_program(listeners[0], around)]
    counts = {"PROMETHEUS_MULTIPROC_DIR": str(_emptied(around.scratch / "api-metrics"))}
    shared = replace(around, env={**around.env, **counts})
    return [api_program(listener, shared, f"api-{number}") for number, listener in enumerate(listeners, 1)]


def api_program(listener: socket.socket, around: Surroundings, name: str = "api") -> Program:
    """The API server on `listener`; ready when it answers /healthz."""
    host, port = listener.getsockname()[:2]
    return Program(
        name=name,
        argv=[sys.executable, "-m", "cli.serve", str(listener.fileno())],
        env=own_environment({**around.env, **_scrape_token(Settings())}, secrets=False),
        cwd=around.scratch,
        log=around.log(name),
        ready=lambda: _healthy(host, port),
        pass_fds=(listener.fileno(),),
    )


def _healthy(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def migration_program(around: Surroundings, *, kernels: bool) -> Program:
    """Bring the schema up to date, and with `kernels` those in that come with Kernelwright; ends by itself."""
    return Program(
        name="migrate",
        argv=[sys.executable, "-m", "cli", "migrate", *(["--kernels"] if kernels else [])],
        env=own_environment(around.env, secrets=False),
        cwd=around.scratch,
        log=around.log("migrate"),
    )
