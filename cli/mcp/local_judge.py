"""The judge of this machine for the tools: `kernelwright evaluate` and `admit` in a process of their own.

A process, because the judge imports torch and starts children, and because stdout here belongs to the protocol. It dies
with the call: an agent that gives up leaves nothing running.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from mcp.server.mcpserver.exceptions import ToolError

_REFUSED = 3
_STOP_S = 5.0


def fits(hardware: str) -> bool:
    """Whether this machine can judge for that hardware: it has torch, and for a GPU that GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    if hardware == "cpu":
        return True
    from worker.profile.gpus import gpus

    return any(gpu.hardware == hardware for gpu in gpus())


@contextmanager
def files(problem: str, problem_source: str | None, candidate: str | None) -> Iterator[tuple[str, str]]:
    """(problem, candidate) as the commands take them: a bundled name or a file, and a file."""
    with tempfile.TemporaryDirectory(prefix="kernelwright-mcp-") as folder:
        source = Path(folder) / "candidate.py"
        source.write_text(candidate or "", encoding="utf-8")
        if problem_source is None:
            yield problem, str(source)
            return
        own = Path(folder) / "problem.py"
        own.write_text(problem_source, encoding="utf-8")
        yield str(own), str(source)


async def judge(arguments: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """The JSON that the command prints. Raises ToolError with what it says instead."""
    command = [sys.executable, "-m", "cli", *arguments, "--json"]
    process = await anyio.open_process(command, stdin=subprocess.DEVNULL, env=_environment(), start_new_session=True)
    out, err = b"", b""
    try:
        with anyio.fail_after(timeout_s):
            async with anyio.create_task_group() as group:
                said: dict[str, bytes] = {}
                group.start_soon(_collect, process, "stdout", said)
                group.start_soon(_collect, process, "stderr", said)
            out, err = said["stdout"], said["stderr"]
            await process.wait()
    except TimeoutError:
        raise ToolError(f"not judged within {timeout_s:.0f} s: call again with a larger timeout_s") from None
    finally:
        await _stop(process)
    if process.returncode not in (0, _REFUSED) and not out.strip():
        raise ToolError(err.decode(errors="replace").strip() or f"the judge left with {process.returncode}")
    found: dict[str, Any] = json.loads(out)
    return found


async def _collect(process: Process, name: str, said: dict[str, bytes]) -> None:
    said[name] = b""
    stream = getattr(process, name)
    async for chunk in stream:
        said[name] += chunk


async def _stop(process: Process) -> None:
    """Have it stop its children in good order, and end what is left."""
    with anyio.CancelScope(shield=True):
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.returncode is not None:
                break
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with anyio.move_on_after(_STOP_S):
                await process.wait()
        await process.aclose()


def _environment() -> dict[str, str]:
    """The judge needs no key."""
    from cli.service import KEY_VARIABLE

    return {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
