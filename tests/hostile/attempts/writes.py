"""Writes: caches and packages that others run, settings of the machine, and files reached through links."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hostile.attempt import Attempt
from tests.hostile.traps import Planted, Secret, Told
from worker.runner.sandbox import NOBODY

if TYPE_CHECKING:
    from tests.hostile.ground import Ground

_WRITE = 'open(T["path"], "w").write("escaped")'
_MAKE = 'os.mkdir(T["path"])'
_PACKAGES = Path(next(path for path in sys.path if path.endswith("site-packages")))
_GROUPS = Path("/sys/fs/cgroup")


def _group() -> Path:
    """A folder of the control groups in which a group can be made by its owner."""
    return next((path for path in (_GROUPS / "unified", _GROUPS / "cpu", _GROUPS) if path.is_dir()), _GROUPS)


class Home(Planted):
    """Below the judge's home, in a folder of its own."""

    def __init__(self, ground: Ground, name: str, mode: int, user: int | None = None) -> None:
        super().__init__(ground, ground.home / name, mode, user)


class PublicFolder(Planted):
    """A folder of the host's that every user may write to, as /tmp is."""

    def __init__(self, ground: Ground) -> None:
        ground.home.mkdir(exist_ok=True)
        super().__init__(ground, ground.home, 0o1777)


def _opens(*paths: str) -> str:
    """Opens for writing and writes nothing: what would follow is not for a test."""
    return "".join(
        f"""
try:
    os.open({path!r}, os.O_WRONLY)
    told()
except OSError:
    pass
"""
        for path in paths
    )


ATTEMPTS = (
    Attempt("write-site-packages", "writes", "puts a file among the Python packages", _WRITE,
            partial(Planted, folder=_PACKAGES)),
    Attempt("write-system", "writes", "puts a file into /usr/lib", _WRITE, partial(Planted, folder=Path("/usr/lib"))),
    Attempt("write-etc", "writes", "puts a file into /etc", _WRITE, partial(Planted, folder=Path("/etc"))),
    Attempt("write-build-cache", "writes", "puts an artefact into the build cache", _WRITE,
            partial(Home, name="builds", mode=0o755)),
    Attempt("write-triton-cache", "writes", "puts a kernel into the Triton cache of the worker's user", _WRITE,
            partial(Home, name="triton", mode=0o755)),
    Attempt("write-baselines-cache", "writes", "puts code into the compile cache of the baselines' runner", _WRITE,
            partial(Home, name="baselines", mode=0o755, user=NOBODY)),
    Attempt("write-public-folder", "writes", "puts a file into a folder that every user may write to", _WRITE,
            PublicFolder, {"process": "folders that every user of the machine may write to"}),
    Attempt("make-control-group", "writes", "makes a control group", _MAKE, partial(Planted, folder=_group())),
    Attempt("make-control-group-below", "writes", "makes a control group below one that its user owns, as systemd gives"
            " to each user", _MAKE, partial(Planted, folder=_group(), mode=0o777),
            {"process": "control groups that its user may write to"}),
    Attempt("write-proc-sys", "writes", "changes settings of the kernel",
            _opens("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger",
                   "/proc/sys/kernel/randomize_va_space", "/proc/self/oom_score_adj/../../1/oom_score_adj"), Told),
    Attempt("write-sys", "writes", "changes settings of the machine below /sys",
            _opens("/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state", "/sys/kernel/profiling"), Told),
    Attempt("write-preload", "writes", "opens what every program loads or runs",
            _opens("/etc/ld.so.preload", "/etc/passwd", "/etc/ld.so.cache", "/usr/bin/env"), Told),
    Attempt("remount", "writes", "remounts its root writable", """
if libc.mount(b"none", b"/", None, 32 | 4096, None) == 0 or libc.mount(b"none", b"/usr", None, 32 | 4096, None) == 0:
    told()
""", Told),
    Attempt("clear-read-only", "writes", "clears the read-only flag by mount_setattr", """
attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
if call(442, -100, b"/", 0x8000, attributes, 32) == 0:
    told()
""", Told, control=False),
    Attempt("write-through-symlink", "writes", "leads whoever cleans its scratch to another folder by a symlink",
            'os.symlink(T["folder"], "deeper")\nos.symlink(T["path"], "file")', Secret, control=False),
    Attempt("hard-link", "writes", "links another user's file into its scratch",
            'os.link(T["path"], "linked")\nprint(read("linked"), flush=True)', partial(Secret, mode=0o600)),
    Attempt("change-mode", "writes", "opens a private file of the worker to all",
            'os.chmod(T["path"], 0o666)\nprint(read(T["path"]), flush=True)', partial(Secret, mode=0o600)),
)  # fmt: skip
