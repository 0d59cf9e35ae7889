"""An evaluator with the stub judge: `python -m tests.chaos.evaluator LONGEST_S [what Celery's worker takes]`.

All of it is the worker of production but for what takes seconds of a core: its judge process is `tests.chaos.judge`,
its built-in proposer `tests.chaos.builtin`, and its device is called unknown instead of being measured at each start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from celery.bin.celery import main as celery

from worker import registry
from worker.builtin_process import BuiltinProcess
from worker.judge.client import Judge


def main() -> None:
    """Become a Celery worker whose judges are stubs."""
    longest_s = sys.argv.pop(1)

    def start(judge: Judge) -> subprocess.Popen[str]:
        options = judge._options
        return _process("tests.chaos.judge", str(options.home), options.hardware, longest_s)

    def start_builtin(builtin: BuiltinProcess) -> subprocess.Popen[str]:
        builtin._process = _process("tests.chaos.builtin", stderr=subprocess.PIPE, start_new_session=True)
        return builtin._process

    def describe(hardware: str, timeout_s: float = 0.0) -> dict[str, Any]:
        return {"error": "not measured: a stub judges here"}

    Judge._start = start
    BuiltinProcess._start = start_builtin
    registry.describe = describe
    sys.exit(celery())


def _process(module: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: os.environ[name] for name in ("PATH", "PYTHONPATH")},
        **options,
    )


if __name__ == "__main__":
    main()
