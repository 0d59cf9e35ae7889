"""What measures on a GPU, or first runs, while a baseline is compiled asks for the device and has it alone meanwhile.

    take_turns(control)     # in a runner of baselines, before torch.compile is used

Inductor times a kernel's configurations once and keeps the fastest for all later processes. Timed beside other judges'
work, stopped in the middle of it, the sum of columns got one that took 3.1 ms where 0.3 were possible (H200): a
baseline that nobody has to beat. All else that compilers do needs no device, and goes on while others are timed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from worker.runner import protocol

_PLACES = (
    ("torch._inductor.output_code", "CompiledFxGraph", "__call__"),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "autotune_to_one_config"),
    ("torch._inductor.select_algorithm", "AlgorithmSelectorCache", "benchmark_in_current_process"),
    ("torch._inductor.runtime.benchmarking", "TritonBenchmarker", "benchmark_gpu"),
    ("torch._inductor.runtime.benchmarking", "InductorBenchmarker", "benchmark_gpu"),
)
"""Calls of what was compiled, which time configurations at first; choices between templates; timings of any kind."""


class Turns:
    """This runner's turns on the device; one within another is part of it, and so is what other threads do meanwhile:
    those of an autotuner ask as well."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._depth = 0

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the device, have it alone, and give it back when all work on it is done."""
        with self._lock:
            if not self._depth:
                protocol.send_message(self._control, {"turn": True})
                protocol.receive_message(self._control)
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if not self._depth:
                    if torch.cuda.is_available():
                        torch.cuda.synchronize()
                    protocol.send_message(self._control, {"turn": False})


def take_turns(control: socket.socket) -> None:
    """From now on. What this version of torch does not have is left out."""
    turns = Turns(control)
    for module, owner, name in _PLACES:
        found = getattr(importlib.import_module(module), owner, None)
        # Asked of the attribute, not of what the class holds: a class method has no attributes of its function there.
        if found is not None and name in vars(found) and not hasattr(getattr(found, name), "_turns"):
            setattr(found, name, _in_turn(turns, vars(found)[name]))


def _in_turn(turns: Turns, member: Any) -> Any:
    """A method, class method or static method that takes a turn."""
    if isinstance(member, classmethod | staticmethod):
        return type(member)(_in_turn(turns, member.__func__))
    function: Callable[..., Any] = member

    @functools.wraps(function)
    def taking(*arguments: Any, **options: Any) -> Any:
        with turns.turn():
            return function(*arguments, **options)

    taking._turns = turns  # type: ignore[attr-defined]
    return taking
