"""An evaluator with the stub judge: `python -m tests.chaos.evaluator LONGEST_S [what Celery's worker takes]`.

All of it is the worker of production but for two things: its judge process is `tests.chaos.judge`, and its device is
described as unknown instead of being measured for seconds at each restart.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from celery.bin.celery import main as celery

from worker import registry
from worker.judge.client import Judge


def main() -> None:
    """Become a Celery worker whose judges are stubs."""
    longest_s, *arguments = sys.argv[1:]

    def start(judge: Judge) -> subprocess.Popen[str]:
        options = judge._options
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.judge", str(options.home), options.hardware, longest_s],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: os.environ[name] for name in ("PATH", "PYTHONPATH")},
        )

    def describe(hardware: str, timeout_s: float = 0.0) -> dict[str, Any]:
        return {"error": "not measured: a stub judges here"}

    Judge._start = start
    registry.describe = describe
    sys.exit(celery(arguments))


if __name__ == "__main__":
    main()
