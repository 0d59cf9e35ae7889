"""`kernelwright demo`: one real search from a REST call to a verified faster kernel, on a machine with nothing but g++.

It starts a whole `kernelwright up` of its own in ./.demo, submits a bundled problem as a client would, shows what
happens as it happens, and ends with the winner's table and one JSON line. Exit 0 when the search found a verified
kernel, else 1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from cli import show
from cli.client import ApiError, CandidateDetail, Client, Job
from cli.commands.watch import show_events
from cli.errors import CliError
from cli.instance import read_instance
from cli.programs import own_environment
from cli.service import service
from cli.spawn import spawn, stop

PROBLEM = "attention_causal"
_START_S = 300.0
"""The first start makes a database and loads all kernels: seconds, and 104 s (with 120 it was given up) beside a test
suite that had both cores."""
_STOP_S = 40.0


class ServiceNotUp(CliError):
    """The demo's own `kernelwright up` did not start: see the line above, and the logs in {logs}."""


class DemoFailed(CliError):
    """The search ended {state} ({reason}) without a verified kernel: see the logs in {logs}."""

    exit_code: ClassVar[int] = 1


def demo(
    home: Annotated[
        Path | None, typer.Option("--home", help="Folder of the demo's own service.", show_default="./.demo")
    ] = None,
    problem: Annotated[str, typer.Option(help="A bundled problem.")] = PROBLEM,
    candidates: Annotated[int, typer.Option(help="Candidates to try.", min=1)] = 4,
) -> None:
    """Watch one real search: REST, queue, workers, compiler, judge, benchmark, and a kernel that beats PyTorch."""
    folder = (home or _own_folder()).absolute()
    body = {
        "problem": problem,
        "target": {"hardware": "cpu", "language": "cpp"},
        "budget": {"candidates": candidates, "wall_s": 300},
        # An examination and a certificate take as long again as the whole search: both are for problems of one's own.
        "admit": False,
        "certify": False,
        "labels": {"from": "demo"},
    }
    with _own_service(folder) as url, service(url) as client:
        typer.echo(f"\n$ curl --json '{json.dumps(body)}' {url}/v1/jobs")
        job = client.submit(body)
        typer.echo(f"202 Accepted, {job['id']}\n")
        show_events(client, job)
        job = client.job(job["id"])
        best = _best(client, job)
    if best is None:
        show.put_json(_result(job, None))
        raise DemoFailed(state=job["state"], reason=job["stop_reason"], logs=folder / "log")
    kernel = folder / "kernel.py"
    kernel.write_text(best["source"] or "")
    _show_winner(job, best, kernel)
    show.put_json(_result(job, best))
    raise typer.Exit(0 if job["state"] == "succeeded" else 1)


def _own_folder() -> Path:
    """./.demo, so that a second run finds its caches; a temporary folder where nothing may be written."""
    if os.access(Path.cwd(), os.W_OK):
        return Path.cwd() / ".demo"
    return Path(tempfile.gettempdir()) / f"kernelwright-demo-{os.geteuid()}"


@contextmanager
def _own_service(home: Path) -> Iterator[str]:
    """Run `kernelwright up` in `home` on a free port; its URL. Raises ServiceNotUp."""
    # Its own servers, whatever the shell is set up for: a demo must not write into anybody's database.
    env = own_environment({"KERNELWRIGHT_HOME": str(home)}, secrets=False)
    env = {name: value for name, value in env.items() if name not in _SERVERS}
    argv = [sys.executable, "-m", "cli", "up", "--port", "0", "--queues", "control,cpu"]
    # SIGTERM also when we are killed: it stops its own in good order.
    process = spawn(argv, env=env, output=None, death_signal=signal.SIGTERM, cwd=Path.cwd())
    try:
        yield _wait_for_url(process, home)
    finally:
        sys.stdout.flush()
        stop(process, ((signal.SIGTERM, _STOP_S),))


_SERVERS = ("KERNELWRIGHT_DATABASE_URL", "KERNELWRIGHT_REDIS_URL")


def _wait_for_url(process: subprocess.Popen[bytes], home: Path) -> str:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        instance = read_instance(home)
        if instance is not None and instance.pid == process.pid and instance.url is not None:
            return instance.url
        time.sleep(0.05)
    raise ServiceNotUp(logs=home / "log")


def _best(client: Client, job: Job) -> CandidateDetail | None:
    with suppress(ApiError):
        return client.best(job["id"])
    return None


def _show_winner(job: Job, best: CandidateDetail, kernel: Path) -> None:
    report: Mapping[str, Any] = best["report"] or {}
    speedups = report.get("speedups") or {}
    baselines = report.get("baselines_us") or {}
    tried = sum(count for verdict, count in job["progress"]["verdicts"].items() if verdict != "infra_error")
    against = _in_words(best["baseline"] or "-")
    rows = [
        ["verdict", best["verdict"] or "-"],
        ["speedup", f"{show.speedup(best['speedup'])} over the fastest baseline of each workload ({against})"],
        ["95 % interval", show.interval(best["ci95"])],
        ["over eager", _against(speedups.get("eager"), baselines.get("eager"))],
        ["over torch.compile", _against(speedups.get("compile"), baselines.get("compile"))],
        ["latency", show.latency(best["latency_us"])],
        ["candidates tried", str(tried)],
        ["plan", best["plan"] or "-"],
        ["source", str(kernel)],
    ]
    typer.echo("")
    show.table([job["problem"]["name"], show.target(job)], rows, empty="")
    typer.echo("")


def _in_words(baseline: str) -> str:
    library = baseline.removeprefix("library_")
    return f"the library's {library}" if library != baseline else {"compile": "torch.compile"}.get(baseline, baseline)


def _against(speedup: float | None, baseline_us: float | None) -> str:
    return "-" if speedup is None else f"{show.speedup(speedup)} (it takes {show.latency(baseline_us)})"


def _result(job: Job, best: CandidateDetail | None) -> dict[str, Any]:
    return {
        "job_id": job["id"],
        "state": job["state"],
        "verdict": best["verdict"] if best else None,
        "speedup": best["speedup"] if best else None,
        "ci95": best["ci95"] if best else None,
        "baseline": best["baseline"] if best else None,
        "latency_us": best["latency_us"] if best else None,
    }
