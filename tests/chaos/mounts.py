"""Mounts that only this process and its children see: small disks that can be filled, and a /dev/shm of our own.

Needs the right to mount (root, or a user namespace that has it); without it nothing here does anything.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_MNT_DETACH = 2
_SHARED_MB = 1024
_mine = False


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def enter_own_mounts() -> bool:
    """Leave the mounts of everybody; call it before any thread is started. False where that is not allowed."""
    global _mine
    libc = _libc()
    _mine = (
        libc.unshare(_CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        and mount_memory(Path("/dev/shm"), _SHARED_MB)
    )
    return _mine


def in_own_mounts() -> bool:
    """Whether that was done."""
    return _mine


def mount_memory(folder: Path, megabytes: int) -> bool:
    """A file system of so many megabytes on the folder."""
    options = f"size={megabytes}m,mode=1777".encode()
    return bool(_libc().mount(b"chaos", os.fsencode(folder), b"tmpfs", 0, options) == 0)


def unmount(folder: Path) -> None:
    """Take it away, whoever still uses it."""
    _libc().umount2(os.fsencode(folder), _MNT_DETACH)
