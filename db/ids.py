"""Identifiers: a type prefix and a UUIDv7, so that an id says what it names and sorts by the time it was made."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Literal

Prefix = Literal[
    "job",
    "cand",
    "eval",
    "work",
    "call",
    "worker",
    "kernel",
    "adm",
    "cert",
    "key",
    "request",
    "lesson",
    "tune",
    "webhook",
    "delivery",
]

_lock = threading.Lock()
_last = 0


def new_id(prefix: Prefix) -> str:
    """A fresh id such as `job_019a…` (prefix, underscore, 32 hex digits).

    Ids made by one process are strictly increasing: the 12 bits after the timestamp count up within a millisecond.
    """
    global _last
    with _lock:
        _last = max(time.time_ns() // 1_000_000 << 12, _last + 1)
        stamp = _last
    milliseconds, counter = stamp >> 12, stamp & 0xFFF
    value = (milliseconds << 80) | (0x7 << 76) | (counter << 64) | (0b10 << 62) | secrets.randbits(62)
    return f"{prefix}_{value:032x}"
