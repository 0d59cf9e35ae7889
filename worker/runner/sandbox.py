"""Sandbox levels for hostile code, weakest last, and the self-test that picks one.

* `namespaces`: own user, PID, network, IPC and mount namespace; a fresh root that holds read-only system folders and a
  private tmpfs; no capabilities; seccomp. The whole process tree dies with its first process.
* `landlock`: the host's PIDs and network namespace, but reads and writes confined by Landlock, seccomp, and no socket
  that reaches anybody.
* `process`: another user (when root) and resource limits only.

Where we are root, every candidate is a user of its own, at each level. What no level covers: side channels through
caches and clocks, bugs of the kernel or of the GPU driver, and (below `namespaces`) seeing that other processes exist.
On a GPU, other contexts' memory is protected by the driver alone. docs/sandbox.md has what was tried.

Runs between fork and the candidate, in a process with one thread; everything here is standard library.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from worker.runner import kernel_calls as sys_calls

LEVELS = ("namespaces", "landlock", "process")
NOBODY = 65534
_FIRST_USER = 0x70000000
"""Above all that systemd hands out to people, services and containers."""

SHARED_PROCESSES = 1 << 15
"""What `NOBODY` may have at once: compilers and baselines of all workers of a machine, with their threads."""

# Exit codes of the warden that are not the candidate's own.
EXIT_MEMORY, EXIT_DEADLINE, EXIT_SETUP = 250, 251, 252

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/sys")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/passwd",
                 "/etc/group", "/etc/localtime", "/etc/nsswitch.conf", "/etc/OpenCL", "/etc/nvidia")  # fmt: skip
_TIMES = os.ST_NOATIME | os.ST_NODIRATIME
_MAX_FILES = 100_000
_DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one runner may use."""

    memory_bytes: int = 8 << 30
    """Resident memory of all its processes together."""
    scratch_bytes: int = 1 << 30
    """Private tmpfs, and the largest single file."""
    processes: int = 512 + 32 * (os.cpu_count() or 1)
    """Processes and threads of its user (RLIMIT_NPROC). On 16 cores a runner has 64 threads before it does anything, of
    OpenMP, autograd and pthreadpool: with 512 for ten runners together most honest kernels failed to start."""
    wall_s: float = 600.0
    """Life time of the runner."""
    address_space_bytes: int | None = None
    """RLIMIT_AS; None on a GPU, where CUDA reserves twice the device's memory of address space."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """Everything the warden needs to know to confine one runner."""

    level: str
    limits: Limits = field(default_factory=Limits)
    readable: tuple[str, ...] = ()
    """Folders that the runner may read beside the system's own."""
    writable: tuple[str, ...] = ()
    """Folders that it may write beside its private scratch: none for a candidate."""
    gpu: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Confinement:
        return cls(
            level=data["level"],
            limits=Limits(**data["limits"]),
            readable=tuple(data["readable"]),
            writable=tuple(data["writable"]),
            gpu=data["gpu"],
        )


def python_folders() -> tuple[str, ...]:
    """The folders of this interpreter and its packages, which every runner may read."""
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    folders |= {path for path in sys.path if path.endswith("site-packages")}
    folders |= {path for path in sys.path if (Path(path) / "torch").is_dir()}
    real = {str(Path(folder).resolve()) for folder in folders if Path(folder).is_dir()}
    return tuple(sorted(folders | real))


def enter_namespaces() -> None:
    """First half of level `namespaces`, before the fork that makes the namespace's first process."""
    flags = sys_calls.CLONE_NEWNS | sys_calls.CLONE_NEWPID | sys_calls.CLONE_NEWNET
    flags |= sys_calls.CLONE_NEWIPC | sys_calls.CLONE_NEWUTS
    if os.geteuid() == 0:
        sys_calls.unshare(flags)
        return
    uid, gid = os.geteuid(), os.getegid()
    sys_calls.unshare(flags | sys_calls.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{NOBODY} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{NOBODY} {gid} 1")


def build_root(confinement: Confinement) -> None:
    """Second half: the namespace's first process makes a new root of read-only binds and private tmpfs mounts.

    A new root and not only Landlock, because an interpreter below a folder of mode 700 (a root user's pyenv, say) is
    out of reach after setuid unless its path is bound into a root of our own.
    """
    sys_calls.mount("none", "/", None, sys_calls.MS_REC | sys_calls.MS_PRIVATE)
    sys_calls.mount("tmpfs", "/tmp", "tmpfs", sys_calls.MS_NOSUID, "size=16m,mode=755")
    Path("/tmp/old").mkdir()
    sys_calls.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    _make_dev(gpu=confinement.gpu)
    # An empty file takes 1 KB of kernel memory that `size` does not count.
    scratch = f"size={confinement.limits.scratch_bytes},nr_inodes={_MAX_FILES},mode=1777"
    for folder in ("/tmp", "/dev/shm"):  # before the binds, some of which may lie below /tmp
        Path(folder).mkdir(exist_ok=True)
        sys_calls.mount("tmpfs", folder, "tmpfs", sys_calls.MS_NOSUID | sys_calls.MS_NODEV, scratch)
    for path in confinement.writable:
        _bind(path, writable=True)
    paths = sorted({*_SYSTEM_FOLDERS, *_SYSTEM_FILES, *confinement.readable})
    links = [path for path in paths if Path("/old" + path).is_symlink()]
    for path in (*(path for path in paths if path not in links), *links):
        _bind(path, writable=False)  # /bin may be a link into /usr, which must be bound whole first
    Path("/proc").mkdir(exist_ok=True)
    sys_calls.mount("proc", "/proc", "proc", sys_calls.MS_NOSUID | sys_calls.MS_NODEV)
    sys_calls.detach("/old")
    Path("/old").rmdir()
    sys_calls.mount("none", "/", None, sys_calls.MS_REMOUNT | sys_calls.MS_BIND | sys_calls.MS_RDONLY)
    os.chdir("/tmp")


def _bind(path: str, *, writable: bool) -> None:
    source, target = Path("/old" + path), Path(path)
    if source.is_symlink():
        _copy_link(source, target)
        return
    if target.exists() or not source.exists():
        return  # already visible through a parent: callers bind parents first
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    sys_calls.mount(str(source), path, None, sys_calls.MS_BIND | sys_calls.MS_REC)
    if not writable:
        _make_read_only(path)


def _make_read_only(path: str) -> None:
    """The mount at `path` and all below it."""
    try:
        sys_calls.make_read_only(path)
    except OSError as refused:
        if refused.errno not in (errno.ENOSYS, errno.EPERM):  # Linux before 5.12, or a container's own filter
            raise
        for mounted in (path, *_mounts_below(path)):
            flags = sys_calls.MS_BIND | sys_calls.MS_REMOUNT | sys_calls.MS_RDONLY | _locked_flags(mounted)
            sys_calls.mount("none", mounted, None, flags)


def _mounts_below(path: str) -> list[str]:
    points = [line.split()[4] for line in Path("/old/proc/self/mountinfo").read_text().splitlines()]
    # By hand: no codec can be loaded here, where the interpreter's folder may not be there any more.
    plain = [point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\") for point in points]
    return [point for point in dict.fromkeys(plain) if point.startswith(path + "/")]


def _copy_link(source: Path, target: Path) -> None:
    destination = source.readlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink() and not target.exists():
        target.symlink_to(destination)
    absolute = destination if destination.is_absolute() else target.parent / destination
    _bind(os.path.normpath(absolute), writable=False)


def _locked_flags(path: str) -> int:
    """Flags that an unprivileged remount must keep (EPERM otherwise). statvfs names them as mount(2) does."""
    return os.statvfs(path).f_flag & (sys_calls.MS_NOSUID | sys_calls.MS_NODEV | sys_calls.MS_NOEXEC | _TIMES)


def _make_dev(*, gpu: bool) -> None:
    Path("/dev").mkdir(exist_ok=True)
    sys_calls.mount("tmpfs", "/dev", "tmpfs", sys_calls.MS_NOSUID, "size=1m,mode=755")
    names = list(_DEVICES)
    if gpu:
        names += [path.name for path in Path("/old/dev").iterdir() if path.name.startswith("nvidia")]
    for name in names:
        source, target = Path("/old/dev") / name, Path("/dev") / name
        if source.is_dir():
            target.mkdir()
        elif source.exists():
            target.touch()
        else:
            continue
        sys_calls.mount(str(source), str(target), None, sys_calls.MS_BIND | sys_calls.MS_REC)
    Path("/dev/fd").symlink_to("/proc/self/fd")
    Path("/dev/shm").mkdir()


def hand_over(folder: Path) -> None:
    """Give a folder to the user that confined processes run as. Nothing to do unless we are root."""
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)


def private_scratch(user: int) -> str:
    """A scratch folder for the levels without a mount namespace. The warden removes it."""
    folder = tempfile.mkdtemp(prefix="kernelwright-")
    if os.geteuid() == 0:
        os.chown(folder, user, NOBODY)
    os.chdir(folder)
    return folder


def lone_user(confinement: Confinement) -> int:
    """The user of the warden that calls this, where we are root: one for itself.

    Users own limits and signals: with one for all, a candidate's fork bomb would take the processes of every other, and
    below `namespaces` it could stop and trace the others, baselines too. What writes to a folder of ours is `NOBODY`.
    """
    user = _FIRST_USER + os.getpid()
    return NOBODY if confinement.writable or not _exists(user) else user


def _exists(user: int) -> bool:
    """Whether this user namespace has the user at all: a container's may be few."""
    lines = [[int(field) for field in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(first <= user < first + count for first, _outside, count in lines)


def _devices() -> list[str]:
    """What Landlock lets a runner write below /dev: no terminal is among it."""
    names = (*_DEVICES, "shm", *(path.name for path in Path("/dev").glob("nvidia*")))
    return [f"/dev/{name}" for name in names]


def confine(confinement: Confinement, scratch: str, user: int = NOBODY) -> None:
    """Last step, in the process that will run the candidate: limits, user, Landlock, seccomp. There is no way back."""
    _set_limits(confinement.limits)
    ruleset = None
    if confinement.level == "landlock":  # opened before the change of user, which may lock us out of a parent folder
        readable = [*_SYSTEM_FOLDERS, *_SYSTEM_FILES, *confinement.readable, "/proc"]
        ruleset = sys_calls.landlock_ruleset(readable, [scratch, *_devices(), *confinement.writable])
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(user, user, user)
    sys_calls.prctl(sys_calls.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user clears it
    with contextlib.suppress(OSError):
        sys_calls.drop_capabilities()
    sys_calls.prctl(sys_calls.PR_SET_NO_NEW_PRIVS, 1)
    if ruleset is not None:
        sys_calls.landlock_restrict(ruleset)
    if confinement.level != "process":
        sys_calls.seccomp(connects=confinement.level == "namespaces")


def _set_limits(limits: Limits) -> None:
    chosen = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits.scratch_bytes,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_MEMLOCK: 64 << 20,
        resource.RLIMIT_RTPRIO: 0,  # the judge's samplers may go before others, a candidate may not
    }
    if limits.address_space_bytes is not None:
        chosen[resource.RLIMIT_AS] = limits.address_space_bytes
    for which, wanted in chosen.items():
        _soft, hard = resource.getrlimit(which)
        bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(which, (bound, bound))


# --- self-test ------------------------------------------------------------------------------------------------------


def best_level() -> str:
    """The strongest level that works here, found by trying: each is entered in a child that then attempts an escape."""
    return next(level for level in LEVELS if level == "process" or _works(level))


def _works(level: str) -> bool:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with contextlib.suppress(OSError):
                code = _probe(level)
        finally:  # whatever happens, this child must not go on as a second parent
            os._exit(code)
    _pid, status = os.waitpid(child, 0)
    return status == 0


def _probe(level: str) -> int:
    confinement = Confinement(level=level)
    if level == "namespaces":
        enter_namespaces()
        inner = os.fork()
        if inner:
            return os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
        code = 1
        try:
            with contextlib.suppress(OSError):
                build_root(confinement)
                confine(confinement, "/tmp")
                code = _escape_attempts()
        finally:
            os._exit(code)
    scratch = tempfile.gettempdir()
    confine(confinement, scratch)
    return _escape_attempts()


def _escape_attempts() -> int:
    """0 when writing to the system and opening a network socket are both refused, otherwise what got through."""
    with contextlib.suppress(OSError):
        Path("/usr/.kernelwright-escape").write_text("x")
        return 2
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM):
        return 3
    return 0
