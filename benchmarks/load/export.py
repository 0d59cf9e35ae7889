"""How fast all candidates leave the service, and in how much memory: a real API, and the command in its own process.

    python -m benchmarks.load.export                                   # 100,000 candidates of 10,000 jobs
    python -m benchmarks.load.export --jobs 100000 --candidates 1000000

Prints rows per second, the size of the file, and the most memory that the command and the API held.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.load.service import Service, filled_service


def main() -> int:
    """Fill, serve, export, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.export", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--candidates", type=int, default=100_000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="export-") as scratch,
        filled_service(jobs=options.jobs, candidates=options.candidates) as service,
    ):
        for name in ("all.parquet", "all.jsonl"):
            _export(Path(scratch) / name, service)
    return 0


def _export(out: Path, service: Service) -> None:
    command = [sys.executable, "-m", "cli", "export", "dataset", "--out", str(out), "--json"]
    environment = os.environ | {"KERNELWRIGHT_URL": service.url, "KERNELWRIGHT_KEY": service.key}
    begun = time.monotonic()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    took_s = time.monotonic() - begun
    rows = int(done.stdout.split(b'"candidates": ')[1].rstrip(b"}\n"))
    # The largest child so far: Parquet comes first and needs more than JSON lines.
    command_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    sys.stdout.write(
        f"{out.name}: {rows:,} rows in {took_s:.0f} s, {rows / took_s:,.0f} a second, {out.stat().st_size / 1e6:.0f} "
        f"MB; the command held {command_mb:.0f} MB at most, the API {_peak_mb(service.api_pids[0]):.0f} MB\n"
    )
    sys.stdout.flush()


def _peak_mb(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
