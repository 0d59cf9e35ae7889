"""A supervisor over stand-in programs, for tests to kill: `python …/rig.py FOLDER [guarded]`.

`child` writes its pid to FOLDER/child.pid; it also starts a grandchild that leaves its session and its parent behind.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import structlog

from cli.guard import guarded
from cli.programs import Program
from cli.supervisor import StopRequested, Supervisor

CHILD = """
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "child.tmp").write_text(str(os.getpid()))
os.replace(folder / "child.tmp", folder / "child.pid")  # whoever reads it meanwhile finds the old one
subprocess.Popen(["setsid", "sh", "-c", "setsid sleep 300 & sleep 301"])
print("alive", flush=True)
time.sleep(300)
"""


def supervise(folder: Path) -> int:
    structlog.configure(processors=[structlog.processors.LogfmtRenderer(key_order=["event"])])
    program = Program(
        name="child",
        argv=[sys.executable, "-c", CHILD, str(folder)],
        env=dict(os.environ),
        cwd=folder,
        ready=(folder / "child.pid").exists,
        grace_s=2.0,
    )
    supervisor = Supervisor([[program]])
    with supervisor.signals():
        try:
            supervisor.start()
            sys.stdout.write(f"watching {os.getpid()}\n")
            sys.stdout.flush()
            supervisor.watch()
        except StopRequested:
            return 130
        supervisor.stop()
    return 0


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.exit(guarded(lambda: supervise(folder)) if "guarded" in sys.argv else supervise(folder))
