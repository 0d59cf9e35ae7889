"""Runners that compile into one folder at the same time do not write into each other's files.

    write_apart()     # in a runner of baselines, before torch.compile is used

Inductor writes what it keeps under the numbers of its process and thread, and then renames it. Every runner is process
2 of a namespace of its own, and threads of forks of one zygote lie at the same addresses, so that all of them write
under one name. Where six compiled a mixture of experts at once on an H100, three of them found that file gone, or read
half of another's; the rest of that panel was then compiled with the device waiting, for 930 s.
"""

from __future__ import annotations

import importlib
import secrets
import sys
import threading
from pathlib import Path
from typing import Any

_CACHE = "torch._inductor.codecache"
_NAME = "write_atomic"


def write_apart() -> None:
    """From now on, wherever Inductor's function was imported already."""
    inductors = vars(importlib.import_module(_CACHE))[_NAME]
    if inductors.__module__ != _CACHE:  # ours
        return
    own = secrets.token_hex(8)

    def write_atomic(path_: str, content: str | bytes, make_dirs: bool = False, encode_utf_8: bool = False) -> None:
        path = Path(path_)
        if make_dirs:
            path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.parent / f".{own}.{threading.get_ident()}.tmp"  # what begins with a dot is read by nobody
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.rename(path)

    for module in list(sys.modules.values()):
        names: dict[str, Any] = getattr(module, "__dict__", {})
        if names.get(_NAME) is inductors:
            names[_NAME] = write_atomic
