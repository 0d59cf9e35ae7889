"""`kernelwright up` as its user meets it: real servers, real Celery workers, real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.embedded import EmbeddedPostgres, EmbeddedValkey
from tests.support.people import AS_ROOT, ROOT, USERS, first_line, home_of, processes_in, python, wait_for_none

SOFTMAX = {"problem": "softmax", "target": {"hardware": "nvidia-h100", "language": "cuda"}}
"""A job that nobody here serves: it stays where it is."""


@pytest.fixture
def home() -> Iterator[Path]:
    with home_of("self") as folder:
        yield folder


def start_up(
    user: str, home: Path, *options: str, env: Mapping[str, str] | None = None, queues: str = "control,cpu"
) -> subprocess.Popen[str]:
    return python(user, ["-m", "cli", "up", "--home", str(home), "--queues", queues, *options], env)


@contextmanager
def running(
    home: Path, user: str = "self", *, env: Mapping[str, str] | None = None, queues: str = "control,cpu"
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A started `up` and its URL; ended by SIGTERM when the test has not ended it."""
    process = start_up(user, home, "--port", "0", env=env, queues=queues)
    try:
        url = re.findall(r"http://[\d.:]+\d", first_line(process, "Kernelwright runs at"))[0]
        yield process, url
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def call(url: str, body: object = None) -> Any:
    headers = {"Content-Type": "application/json"} if body is not None else {}
    data = json.dumps(body).encode() if body is not None else None
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=20) as answer:
        return json.loads(answer.read())


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def ready(url: str) -> bool:
    try:
        return bool(call(f"{url}/readyz")["ready"])
    except OSError:
        return False


def refused(process: subprocess.Popen[str], status: int = 1) -> str:
    """The single line with which `up` declined."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == status, output
    lines = [line for line in output.splitlines() if not line.startswith("Starting Kernelwright")]
    assert len(lines) == 1, output
    return lines[0]


@pytest.mark.parametrize(
    "user", [pytest.param(user, marks=() if user == USERS[0] else pytest.mark.exhaustive) for user in USERS]
)
def test_a_life_from_start_to_ctrl_c(user: str) -> None:
    with home_of(user) as home, running(home, user) as (process, url):
        assert call(f"{url}/readyz")["ready"]

        def served() -> set[str]:
            return {queue for worker in call(f"{url}/v1/workers")["data"] for queue in worker["queues"]}

        until(lambda: served() == {"control", "cpu"}, "the workers joined")
        second = refused(start_up(user, home, "--port", "0"))
        assert f"process {process.pid}, {url}" in second
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        assert wait_for_none(home, wait_s=0) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("victim", ["guard", "supervisor"])
def test_after_a_kill_nothing_runs_and_the_next_start_finds_the_job(home: Path, victim: str) -> None:
    with running(home, queues="control") as (process, url):
        job = call(f"{url}/v1/jobs", SOFTMAX)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(process.pid if victim == "guard" else int(children[0]), signal.SIGKILL)
        process.wait(timeout=60)
        assert wait_for_none(home) == []
    with running(home, queues="control") as (_, url):
        assert call(f"{url}/v1/jobs/{job['id']}")["id"] == job["id"]


def test_each_killed_part_comes_back_and_the_job_is_still_there(home: Path) -> None:
    with running(home) as (_, url):
        job = call(f"{url}/v1/jobs", SOFTMAX)
        marks = [
            "bin/postgres -D",
            "valkey-server",
            "cli.serve",
            "--queues control --hostname",
            "--queues cpu --hostname",
        ]
        before = {mark: _oldest(home, mark) for mark in marks}
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        for mark, pid in before.items():
            until(lambda mark=mark, pid=pid: _oldest(home, mark) not in (0, pid), f"{mark} came back")  # type: ignore[misc]
        until(lambda: ready(url), "the API is ready again")
        assert call(f"{url}/v1/jobs/{job['id']}")["id"] == job["id"]


def _oldest(home: Path, mark: str) -> int:
    return min((int(line.split()[0]) for line in processes_in(home) if mark in line), default=0)


def test_a_taken_port_is_one_sentence(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Port {port} on 127.0.0.1 is taken" in refused(start_up("self", home, "--port", str(port)))


def test_a_missing_compiler_is_one_sentence(home: Path) -> None:
    assert "apt install g++" in refused(start_up("self", home, "--port", "0", env={"PATH": str(home)}))


@pytest.mark.skipif(not AS_ROOT, reason="needs root to mount a small disk")
def test_a_full_disk_is_one_sentence(home: Path) -> None:
    mount = f'mount -t tmpfs -o size=60m,mode=700 none "{home}" && exec "$@"'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh", sys.executable]
    up = subprocess.run(
        [*argv, "-m", "cli", "up", "--home", str(home), "--port", "0"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert up.returncode == 1
    assert re.fullmatch(r"kernelwright: Only \d+ MB are free on the disk that holds .* --home\.\n", up.stderr)


def test_servers_of_ones_own_replace_the_embedded_ones(home: Path) -> None:
    with EmbeddedPostgres(home / "mine") as postgres, EmbeddedValkey(home / "mine") as valkey:
        env = {"KERNELWRIGHT_DATABASE_URL": postgres.url, "KERNELWRIGHT_REDIS_URL": valkey.url}
        with running(home / "up", env=env, queues="control") as (_, url):
            assert ready(url)
            assert not (home / "up" / "postgres").exists()
            assert not (home / "up" / "valkey").exists()


@pytest.mark.exhaustive
def test_workers_alone_serve_a_deployment_and_stop_when_asked(home: Path) -> None:
    with EmbeddedPostgres(home / "servers") as postgres, EmbeddedValkey(home / "servers") as valkey:
        env = {"KERNELWRIGHT_DATABASE_URL": postgres.url, "KERNELWRIGHT_REDIS_URL": valkey.url}
        migrate = python("self", ["-m", "cli", "migrate"], env)
        output, _ = migrate.communicate(timeout=60)
        assert migrate.returncode == 0, output
        argv = ["-m", "cli", "worker", "--queues", "control,cpu", "--home", str(home / "worker")]
        workers = python("self", argv, env)
        try:
            first_line(workers, " ready.")
            first_line(workers, " ready.")
        finally:
            workers.terminate()
            output, _ = workers.communicate(timeout=60)
        assert workers.returncode == 0, output
        assert wait_for_none(home / "worker", wait_s=0) == []


def test_workers_without_a_deployment_say_what_to_set(home: Path) -> None:
    worker = python("self", ["-m", "cli", "worker", "--queues", "cpu", "--home", str(home)])
    assert "KERNELWRIGHT_DATABASE_URL is not set" in refused(worker, status=2)


def test_a_queue_that_does_not_exist_is_named(home: Path) -> None:
    worker = python("self", ["-m", "cli", "worker", "--queues", "cpu,tpu", "--home", str(home)])
    assert "'tpu' is no queue" in refused(worker, status=2)
