"""What a finalist is asked to do beside plain calls: graph capture, a side stream, autocast, other backwards than the
usual one, torch.compile, sanitizers.

Runs in the untrusted process, so nothing here decides anything. Outputs go into the arena, where the judge compares
them with its own truth; memory is read by the judge from /proc or the driver. What a sanitizer finds does come through
this process: it can speak against a candidate, and its silence proves nothing about a hostile one.

`HANDLERS` maps the name of a control message to its handler; `worker.runner.child` registers them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from worker.runner import kernelwright as loader
from worker.runner import values
from worker.runner.messages import Farthest, Session, call_of, cloned, inputs_of, places_of, store, synchronize
from worker.runner.step import Step

_WARMUPS = 3
_DELAY_CYCLES = 20_000_000
"""About 10 ms on a device: the inputs arrive on the side stream only after it."""
_BESIDE_S = 1.0
"""For so long two threads call at once."""
_REPORT_BYTES = 16 << 10
DRIVE = (sys.executable, "-P", "drive.py")
_SANITIZED = ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined")
_SIDE_FILES = {
    name: Path(__file__).with_name(name).read_text(encoding="utf-8")
    for name in ("drive.py", "extensions.py", "kernelwright.py", "step.py")
}
"""Read before the sandbox closes: the confined process cannot see this project's folder."""


class NotPossible(Exception):
    """This device or this sandbox cannot do what was asked. The message says why."""


_held: dict[str, Any] = {}
"""What one message leaves for the next: the captured graph and its static outputs."""


def capture(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Warm up on a side stream and capture one call on a slot's inputs into a CUDA graph."""
    _need_device(session, "CUDA graphs")
    call, inputs = call_of(session, message), inputs_of(session, message)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        for _step in range(_WARMUPS):
            call(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        result = call(*inputs)
    _held["graph"], _held["result"] = graph, result
    return {}


def replay(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Replay the captured graph on what the slot holds now."""
    _held["graph"].replay()
    torch.cuda.synchronize()
    store(_held["result"], places_of(session, message))
    torch.cuda.synchronize()
    return {}


def side_stream(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Call on a stream that is not the default one, with inputs that arrive late on that very stream.

    A kernel launched elsewhere does not wait for them and computes on the NaN that lies there before.
    """
    _need_device(session, "streams")
    call, inputs, places = call_of(session, message), inputs_of(session, message), places_of(session, message)
    staged = [_blank(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.no_grad(), torch.cuda.stream(stream):
        torch.cuda._sleep(_DELAY_CYCLES)  # type: ignore[no-untyped-call]
        for late, value in zip(staged, inputs, strict=True):
            if isinstance(value, torch.Tensor):
                late.copy_(value)
        store(call(*staged), places)
    stream.synchronize()
    return {}


def autocast(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Call under torch.autocast. Outputs may come in another float type; the judge compares their values."""
    kind = torch.device(session.device).type
    with torch.no_grad(), torch.autocast(kind, dtype=values.dtype_of(message["dtype"])):
        result = call_of(session, message)(*inputs_of(session, message))
    store(result, places_of(session, message), cast=True)
    synchronize(session)
    return {}


def summed(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Forward, and the second gradients of the sum of what it returns."""
    step = call_of(session, message)
    if not isinstance(step, Step):
        raise NotPossible("this workload has no backward")
    store(step.summed(inputs_of(session, message)), places_of(session, message))
    synchronize(session)
    return {}


def rewritten(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Forward, and gradients after the outputs, the inputs or the parameters were written over."""
    step = call_of(session, message)
    assert isinstance(step, Step), "a workload without a backward was asked for gradients"
    ways = {"inputs": step.inputs_rewritten, "parameters": step.parameters_rewritten}
    written_over = ways.get(message["which"], step.results_rewritten)
    store(written_over(inputs_of(session, message)), places_of(session, message))
    synchronize(session)
    return {}


def partial(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Forward, and the gradients at `needed` of a loss that is made of the outputs at `heard`."""
    step = call_of(session, message)
    assert isinstance(step, Step), "a workload without a backward was asked for gradients"
    store(step.partial(inputs_of(session, message), message["needed"], message["heard"]), places_of(session, message))
    synchronize(session)
    return {}


def refilled(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Call, put `others` where the first inputs lie, call again, and only then take what the first call returned."""
    call, inputs = call_of(session, message), inputs_of(session, message)
    others = tuple(values.decode(message["others"], session.arenas[message["workload"]].bytes))
    filled = tuple(inputs[: len(others)])
    with torch.no_grad():
        result = call(*inputs)
        for place, value in zip(values.tensors_of(filled), values.tensors_of(others), strict=True):
            place.copy_(value)
        call(*inputs)
        store(result, places_of(session, message))
    synchronize(session)
    return {}


def threads(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Call alone, then from two threads at once, on the slot's inputs and on `others`. The slot's result that is the
    farthest from what it was alone is kept: bits may differ from call to call."""
    call = call_of(session, message)
    inputs, places = inputs_of(session, message), places_of(session, message)
    others = values.decode(message["others"], session.arenas[message["workload"]].bytes)
    with torch.no_grad():
        kept = Farthest(call(*inputs))
    synchronize(session)
    until = time.monotonic() + _BESIDE_S

    def work(arguments: list[Any], see: Callable[[Any], None]) -> None:
        with torch.no_grad(), _own_stream(session):
            see(call(*arguments))
            while time.monotonic() < until:
                see(call(*arguments))
            synchronize(session)

    with ThreadPoolExecutor(2) as pool:
        mine, beside = pool.submit(work, inputs, kept.see), pool.submit(work, others, lambda _result: None)
        beside.result()
        mine.result()
    store(kept.result, places)
    synchronize(session)
    return {}


def compiled(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Call through torch.compile, twice, so that the second runs what the first compiled; graph breaks are allowed."""
    fast = torch.compile(call_of(session, message), fullgraph=False, dynamic=False)
    inputs, places = inputs_of(session, message), places_of(session, message)
    with torch.no_grad():
        fast(*inputs)
        store(fast(*inputs), places)
    synchronize(session)
    return {}


def repeat(session: Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Call so many times and drop every result, as a loop over batches does."""
    call, inputs = call_of(session, message), inputs_of(session, message)
    with torch.no_grad():
        for _step in range(message["count"]):
            call(*inputs)
    synchronize(session)
    return {}


def sanitize(session: Session, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Run the candidate in a process of its own under a sanitizer, still inside this sandbox.

    `tool` is a command to put before the interpreter, or `asan`: C++ is then compiled again with -fsanitize. The answer
    holds the exit code and the end of the report. Raises NotPossible when the tool is not here.
    """
    with_asan = message["tool"] == ["asan"]
    folder = prepare(session, message, fds, rebuild=with_asan)
    environment = os.environ | message["environment"] | (_asan_environment() if with_asan else {})
    command = [*([] if with_asan else message["tool"]), *DRIVE]
    code, report = watched(command, folder, environment, message["limit_s"])
    saved = code == 0 and (folder / "outputs.pt").exists()  # a tool that finds something may end the process anywhere
    if saved:
        store(torch.load(folder / "outputs.pt", map_location=session.device), places_of(session, message))
        synchronize(session)
    log = folder / "report.txt"
    text = (log.read_text(errors="replace") if log.exists() else "") + report
    summary = [line[:300] for line in text.splitlines() if "SUMMARY:" in line or "runtime error:" in line]
    ends = text if len(text) <= _REPORT_BYTES else text[: _REPORT_BYTES // 2] + text[-_REPORT_BYTES // 2 :]
    return {"code": code, "saved": saved, "report": ends, "summary": summary[:20]}


HANDLERS: dict[str, Callable[[Any, dict[str, Any], list[int]], dict[str, Any]]] = {
    "examine.capture": capture,
    "examine.replay": replay,
    "examine.side_stream": side_stream,
    "examine.autocast": autocast,
    "examine.compiled": compiled,
    "examine.summed": summed,
    "examine.partial": partial,
    "examine.refilled": refilled,
    "examine.rewritten": rewritten,
    "examine.threads": threads,
    "examine.repeat": repeat,
    "examine.sanitize": sanitize,
}


def prepare(session: Session, message: dict[str, Any], fds: list[int], *, rebuild: bool = False) -> Path:
    """A folder in which `DRIVE` runs the candidate by itself. `rebuild`: its C++ compiled again for the sanitizers."""
    folder = Path.cwd() / f"sanitize-{message['name']}"
    folder.mkdir(exist_ok=True)
    for name, text in _SIDE_FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "candidate.py").write_text(message["source"], encoding="utf-8")
    builds = [_handed(build, fd, folder) for build, fd in zip(message["builds"], fds, strict=True)]
    if rebuild:
        builds = [_rebuilt(build, folder, number) for number, build in enumerate(builds)]
    (folder / "builds.json").write_text(json.dumps(builds), encoding="utf-8")
    shared = session.arenas[message["workload"]].bytes
    # Cloned, because saving a view saves its whole storage, and that is the arena.
    job = {name: cloned(values.decode(message[name], shared)) for name in ("init", "inputs")}
    job["state"] = {name: values.decode(ref, shared).clone() for name, ref in message["state"].items()}
    torch.save(job | {name: message[name] for name in ("backward", "training", "device")}, folder / "job.pt")
    return folder


def _own_stream(session: Session) -> AbstractContextManager[Any]:
    """A thread's own stream, where the device has any."""
    return nullcontext() if session.device == "cpu" else torch.cuda.stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]


def _blank(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout, full of NaN; integers are zeros, which are valid indices."""
    blank = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return blank.fill_(float("nan") if value.is_floating_point() else 0)


def _need_device(session: Session, what: str) -> None:
    if session.device == "cpu":
        raise NotPossible(f"{what} need a GPU")


def _handed(build: list[Any], descriptor: int, folder: Path) -> list[Any]:
    """A recorded build (language, source, flags, name) with the judge's artefact copied to where it can be opened."""
    *what, name = build
    path = folder / f"{descriptor}-{name}"
    with os.fdopen(descriptor, "rb") as artefact, path.open("wb") as copy:
        shutil.copyfileobj(artefact, copy)
    return [*what, str(path)]


def _rebuilt(build: list[Any], folder: Path, number: int) -> list[Any]:
    """A recorded build (language, source, flags, path) with its C++ compiled again for the sanitizers."""
    language, source, flags, _path = build
    if language != "cpp":
        raise NotPossible(f"{language} cannot be built with -fsanitize")
    place = folder / f"build{number}"
    place.mkdir(exist_ok=True)
    path, _log = loader.compile_cpp(source, [*flags, *_SANITIZED], place)
    return [language, source, flags, str(path)]


def _asan_environment() -> dict[str, str]:
    """Preload the sanitizers' libraries: the interpreter itself is not built with them."""
    found = [_library(name) for name in ("libasan.so", "libubsan.so")]
    return {
        "LD_PRELOAD": " ".join(found),
        # exitcode tells a finding from a crash of the driver; leaks of the interpreter are nobody's kernel.
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=86:allocator_may_return_null=1:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=0",
    }


def _library(name: str) -> str:
    listed = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, timeout=20)
    path = Path(listed.stdout.strip())
    if not path.is_absolute() or not path.exists():
        raise NotPossible(f"{name} is not installed beside g++")
    return str(path)


def watched(command: list[str], folder: Path, environment: dict[str, str], limit_s: float) -> tuple[int, str]:
    """Run to the end; (exit code, the end of standard error). A timeout is exit code 124."""
    try:
        ended = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s
        )
    except FileNotFoundError as missing:
        raise NotPossible(f"{command[0]} cannot be run inside the sandbox") from missing
    except subprocess.TimeoutExpired:
        return 124, f"no end within {limit_s:.0f} s"
    return ended.returncode, (ended.stdout + ended.stderr)[-_REPORT_BYTES:].decode(errors="replace")
