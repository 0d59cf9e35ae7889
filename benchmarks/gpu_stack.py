"""The whole stack on one GPU: `kernelwright up`, jobs over REST, winners with their evidence.

    python -m benchmarks.gpu_stack --out docs/results/gpu-stack.json
    python -m benchmarks.gpu_stack --jobs softmax:triton,softmax:cuda --candidates 6 --out /tmp/out.json

Starts its own service in a temporary folder (API, Valkey, Celery workers, Postgres, one worker per GPU), submits the
jobs with the bundled problems, waits, and writes for each the job, the winner with its report, and every candidate's
verdict. Exit code 0 when every job found a verified kernel.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cli.client import ApiError, Client
from cli.instance import read_instance
from worker.profile.gpus import detect_hardware

JOBS = "cumsum:triton,matmul_bias_gelu:triton,bias_gelu_scale_residual:triton,cumsum:cuda"


def main() -> int:
    """Run the jobs one after another and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=JOBS, help="problem:language, comma-separated")
    parser.add_argument("--candidates", type=int, default=6, help="budget of each job")
    parser.add_argument("--limit-s", type=float, default=480, help="for all jobs together")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    hardware = next(name for name in detect_hardware() if name != "cpu")
    home = Path(tempfile.mkdtemp(prefix="kernelwright-bench-"))
    service = subprocess.Popen(
        [sys.executable, "-m", "cli", "up", "--port", "0", "--home", str(home), "--queues", "control,gpu"]
    )
    try:
        results = run_jobs(wait_for_url(service, home), hardware, options)
    except BaseException:
        show_logs(home)
        raise
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(timeout=60)
    print_table(results)
    return 0 if all(result["job"]["state"] == "succeeded" for result in results) else 1


def show_logs(home: Path) -> None:
    """The ends of the service's logs, for a machine that nobody can look into afterwards."""
    for log in sorted((home / "log").glob("*.log")):
        sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}\n")


def wait_for_url(service: subprocess.Popen[bytes], home: Path) -> str:
    """The service's address, once it says that it is up."""
    deadline = time.monotonic() + 120
    while service.poll() is None and time.monotonic() < deadline:
        instance = read_instance(home)
        if instance is not None and instance.url is not None:
            return instance.url
        time.sleep(0.1)
    raise SystemExit(f"the service did not start: see {home / 'log'}")


def run_jobs(url: str, hardware: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Submit every job, then wait for all."""
    deadline = time.monotonic() + options.limit_s
    started = time.monotonic()
    results: list[dict[str, Any]] = []
    with Client(url) as client:
        for name in options.jobs.split(","):
            problem, language = name.split(":")
            job: Any = client.submit(
                {
                    "problem": problem,
                    "target": {"hardware": hardware, "language": language},
                    "budget": {"candidates": options.candidates, "wall_s": 600},
                }
            )
            while job["state"] in ("queued", "running", "cancelling") and time.monotonic() < deadline:
                time.sleep(0.5)
                job = client.job(job["id"])
            results.append(collect(client, job, time.monotonic() - started))
            started = time.monotonic()
            options.out.write_text(json.dumps(results, indent=1) + "\n")  # what is done is kept, whatever comes
    return results


def collect(client: Client, job: Any, wall_s: float) -> dict[str, Any]:
    """One job with its winner and all its candidates."""
    try:
        best: Any = client.best(job["id"])
    except ApiError:
        best = None
    candidates = [dict(candidate) for candidate in client.candidates(job["id"])["data"]]
    return {"job": dict(job), "wall_s": wall_s, "best": best, "candidates": candidates}


def print_table(results: list[dict[str, Any]]) -> None:
    """A line per job and one per workload of its winner."""
    out = sys.stdout.write
    for result in results:
        job, best = result["job"], result["best"]
        target = f"{job['target']['hardware']}:{job['target']['language']}"
        out(f"{job['problem']['name']} {target} {job['state']} ({job['stop_reason']}) {result['wall_s']:.0f} s ")
        out(f"verdicts {job['progress']['verdicts']}\n")
        if best is None:
            continue
        report = best["report"]
        low, high = best["ci95"]
        gain = f"{best['speedup']:.3f}x [{low:.3f}, {high:.3f}] over the fastest baseline"
        out(f"  {best['verdict']} {gain}; {best['plan']}\n")
        for row in report["workloads"]:
            baselines = ", ".join(f"{name} {value:.1f}" for name, value in row["baselines_us"].items())
            out(f"    {row['name']}: {row['latency_us']:.1f} us; {baselines}; {row['speedup']:.3f}x\n")


if __name__ == "__main__":
    sys.exit(main())
