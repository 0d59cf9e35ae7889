"""`python -m api`: the server as a process of its own, how it refuses to start and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from cli.client import Client
from cli.preflight import PortTaken, listen, listeners, url_of
from db.settings import Settings
from tests.integration.api.conftest import BODY

START_S = 60.0


def environment(settings: Settings | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    if settings is None:
        return kept
    assert settings.database_url and settings.redis_url
    return kept | {
        "KERNELWRIGHT_DATABASE_URL": settings.database_url.get_secret_value(),
        "KERNELWRIGHT_REDIS_URL": settings.redis_url.get_secret_value(),
    }


@contextmanager
def process(settings: Settings) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "api", "--port", str(port)]
    started = subprocess.Popen(command, env=environment(settings), stderr=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        with Client(url) as client:
            while not client.ready():
                assert started.poll() is None and time.monotonic() < deadline, "it did not start"
                time.sleep(0.05)
        yield started, url
    finally:
        started.kill()
        started.communicate()


def test_sigterm_lets_a_stream_end_as_it_should(settings: Settings) -> None:
    with process(settings) as (server, url), Client(url) as client:
        job = client.submit(BODY)
        stream = client.stream(job["id"])
        assert next(stream)["type"] == "job.created"
        server.send_signal(signal.SIGTERM)
        # Not cut off: the stream ends, and a reader comes back with Last-Event-ID when the next process is there.
        assert list(stream) == []
        _, errors = server.communicate(timeout=30)
    assert server.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in errors and "timeout graceful shutdown exceeded" not in errors


def test_without_a_database_it_says_what_to_set() -> None:
    command = [sys.executable, "-m", "api"]
    ended = subprocess.run(command, env=environment(None), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("KERNELWRIGHT_DATABASE_URL is not set")
    assert "Traceback" not in ended.stderr


def test_it_does_not_listen_for_others_without_keys(settings: Settings) -> None:
    command = [sys.executable, "-m", "api", "--host", "0.0.0.0", "--port", "0"]
    ended = subprocess.run(command, env=environment(settings), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("KERNELWRIGHT_AUTH is not `required`, and 0.0.0.0 is an address that others reach")


def test_it_needs_no_torch(settings: Settings) -> None:
    code = "import sys; sys.modules['torch'] = None; import api.app; api.app.create_app().openapi()"
    subprocess.run([sys.executable, "-c", code], env=environment(settings), check=True, timeout=60)


def test_processes_that_share_a_port_share_the_work_and_their_counts(settings: Settings, tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    shared = environment(settings) | {"PROMETHEUS_MULTIPROC_DIR": str(counts)}
    with ExitStack() as stack:
        sockets = [stack.enter_context(each) for each in listeners("127.0.0.1", 0, 2)]
        assert len({each.getsockname() for each in sockets}) == 1
        servers = []
        for each in sockets:
            command = [sys.executable, "-m", "cli.serve", str(each.fileno())]
            server = subprocess.Popen(command, env=shared, pass_fds=[each.fileno()], stderr=subprocess.PIPE)
            stack.callback(server.communicate)
            stack.callback(server.terminate)
            servers.append(server)
        url = url_of(sockets[0])
        # Each request over a connection of its own: some wait for the process that starts last.
        for _ in range(30):
            assert httpx2.get(f"{url}/v1/problems", timeout=START_S).status_code == 200
        assert all(any(counts.glob(f"counter_{server.pid}.db")) for server in servers)
        for _ in range(6):
            shown = httpx2.get(f"{url}/metrics").text
            counted = 'kernelwright_http_requests_total{method="GET",route="/v1/problems",status="200"} 30.0'
            assert counted in shown
        with pytest.raises(PortTaken):
            listen("127.0.0.1", sockets[0].getsockname()[1])
