"""`kernelwright watch`: a job to its end, in a pipe and on a terminal, through a crash of the API."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cli.client import Client, Job
from db.settings import Settings
from db.vocabulary import StopReason
from tests.integration.api.history import History
from tests.integration.cli.commands.conftest import BODY, OK, ROOT, Kernelwright, command, environment

PATIENCE_S = 60.0


def test_an_ended_job_is_told_from_its_beginning(kernelwright: Kernelwright, job: Job, history: History) -> None:
    history.evaluate(job["id"], **OK)
    history.reject(job["id"], "no_code")
    history.finish(job["id"])
    done = kernelwright("watch", job["id"])
    assert done.returncode == 0, done.stderr
    *events, outcome = done.stdout.splitlines()
    kinds = [line.split()[2] for line in events]
    assert kinds[0] == "job.created"
    assert kinds[-1] == "job.finished"
    assert {"job.started", "candidate.evaluated", "candidate.rejected", "job.improved"} <= set(kinds)
    judged = next(line for line in events if "candidate.evaluated" in line)
    assert "verdict=ok speedup=1.834 latency_us=12.34" in judged
    assert outcome.startswith(
        f"{job['id']}: succeeded (budget_candidates); best 1.83x [1.80, 1.87] over compile, 12.3 us"
    )


def test_json_is_one_object_a_line_events_first_and_the_job_last(
    kernelwright: Kernelwright, job: Job, history: History, client: Client
) -> None:
    history.evaluate(job["id"], **OK)
    history.finish(job["id"])
    done = kernelwright("watch", job["id"], "--json")
    *events, ended = map(json.loads, done.stdout.splitlines())
    assert events == client.events(job["id"])["data"]
    assert ended == client.job(job["id"])


def test_the_exit_status_says_how_it_ended(kernelwright: Kernelwright, client: Client, history: History) -> None:
    failed, cancelled = client.submit(BODY)["id"], client.submit(BODY)["id"]
    history.finish(failed, StopReason.ERROR)
    history.finish(cancelled, StopReason.CANCELLED)
    assert kernelwright("watch", failed).returncode == 1
    assert kernelwright("watch", cancelled).returncode == 3


def test_an_unknown_job_is_exit_2(kernelwright: Kernelwright) -> None:
    done = kernelwright("watch", "job_of_nobody")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_submit_and_watch_in_one(url: str, client: Client, history: History) -> None:
    words = command("submit", "softmax", "--target", "cpu:cpp", "--watch")
    with _started(words, url) as process:
        job_id = _line(process).strip()
        history.start(job_id)
        history.evaluate(job_id, **OK)
        history.finish(job_id)
        rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "candidate.evaluated" in rest
    assert f"{job_id}: succeeded" in rest


def test_lines_come_while_the_job_goes_on_and_ctrl_c_leaves_it_alone(
    url: str, job: Job, history: History, client: Client
) -> None:
    with _started(command("watch", job["id"]), url) as process:
        _line_with(process, "job.started")
        history.evaluate(job["id"], **OK)
        _line_with(process, "candidate.evaluated")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert f"kernelwright cancel {job['id']}" in errors
    assert "Traceback" not in errors
    assert client.job(job["id"])["state"] == "running"


def test_on_a_terminal_it_is_a_picture(url: str, job: Job, history: History) -> None:
    history.evaluate(job["id"], **OK)
    ours, theirs = pty.openpty()
    env = environment(KERNELWRIGHT_URL=url, TERM="xterm-256color", COLUMNS="110", LINES="40")
    process = subprocess.Popen(command("watch", job["id"]), env=env, stdout=theirs, stderr=theirs, cwd=ROOT)
    os.close(theirs)
    shown = _read_until(ours, "candidates", process)
    history.finish(job["id"])
    shown += _read_until(ours, "succeeded (budget_candidates)", process)
    assert process.wait(timeout=PATIENCE_S) == 0
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "softmax on cpu:cpp" in text
    assert "1/20 candidates" in text
    assert re.search(r"1\s+seed\s+builtin\s+ok\s+1\.83x\s+12\.3 us", text)


def test_a_crash_of_the_api_is_waited_out_and_no_event_is_lost_or_told_twice(
    settings: Settings, history: History
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with _api(settings, port) as first, Client(url) as client:
        job_id = client.submit(BODY)["id"]
        history.start(job_id)
        with _started(command("watch", job_id, "--json"), url) as process:
            seqs = [json.loads(_line_with(process, "job.started"))["seq"]]
            first.kill()
            first.wait()
            history.evaluate(job_id, **OK)
            with _api(settings, port):
                history.finish(job_id)
                rest, errors = process.communicate(timeout=PATIENCE_S)
                told = client.events(job_id)["data"]
    assert process.returncode == 0, errors
    seqs += [json.loads(line)["seq"] for line in rest.splitlines()[:-1]]
    assert seqs == [event["seq"] for event in told if event["seq"] >= seqs[0]]


def _heed_ctrl_c() -> None:
    """A shell that starts the tests in the background leaves SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _started(words: list[str], url: str) -> Iterator[subprocess.Popen[str]]:
    env = environment(KERNELWRIGHT_URL=url)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, env=env, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, preexec_fn=_heed_ctrl_c
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _api(settings: Settings, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The API as a process of its own, that may be killed."""
    assert settings.redis_url is not None
    env = environment(
        KERNELWRIGHT_DATABASE_URL=settings.sqlalchemy_url,
        KERNELWRIGHT_REDIS_URL=settings.redis_url.get_secret_value(),
        KERNELWRIGHT_HOME=str(settings.home),
    )
    words = [sys.executable, "-m", "api", "--port", str(port)]
    with subprocess.Popen(words, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with Client(f"http://127.0.0.1:{port}") as client:
                deadline = time.monotonic() + PATIENCE_S
                while not client.ready():
                    assert process.poll() is None and time.monotonic() < deadline, "the API did not start"
                    time.sleep(0.05)
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=PATIENCE_S)[1]
    return line


def _line_with(process: subprocess.Popen[str], text: str) -> str:
    while text not in (line := _line(process)):
        pass
    return line


def _read_until(terminal: int, text: str, process: subprocess.Popen[bytes]) -> str:
    shown, deadline = "", time.monotonic() + PATIENCE_S
    while text not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 0.5)[0]:
            try:
                shown += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the other side is closed: the program has ended
                break
        elif process.poll() is not None:
            break
    return shown
