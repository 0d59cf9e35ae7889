"""The Linux system calls that the standard library does not offer on Python 3.11, as thin typed wrappers.

Each raises OSError with the call's name. Numbers are those of x86-64; `Unsupported` elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 1, 22, 38, 36

CLONE_NEWCGROUP, CLONE_NEWTIME = 0x02000000, 0x00000080
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{call}: {os.strerror(errno)}")
    return result


def unshare(flags: int) -> None:
    """Leave the shared namespaces named by `flags`."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    options = None if data is None else data.encode()
    _checked(_libc.mount(*encoded, ctypes.c_ulong(flags), options), f"mount {target}")


def make_read_only(target: str) -> None:
    """`target` and every mount below it (Linux 5.12): a plain remount leaves what is mounted below as it was, and
    below /sys that is the cgroup tree, of which a part may belong to us."""
    wanted = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, 0, 0, 0)
    flags, size = ctypes.c_uint(_AT_RECURSIVE), ctypes.c_size_t(len(wanted))
    result = _libc.syscall(442, ctypes.c_int(_AT_FDCWD), os.fsencode(target), flags, wanted, size)
    _checked(result, f"mount_setattr {target}")


def detach(target: str) -> None:
    """Lazily unmount `target`."""
    _checked(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """Make `new_root` the root of this mount namespace, the former one visible at `put_old`."""
    _checked(_libc.syscall(155, os.fsencode(new_root), os.fsencode(put_old)), "pivot_root")


def prctl(option: int, argument: int = 0) -> None:
    """prctl(2) with one integer argument."""
    _checked(_libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0), f"prctl {option}")


def drop_capabilities() -> None:
    """Give up every capability of this process, for good together with PR_SET_NO_NEW_PRIVS."""
    header = struct.pack("Ii", 0x20080522, 0)
    _checked(_libc.syscall(126, header, bytes(24)), "capset")


# --- Landlock -------------------------------------------------------------------------------------------------------

_LANDLOCK_READ_EXECUTE = (1 << 0) | (1 << 2) | (1 << 3)  # execute, read file, read directory
_LANDLOCK_ALL_ABI1 = (1 << 13) - 1
_LANDLOCK_TCP = 0b11  # bind and connect, from ABI 4
_LANDLOCK_SCOPES = 0b11  # abstract Unix sockets and signals of processes outside, from ABI 6


def landlock_abi() -> int:
    """The Landlock version of this kernel, 0 without Landlock."""
    version = _libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(0, int(version))


def landlock_ruleset(readable: list[str], writable: list[str]) -> int:
    """Rules that allow reading `readable` and writing below `writable`, and no TCP where the kernel knows it."""
    abi = landlock_abi()
    if abi < 1:
        raise OSError(0, "landlock: this kernel has none")
    handled = _LANDLOCK_ALL_ABI1 | ((1 << 13) if abi >= 2 else 0) | ((1 << 14) if abi >= 3 else 0)
    parts = [handled, *([_LANDLOCK_TCP] if abi >= 4 else []), *([_LANDLOCK_SCOPES] if abi >= 6 else [])]
    attributes = struct.pack(f"{len(parts)}Q", *parts)
    ruleset = _checked(_libc.syscall(444, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock_create_ruleset")
    file_rights = _LANDLOCK_READ_EXECUTE & ~(1 << 3) | (1 << 1) | ((1 << 14) if abi >= 3 else 0)
    for paths, rights in ((readable, _LANDLOCK_READ_EXECUTE), (writable, handled)):
        for path in paths:
            _add_path(ruleset, path, rights, file_rights)
    return ruleset


def landlock_restrict(ruleset: int) -> None:
    """Restrict this process to a ruleset, for good. Needs PR_SET_NO_NEW_PRIVS."""
    _checked(_libc.syscall(446, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _add_path(ruleset: int, path: str, rights: int, file_rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)  # the one open(2) flag set that Path cannot express
    except FileNotFoundError:
        return
    if not os.path.isdir(path):  # noqa: PTH112 - this module runs between fork and exec-like hand-over: keep it lean
        rights &= file_rights
    rule = struct.pack("=Qi", rights, fd)
    _checked(_libc.syscall(445, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
    os.close(fd)


# --- seccomp --------------------------------------------------------------------------------------------------------

# Calls that a kernel never needs and an attack does: x86-64 numbers.
_REFUSED = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321, "perf_event_open": 298,
    "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "mount": 165,
    "umount2": 166, "pivot_root": 155, "chroot": 161, "setns": 308, "unshare": 272, "keyctl": 250, "add_key": 248,
    "request_key": 249, "kexec_load": 246, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "reboot": 169, "swapon": 167, "swapoff": 168, "open_by_handle_at": 304, "name_to_handle_at": 303,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "mount_setattr": 442, "pidfd_getfd": 438, "pidfd_open": 434, "acct": 163, "quotactl": 179, "settimeofday": 164,
    "clock_settime": 227, "kcmp": 312, "lookup_dcookie": 212, "fanotify_init": 300, "syslog": 103,
    "kexec_file_load": 320,
}  # fmt: skip

# Memory that belongs to no process and no tmpfs of the sandbox, so that no limit of ours sees it: 1,000 memfds of 2 GB
# each fill the machine. "Not implemented" makes libraries fall back on files.
_UNKNOWN = {"memfd_create": 319, "memfd_secret": 447, "shmget": 29, "msgget": 68, "semget": 64, "mq_open": 240,
            "clone3": 435, "timer_create": 222}  # fmt: skip
"""clone3 and timer_create too: the flags of one and the signal of the other lie in memory, out of a filter's reach. The
C library then uses clone; CUDA's driver, torch, its compiler and CUPTI do without such timers (seen on an H200)."""

_CLONE, _IOCTL, _SOCKET, _CONNECT, _SOCKETPAIR, _FCNTL, _PRCTL = 56, 16, 41, 42, 53, 72, 157
_SIGCONT, _F_SETSIG, _SIGNAL_MASK = 18, 10, 0xFF
_SENDS = {"kill": (62, 1), "tkill": (200, 1), "tgkill": (234, 2), "rt_sigqueueinfo": (129, 1),
          "rt_tgsigqueueinfo": (297, 2), "pidfd_send_signal": (424, 1)}  # fmt: skip
"""System calls that send a signal, and which of their arguments (from 0) it is. SIGCONT is refused: it would set going
what the judge has stopped while others are timed, and no kernel stops itself."""
_AF_UNIX, _SOCK_DGRAM, _TYPE_MASK = 1, 2, 0xF
_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
) | CLONE_NEWTIME
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type on somebody's terminal
_LOAD, _EQUAL, _AND, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x54, 0x45, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
_EPERM, _ENOSYS = 1, 38


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def _fail(error: int) -> bytes:
    return _step(_RETURN, 0x00050000 | error)


_ALLOW, _KILL = _step(_RETURN, 0x7FFF0000), _step(_RETURN, 0x80000000)


def _when(number: int, *steps: bytes) -> list[bytes]:
    """`steps` for one system call. They end in an answer, or go on with the accumulator in whatever state."""
    return [_step(_LOAD, _NUMBER), _step(_EQUAL, number, 0, len(steps)), *steps]


def _no_continuing() -> list[bytes]:
    """What sends SIGCONT, or arranges that the kernel does: when a descriptor is ready, a child ends or a parent."""
    program: list[bytes] = []
    for number, place in _SENDS.values():
        program += _when(number, _step(_LOAD, _FIRST + 8 * place), _step(_EQUAL, _SIGCONT, 0, 1), _fail(_EPERM))
    program += _when(_FCNTL, _step(_LOAD, _SECOND), _step(_EQUAL, _F_SETSIG, 0, 1), _fail(_EPERM))
    at_exit = (_step(_LOAD, _FIRST), _step(_AND, _SIGNAL_MASK), _step(_EQUAL, _SIGCONT, 0, 1), _fail(_EPERM))
    program += _when(_CLONE, *at_exit)
    with_parent = (_step(_LOAD, _SECOND), _step(_EQUAL, _SIGCONT, 0, 1), _fail(_EPERM))
    return program + _when(_PRCTL, _step(_LOAD, _FIRST), _step(_EQUAL, PR_SET_PDEATHSIG, 0, 3), *with_parent)


def _filter(*, connects: bool) -> list[bytes]:
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, 0xC000003E, 1, 0),
        _KILL,
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, 0x40000000, 0, 1),  # x32 numbers would sidestep the table
        _KILL,
    ]
    for numbers, error in ((_REFUSED, _EPERM), (_UNKNOWN, _ENOSYS)):
        for number in numbers.values():
            program += [_step(_EQUAL, number, 0, 1), _fail(error)]
    program += _when(_CLONE, _step(_LOAD, _FIRST), _step(_ANY_BIT, _NAMESPACES, 0, 1), _fail(_EPERM))
    for request in _TERMINAL_INPUT:
        program += _when(_IOCTL, _step(_LOAD, _SECOND), _step(_EQUAL, request, 0, 1), _fail(_EPERM))
    program += _when(_SOCKET, _step(_LOAD, _FIRST), _step(_EQUAL, _AF_UNIX, 1, 0), _fail(_EPERM))
    program += _no_continuing()
    if not connects:
        datagrams = (_step(_LOAD, _SECOND), _step(_AND, _TYPE_MASK), _step(_EQUAL, _SOCK_DGRAM, 0, 1), _fail(_EPERM))
        program += _when(_CONNECT, _fail(_EPERM)) + _when(_SOCKET, *datagrams) + _when(_SOCKETPAIR, *datagrams)
    return [*program, _ALLOW]


def seccomp(*, connects: bool = True) -> None:
    """Refuse the calls above, new namespaces, every new socket that is not a Unix one, and SIGCONT.

    Without `connects` no socket reaches anybody but through a pair: for where the host's Unix sockets can be seen,
    since Landlock does not speak for those that have a path.
    """
    program = _filter(connects=connects)
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    _checked(_libc.prctl(PR_SET_SECCOMP, 2, ctypes.c_char_p(header), 0, 0), "seccomp")
