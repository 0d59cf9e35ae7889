"""A service of a benchmark's own: `kernelwright up` on a free port, with workers for one kind of hardware."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cli.embedded.home import process_alive
from cli.instance import read_instance

START_S: Final = 120.0
STOP_S: Final = 60.0
_TOLD: Final = 3000


def home_of(asked: Path | None) -> Path:
    """The folder that was asked for, or a temporary one."""
    return Path(tempfile.mkdtemp(prefix="kernelwright-bench-")) if asked is None else asked.resolve()


@contextmanager
def serving(home: Path, hardware: str, evaluators: int = 1, **variables: str) -> Iterator[str]:
    """Its URL. `evaluators`: that share each GPU. Raises SystemExit when it does not start; errors show the logs."""
    queues = "control,cpu" if hardware == "cpu" else "control,gpu"
    environment = os.environ | {"KERNELWRIGHT_EVALUATORS_PER_GPU": str(evaluators), **variables}
    command = [sys.executable, "-m", "cli", "up", "--port", "0", "--home", str(home), "--queues", queues]
    service = subprocess.Popen(command, env=environment)
    try:
        yield _wait_for_url(service, home)
    except BaseException:
        for log in sorted((home / "log").glob("*.log")):
            sys.stderr.write(f"--- {log.name}\n{log.read_text(errors='replace')[-_TOLD:]}\n")
        raise
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(timeout=STOP_S)


def _wait_for_url(service: subprocess.Popen[bytes], home: Path) -> str:
    deadline = time.monotonic() + START_S
    while service.poll() is None and time.monotonic() < deadline:
        instance = read_instance(home)
        # What the last one in this home wrote down stays: a second slice would ask a server that is gone.
        if instance is not None and instance.url is not None and process_alive(instance.pid):
            return instance.url
        time.sleep(0.1)
    raise SystemExit(f"the service did not start: see {home / 'log'}")
