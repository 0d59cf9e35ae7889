"""What Triton compiled for a candidate's calls, in the untrusted process: the text of each stage, and the cubin.

`code.kernels`: one call of a subject's model, in which every launch is noted; or, where launches were recorded for a
GPU that is not here (`worker.runner.triton_record`), what was compiled since. Answers the kernels' names. `code.part`:
one stage of one of them.

What comes back may be forged: it is shown as the candidate's, and nothing hangs on it.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from worker.runner import values

MAX_PART_BYTES = 1 << 20
"""Of one stage of one kernel; the rest of it is left out."""
MAX_KERNELS = 16
STAGES = {"ttgir": "ttgir", "llvm": "llir", "ptx": "ptx", "cubin": "cubin"}
"""What they are called here, and what Triton calls them."""


class _Session(Protocol):
    device: str
    arenas: dict[str, Any]
    subjects: dict[str, Any]
    recorded_launches: Any


_held: dict[str, Any] = {}
"""The compiled kernels by their hashes, between `code.kernels` and `code.part`."""


def kernels(session: _Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """`kernels`: the names of what was compiled for one call on a slot's inputs."""
    found: list[tuple[str, Any]]
    if session.recorded_launches is not None:
        found = session.recorded_launches.compiled
    else:
        call = session.subjects[message["subject"]].calls[message["workload"]]
        inputs = values.decode(message["inputs"], session.arenas[message["workload"]].bytes)
        with _noted() as found, torch.no_grad():
            call(*inputs)
    different = {kernel.hash: (name, kernel) for name, kernel in found}
    _held["kernels"] = list(different.values())[:MAX_KERNELS]
    return {"kernels": [name for name, _kernel in _held["kernels"]]}


def part(_session: _Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """`text` of one stage of one kernel; of the cubin `data`, in base 64. Empty where there is no such stage."""
    _name, kernel = _held["kernels"][message["kernel"]]
    content = kernel.asm.get(STAGES[message["stage"]])
    if isinstance(content, bytes):
        whole = len(content) <= MAX_PART_BYTES  # half a cubin is of no use
        return {"data": base64.b64encode(content).decode()} if whole else {}
    return {} if content is None else {"text": content[: MAX_PART_BYTES + 1]}


@contextlib.contextmanager
def _noted() -> Iterator[list[tuple[str, Any]]]:
    """Within, every launch of a Triton kernel is noted with what was compiled for it."""
    from triton.runtime import jit

    found: list[tuple[str, Any]] = []
    run = jit.JITFunction.run

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = run(self, *args, **kwargs)
        if kernel is not None:
            found.append((self.fn.__name__, kernel))
        return kernel

    jit.JITFunction.run = noting
    try:
        yield found
    finally:
        jit.JITFunction.run = run


HANDLERS: dict[str, Callable[[Any, dict[str, Any], list[int]], dict[str, Any]]] = {
    "code.kernels": kernels,
    "code.part": part,
}
"""For `worker.runner.child`, by the name of the control message."""
