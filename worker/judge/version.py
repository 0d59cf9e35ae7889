"""Which judge this is: a hash over its code. What one version found is not what the next would find.

Needs neither torch nor anything else of ours, so that a process that only talks to the judge can ask.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path


@functools.cache
def judge_hash() -> str:
    """SHA-256, in hex, over the names and sources of every module of the judge and the runner."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[1]
    for path in sorted(path for folder in ("judge", "runner") for path in (root / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
