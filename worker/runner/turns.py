"""What measures on a GPU, or first runs, while a baseline is compiled asks for the device and has it alone meanwhile.

    take_turns(control)     # in a runner of baselines, before torch.compile is used

Inductor times a kernel's configurations once and keeps the fastest for all later processes. Timed beside other judges'
work, stopped in the middle of it, the sum of columns got one that took 3.1 ms where 0.3 were possible (H200): a
baseline that nobody has to beat. All else that compilers do needs no device, and goes on while others are timed; also
the compiling between two timings of a search for the best configuration, some 0.7 s of it for 0.1 s of timing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from worker.runner import protocol

_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
_PLACES = (
    ("torch._inductor.output_code", "CompiledFxGraph", "__call__"),
    (_HEURISTICS, "CachingAutotuner", "autotune_to_one_config"),
    ("torch._inductor.select_algorithm", "AlgorithmSelectorCache", "benchmark_in_current_process"),
    ("torch._inductor.runtime.benchmarking", "TritonBenchmarker", "benchmark_gpu"),
    ("torch._inductor.runtime.benchmarking", "InductorBenchmarker", "benchmark_gpu"),
)
"""Calls of what was compiled, which time configurations at first; choices between templates; timings of any kind."""
_ASIDE = ((_HEURISTICS, "CachingAutotuner", "_precompile_config"),)
"""What compiles a configuration, perhaps in the middle of a turn."""


class Turns:
    """This runner's turns on the device; one within another is part of it, and so is what other threads do meanwhile:
    those of an autotuner ask as well."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._depth = 0
        self._mine = _Depth()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the device, have it alone, and give it back when all work on it is done."""
        self._enter(1)
        try:
            yield
        finally:
            self._leave(1)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Without the device, if the calling thread has a turn: it is given back, unless other threads use it, and
        asked for again."""
        depth = self._mine.depth
        if not depth:  # not even the lock is needed: another thread holds it while it waits for the device
            yield
            return
        self._leave(depth)
        try:
            yield
        finally:
            self._enter(depth)

    def _enter(self, depth: int) -> None:
        with self._lock:
            if not self._depth:
                protocol.send_message(self._control, {"turn": True})
                protocol.receive_message(self._control)
            self._depth += depth
        self._mine.depth += depth

    def _leave(self, depth: int) -> None:
        self._mine.depth -= depth
        with self._lock:
            self._depth -= depth
            if not self._depth:
                try:
                    if torch.cuda.is_available():
                        torch.cuda.synchronize()  # fails where a kernel did: the answer to the judge says so
                finally:
                    protocol.send_message(self._control, {"turn": False})


class _Depth(threading.local):
    """Of the calling thread's turns within turns."""

    depth = 0


def take_turns(control: socket.socket) -> None:
    """From now on. What this version of torch does not have is left out."""
    turns = Turns(control)
    for places, during in ((_PLACES, turns.turn), (_ASIDE, turns.aside)):
        for module, owner, name in places:
            found = getattr(importlib.import_module(module), owner, None)
            # Asked of the attribute: what the class holds of a class method has no attributes of its function.
            if found is not None and name in vars(found) and not hasattr(getattr(found, name), "_during"):
                setattr(found, name, _within(during, vars(found)[name]))


def _within(during: Callable[[], AbstractContextManager[None]], member: Any) -> Any:
    """A method, class method or static method that enters `during` for each call."""
    if isinstance(member, classmethod | staticmethod):
        return type(member)(_within(during, member.__func__))
    function: Callable[..., Any] = member

    @functools.wraps(function)
    def taking(*arguments: Any, **options: Any) -> Any:
        with during():
            return function(*arguments, **options)

    taking._during = during  # type: ignore[attr-defined]
    return taking
