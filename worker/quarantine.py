"""A device that fails: seen by a canary in a fresh process, and then the worker is quarantined with the reason.

After a candidate that ended in a way a broken device could be the cause of, the canary (`worker.judge.canary`) runs.
Two that fail mean that the device failed and not the candidate: the work is given back without counting the attempt,
for another worker, and this one claims nothing more until somebody makes it active again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

import structlog

from db import workers
from db.vocabulary import Verdict
from worker.runtime import Runtime

log = structlog.get_logger(__name__)

CANARIES: Final = 2
CANARY_S: Final = 90.0
"""A first start of CUDA took 10 s on a cold machine; a device that hangs never answers."""
COMMAND: Final = (sys.executable, "-m", "worker.judge.canary")
_KEPT = ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "VIRTUAL_ENV", "HOME")
_XID = re.compile(r"NVRM: Xid.*")
_ABNORMAL = re.compile(
    r"killed by signal|exited with code|CUDA error|CudaDriverError|AcceleratorError|cuda\w*Error|CUDA_ERROR"
)


def suspect(report: Mapping[str, Any]) -> bool:
    """Whether a report is one that a broken device could have brought about: a fault, a hang, a death, no judge."""
    verdict, reason = report.get("verdict"), str(report.get("reason"))
    if verdict in (Verdict.ILLEGAL_ACCESS, Verdict.TIMEOUT, Verdict.INFRA_ERROR):
        return True
    return verdict == Verdict.LAUNCH_ERROR and bool(_ABNORMAL.search(reason))


def device_failed(here: Runtime, hardware: str) -> str | None:
    """After a suspect end: why the device is broken, with the worker quarantined for it; None for one that is sound.

    The canary takes 3 to 10 s on a GPU. A CPU has none: what breaks there takes the worker with it.
    """
    if hardware == "cpu":
        return None
    why = _canaries_died(hardware)
    if why is None:
        return None
    reason = f"{CANARIES} canary kernels failed after an abnormal end: {why}"
    xid = last_xid()
    if xid is not None:
        reason += f" ({xid})"
    here.end_judges()  # their contexts are on that device
    with here.transaction() as session:
        workers.quarantine(session, here.owner, reason)
    log.error("worker.quarantined", reason=reason)
    return reason


def _canaries_died(hardware: str) -> str | None:
    why = None
    for _attempt in range(CANARIES):
        why = canary(hardware)
        if why is None:
            return None
        log.warning("device.canary_failed", why=why)
    return why


def canary(hardware: str, timeout_s: float = CANARY_S) -> str | None:
    """Run one; what was wrong, or None."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        done = subprocess.run(
            [*COMMAND, hardware], capture_output=True, text=True, env=environment, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout_s:.0f} s"
    with contextlib.suppress(ValueError, IndexError, KeyError, TypeError):
        found = json.loads(done.stdout.splitlines()[-1])
        return None if found["sound"] is True else str(found["why"])
    return f"it ended with code {done.returncode}: {done.stderr[-300:].strip()}"


def last_xid() -> str | None:
    """The driver's last complaint in the kernel's log, where this user may read it."""
    found = None
    with contextlib.suppress(OSError):
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        try:
            while record := os.read(descriptor, 8192):
                match = _XID.search(record.decode(errors="replace"))
                found = match[0][:200] if match else found
        finally:
            os.close(descriptor)
    return found
