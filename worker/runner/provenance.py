"""Whose code runs: a few calls under torch's profiler, in the untrusted process.

Control messages, so that the judge can hold its own clock around the calls alone: `provenance.begin`,
`provenance.calls` (some calls of a subject's model, or the cache evictions of as many alone), `provenance.end` (the
list): kernels on a GPU; on a CPU torch's operators and the calls into libraries that `kernelwright` loaded. Last of
all `provenance.leave`.

The list comes from the candidate's own process and may be forged; what cannot be forged is the judge's clock, which it
must explain, and the names of what the judge's build broker built.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _ExperimentalConfig, _RecordFunctionFast
from torch.autograd.profiler import profile as _Profile

from worker.runner import hygiene, values
from worker.runner import kernelwright as loader

OWN = "own:"
"""Prefix of a call into a library of the candidate's, on a CPU."""
TINY_ELEMENTS = 16_384
_EVICT_BYTES = 512 << 20
_MOST_NAMES = 200
_LEAVING_CALLS, _LEAVING_PAUSE_S = 10, 5e-3
_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


class _Session(Protocol):
    device: str
    arenas: dict[str, Any]
    subjects: dict[str, Any]


_held: dict[str, Any] = {}
"""The profiler between `begin` and `end`, and the buffer that evicts a device's caches."""


def begin(session: _Session, _message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Start recording."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it announces every start on stderr, which is the candidate's log
    on_device = session.device != "cpu"
    if on_device and "buffer" not in _held:
        _held["buffer"] = torch.empty(_EVICT_BYTES, dtype=torch.uint8, device=session.device)
    _held["stack"] = stack = contextlib.ExitStack()
    every_thread = _ExperimentalConfig(profile_all_threads=True)
    options: dict[str, Any] = {"use_device": "cuda", "use_kineto": True} if on_device else {"record_shapes": True}
    if not on_device:
        hygiene.poison_new_host_memory(on=False)  # filling 16 MB twice a call takes 0.9 ms, which is nobody's code
        stack.enter_context(_marked_libraries())
    _held["profile"] = stack.enter_context(_Profile(experimental_config=every_thread, **options))
    return {}


def calls(session: _Session, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """`calls` calls on a slot's inputs, each behind `evictions` of them on a device; with `call` false these alone."""
    call = session.subjects[message["subject"]].calls[message["workload"]]
    inputs = tuple(values.decode(message["inputs"], session.arenas[message["workload"]].bytes))
    result: Any = None
    with torch.no_grad():
        for _step in range(message["calls"]):
            for _eviction in range(message["evictions"] if session.device != "cpu" else 0):
                _held["buffer"].zero_()
            if message["call"]:
                result = None  # as a caller does that drops its result before the next call
                result = call(*inputs)
    if session.device != "cpu":
        torch.cuda.synchronize()
    del result
    return {}


def end(session: _Session, _message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Stop recording: `entries` of (name, tiny, count, microseconds), largest first, and what time they span."""
    _held.pop("stack").close()
    events = _held.pop("profile").kineto_results.events()
    if session.device == "cpu":
        return _summary(_self_times(events))
    spans = [
        (event.name(), False, event.start_ns(), event.duration_ns())
        for event in events
        if event.device_type() == DeviceType.CUDA and _is_device_work(event)
    ]
    return _summary([(name, tiny, length) for name, tiny, _start, length in spans]) | {
        "span_us": _union_ns((start, start + length) for _name, _tiny, start, length in spans) / 1e3
    }


def leave(session: _Session, _message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
    """Take the profiler's hooks out of the CUDA driver: a launch takes 18 us with them and 8 without (H200), and what
    is timed next are launches. They go at the end of a recording, and no later one would record anything."""
    if session.device == "cpu":
        return {}
    os.environ["TEARDOWN_CUPTI"] = "1"
    with _Profile(use_device="cuda", use_kineto=True):
        torch.cuda.synchronize()
    for _call in range(_LEAVING_CALLS):  # it happens at the end of some call of the runtime's
        torch.cuda.synchronize()
        time.sleep(_LEAVING_PAUSE_S)
    return {}


def _is_device_work(event: Any) -> bool:
    """Not an annotation that is drawn on the device's timeline; older versions of torch do not tell them apart."""
    kind = getattr(event, "activity_type", None)
    return kind is None or kind() in _DEVICE_WORK


def _summary(spans: list[tuple[str, bool, int]]) -> dict[str, Any]:
    totals: dict[tuple[str, bool], list[int]] = {}
    for name, tiny, length_ns in spans:
        total = totals.setdefault((name, tiny), [0, 0])
        total[0] += 1
        total[1] += length_ns
    ordered = sorted(totals.items(), key=lambda item: -item[1][1])
    entries = [[name[:300], tiny, count, ns / 1e3] for (name, tiny), (count, ns) in ordered[:_MOST_NAMES]]
    rest = [total for _key, total in ordered[_MOST_NAMES:]]
    if rest:
        entries.append(["(others)", False, sum(count for count, _ns in rest), sum(ns for _count, ns in rest) / 1e3])
    return {"entries": entries, "events": len(spans)}


def _self_times(events: Iterable[Any]) -> list[tuple[str, bool, int]]:
    """(name, tiny, own nanoseconds) of every host event: its time without that of the events inside it."""
    threads: dict[int, list[Any]] = {}
    for event in events:
        if event.device_type() == DeviceType.CPU and not event.is_async():
            threads.setdefault(event.start_thread_id(), []).append(event)
    return [span for found in threads.values() for span in _self_times_of_one_thread(found)]


def _self_times_of_one_thread(events: list[Any]) -> list[tuple[str, bool, int]]:
    events.sort(key=lambda event: (event.start_ns(), -event.duration_ns()))
    found: list[list[Any]] = []
    around: list[tuple[int, int]] = []  # (end, index into found) of the events that are still open
    for event in events:
        start, length = event.start_ns(), event.duration_ns()
        while around and around[-1][0] <= start:
            around.pop()
        if around:
            found[around[-1][1]][2] -= length
        around.append((start + length, len(found)))
        found.append([event.name(), _elements(event.shapes()) <= TINY_ELEMENTS, length])
    return [(name, tiny, max(0, own_ns)) for name, tiny, own_ns in found]


def _elements(shapes: list[list[int]]) -> int:
    """Elements of the largest argument."""
    most = 1
    for shape in shapes:
        size = 1
        for length in shape:
            size *= length if isinstance(length, int) else 1
        most = max(most, size)
    return most


def _union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Nanoseconds during which at least one kernel ran: streams may overlap."""
    total, until = 0, 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, until))
        until = max(until, stop)
    return total


@contextlib.contextmanager
def _marked_libraries() -> Any:
    """Calls into libraries that `kernelwright` loaded show in the list under their names."""
    plain = loader.CppFunction.__call__

    def marked(self: loader.CppFunction, *args: Any) -> None:
        with _RecordFunctionFast(OWN + self.name):
            plain(self, *args)

    loader.CppFunction.__call__ = marked  # type: ignore[method-assign]
    try:
        yield
    finally:
        loader.CppFunction.__call__ = plain  # type: ignore[method-assign]


HANDLERS: dict[str, Callable[[Any, dict[str, Any], list[int]], dict[str, Any]]] = {
    "provenance.begin": begin,
    "provenance.calls": calls,
    "provenance.end": end,
    "provenance.leave": leave,
}
"""For `worker.runner.child`, by the name of the control message."""
