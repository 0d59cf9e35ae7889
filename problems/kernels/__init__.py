"""The certified kernels that come with Kernelwright: dumps of the jobs that found them.

They are called `<problem>.<hardware>.<language>.gz`. `kernelwright load` puts them into a database, `kernelwright up`
does so when it starts, and `make bench-gpu` finds them anew.
"""

from __future__ import annotations

from pathlib import Path


def bundled_kernels() -> list[Path]:
    """The files, by name."""
    return sorted(Path(__file__).parent.glob("*.gz"))
