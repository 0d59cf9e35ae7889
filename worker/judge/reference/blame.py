"""Running a user's reference: whatever goes wrong becomes one sentence that names the line.

References run in the judge's process, which trusts them not to attack it, but they are often wrong: they loop, they
download, they want more memory than there is. So while one runs, a clock runs too, and network connections are refused.
"""

from __future__ import annotations

import contextvars
import dis
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch

from worker.judge.verdict import ReferenceFailed, ReferenceFull

FILE = "<reference>"
"""The file name under which references are compiled: it marks their frames."""
LIMIT_S = 120.0
"""For one call into a reference. The slowest bundled one takes 2 s; a loop without end takes this."""

_NETWORK = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"})
_guarded: contextvars.ContextVar[bool] = contextvars.ContextVar("guarded", default=False)
_hooked = False


class _NetworkRefused(Exception):
    """A reference opened a network connection."""


class _TooSlow(BaseException):
    """A reference ran past its limit. No Exception, so that no `except Exception` of a reference swallows it."""


@contextmanager
def blame(what: str, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Turn whatever a reference raises into one sentence with its line: "line 7: forward failed: ...".

    Raises ReferenceFailed for every failure, and when the body takes longer than `limit_s` (in the main thread, as
    signals go there) or opens a network connection; ReferenceFull where a device had no memory left, which may be
    others' doing: four problems that were given up for it on an H100 had all run there before.
    """
    token = _guard_network()
    try:
        with _limited(limit_s):
            yield
    except ReferenceFailed:
        raise
    except _NetworkRefused as refused:
        raise ReferenceFailed(
            f"{_line(refused)}{what}: it opens a network connection ({refused}); a problem must hold all that it needs"
        ) from refused
    except _TooSlow as slow:
        raise ReferenceFailed(f"{_line(slow)}{what}: it was not done within {limit_s:g} s") from slow
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - a user's file may raise anything
        raise _refusal(failure, what) from failure
    finally:
        _guarded.reset(token)


def return_line(call: Any) -> str:
    """ "line 12: " for the last `return` of a model's forward in a reference, or nothing when it is not in the file."""
    code: CodeType | None = getattr(getattr(type(call), "forward", None), "__code__", None)
    if code is None or code.co_filename != FILE:
        return ""
    lines = [found.positions.lineno for found in dis.get_instructions(code)
             if found.opname.startswith("RETURN") and found.positions]  # fmt: skip
    return f"line {max(line or 0 for line in lines) or code.co_firstlineno}: " if lines else ""


def _line(failure: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(failure.__traceback__) if frame.filename == FILE]
    return f"line {lines[-1]}: " if lines else ""


def _refusal(failure: BaseException, what: str) -> ReferenceFailed:
    """What to raise. Neither torch's allocator on a CPU nor CUDA's calls have an error of their own for full memory."""
    text = str(failure)
    full = f"{_line(failure)}{what}: it needs more memory than there is: {_short(failure)}"
    if isinstance(failure, torch.OutOfMemoryError) or "CUDA error: out of memory" in text:
        return ReferenceFull(full)
    if isinstance(failure, MemoryError) or "can't allocate memory" in text:
        return ReferenceFailed(full)
    return ReferenceFailed(f"{_line(failure)}{what}: {type(failure).__name__}: {failure}")


def _short(failure: BaseException) -> str:
    """The part of an allocator's message that names the size."""
    first = str(failure).strip().splitlines()
    return first[-1 if len(first) < 2 else 0][-200:] if first else type(failure).__name__


def _guard_network() -> contextvars.Token[bool]:
    global _hooked
    if not _hooked:  # audit hooks cannot be taken away again, so there is one for the whole process
        sys.addaudithook(_refuse_network)
        _hooked = True
    return _guarded.set(True)


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _NETWORK and _guarded.get():
        where = arguments[1] if event == "socket.connect" else arguments[0]
        if event == "socket.connect" and not isinstance(where, tuple):
            return  # a Unix socket, as multiprocessing uses
        raise _NetworkRefused(str(where[0] if isinstance(where, tuple) else where))


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Raise _TooSlow in the main thread after `limit_s`. A timer that was running goes on afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlow

    before: Callable[[int, FrameType | None], Any] | int | None = signal.signal(signal.SIGALRM, stop)
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)
        signal.signal(signal.SIGALRM, before)
