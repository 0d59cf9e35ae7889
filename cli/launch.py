"""The last step before a child program: tie its life to ours, give it the right identity, then exec.

Run as `python -I -S cli/launch.py --parent PID [--death-signal N] [--identity self|mapped|dropped] [--uid N --gid N]
-- PROGRAM ARG…`.
Standard library only, and no import of our own packages: it starts in about 20 ms and may run under any identity.

Identities (PostgreSQL refuses to run as root, and a root's home is usually closed to everybody else):
  self     keep the caller's.
  mapped   a user namespace that maps `uid`/`gid` to the caller's own: the program sees an ordinary user, the files stay
           the caller's, and no folder has to be opened to others.
  dropped  where user namespaces are refused (a container's default seccomp profile): become `uid`/`gid` for real, and
           keep CAP_DAC_OVERRIDE alone, so that a 0700 folder above the program or its data is no obstacle.

The order matters: a change of credentials clears the parent-death signal, so that one is set last.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

EXIT_REFUSED = 71
"""Exit status when the identity or the program cannot be had (EX_OSERR); stderr says why."""

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION_3 = 0x20080522


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def map_identity(uid: int, gid: int) -> None:
    """Enter a new user namespace in which the caller is `uid`:`gid`. Raises OSError where the kernel refuses."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _check(_libc().unshare(_CLONE_NEWUSER), "unshare(CLONE_NEWUSER)")
    Path("/proc/self/setgroups").write_text("deny")  # the kernel's condition for an unprivileged gid_map
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1")


def drop_identity(uid: int, gid: int) -> None:
    """Become `uid`:`gid` for real, keeping CAP_DAC_OVERRIDE alone across exec. Raises OSError when refused."""
    libc = _libc()
    _check(libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl(PR_SET_KEEPCAPS)")
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    mask = 1 << _CAP_DAC_OVERRIDE
    # two words each of effective, permitted, inheritable
    data = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    _check(libc.capset(header, data), "capset")
    _check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0), "prctl(PR_CAP_AMBIENT)")


def die_with_parent(parent: int, death_signal: int) -> None:
    """Ask the kernel for `death_signal` when the thread that started us ends; leave at once if it already has."""
    if sys.platform != "linux":
        return
    _check(_libc().prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _restore_signals() -> None:
    """Undo what an interpreter, or a supervisor that blocks signals, hands down through exec."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split at the first `--` by hand: argparse would also look at the program's own arguments."""
    cut = list(argv).index("--")
    parser = argparse.ArgumentParser(description="Start a program whose life is tied to the caller's.")
    parser.add_argument("--parent", type=int, required=True, help="pid that must still be our parent")
    parser.add_argument("--death-signal", type=int, default=int(signal.SIGKILL))
    parser.add_argument("--identity", choices=("self", "mapped", "dropped"), default="self")
    parser.add_argument("--uid", type=int, default=65534)
    parser.add_argument("--gid", type=int, default=65534)
    return parser.parse_args(argv[:cut]), list(argv[cut + 1 :])


def main(argv: Sequence[str]) -> int:
    """Become the program; returns only when that is refused."""
    options, program = _parse(argv)
    _restore_signals()
    try:
        if options.identity == "mapped":
            map_identity(options.uid, options.gid)
        elif options.identity == "dropped":
            drop_identity(options.uid, options.gid)
        die_with_parent(options.parent, options.death_signal)
        os.execvp(program[0], program)
    except OSError as error:
        sys.stderr.write(f"cannot start {program[0]}: {error}\n")
    return EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
