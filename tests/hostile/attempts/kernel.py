"""The kernel's own doors: namespaces, mounts, tracing, keys, terminals, modules, other numberings of system calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.hostile.attempt import Attempt
from tests.hostile.traps import Told, token

if TYPE_CHECKING:
    from tests.hostile.ground import Ground

_NO_FILTER = {"process": "no filter of system calls"}


def _gets(number: int, *arguments: str, before: str = "") -> str:
    return f"{before}\nif call({', '.join(map(str, (number, *arguments)))}) >= 0:\n    told()\n"


def _permitted(number: int, *arguments: str) -> str:
    """With arguments that no kernel accepts: any other answer than "not permitted" shows that it would have worked."""
    return f"""
import errno
call({", ".join(map(str, (number, *arguments)))})
if ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EACCES):
    told()
"""


class Terminal:
    """A terminal on which somebody works."""

    def __init__(self, _ground: Ground) -> None:
        self._master, self._slave = os.openpty()
        os.set_blocking(self._master, False)
        os.set_blocking(self._slave, False)
        self._token = token()
        self.targets: dict[str, str | int] = {"path": os.ttyname(self._slave), "token": self._token}

    def seen(self, log: str) -> str:
        for end, what in ((self._master, "something was written to it"), (self._slave, "something was typed on it")):
            try:
                if os.read(end, 100):
                    return what
            except BlockingIOError:
                pass
        return "the call succeeded" if self._token in log else ""

    def close(self) -> None:
        os.close(self._master)
        os.close(self._slave)


class SessionKey:
    """A secret in the session keyring of the judge, which its children inherit."""

    def __init__(self, _ground: Ground) -> None:
        import ctypes

        self._libc, self._secret, name = ctypes.CDLL(None), token(), token()
        self._key = self._libc.syscall(248, b"user", name.encode(), self._secret.encode(), len(self._secret), -3)
        self._libc.syscall(250, 5, self._key, 0x3F3F3F3F)  # KEYCTL_SETPERM: whoever possesses or finds it
        self.targets: dict[str, str | int] = {"name": name, "length": len(self._secret)}

    def seen(self, log: str) -> str:
        return "the secret was printed" if self._secret in log else ""

    def close(self) -> None:
        self._libc.syscall(250, 3, self._key)


_CLONED = """
# A child in a user namespace of its own has every capability there: the way into most holes of the kernel.
pid = call({number}, {arguments})
if pid == 0:
    os._exit(0)
if pid > 0:
    os.waitpid(pid, 0)
    told()
"""
_COMPAT = r'''
from kernelwright import load_cpp
SOURCE = """
extern "C" void own_number(int* found) {
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20) : "memory");  // getpid of the 32-bit table
    *found = result;
}
"""
import torch
found = torch.zeros(1, dtype=torch.int32)
load_cpp(SOURCE).own_number(found)
if int(found) == os.getpid():
    told()
'''
_SETUID = """
os.setuid(0)
told()
"""
_SUID_PROGRAM = """
import glob
for program in glob.glob("/usr/bin/su") + glob.glob("/usr/bin/newgrp") + glob.glob("/usr/bin/mount"):
    found = subprocess.Popen([program, "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if "NoNewPrivs:\\t0" in read(f"/proc/{found.pid}/status"):
        told()
    found.wait()
"""
_CAPABILITIES = """
status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
if int(status["CapEff"], 16) or int(status["CapPrm"], 16):
    told()
"""
_SETNS = """
for kind in ("net", "mnt", "pid", "user"):
    for pid in (1, os.getppid(), T["zygote"]):
        try:
            if call(308, os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY), 0) == 0:
                told()
        except OSError:
            pass
"""


_TIMER = """
import struct
timer, event = ctypes.c_void_p(), struct.pack("Qii48x", 0, 18, 0)
if libc.timer_create(1, event, ctypes.byref(timer)) == 0:
    told()
"""
_CONTINUES = """
import errno
me, information = os.getpid(), (ctypes.c_int32 * 32)(18, 0, -1)
for way in (
    (62, me, 18), (200, me, 18), (234, me, me, 18), (129, me, 18, information), (297, me, me, 18, information),
    (424, -1, 18, None, 0),  # no such process: refused before the kernel looks
):
    if call(*way) >= 0 or ctypes.get_errno() != errno.EPERM:
        told()
"""
_CONTINUED = """
import fcntl
reader, writer = os.pipe()
try:
    fcntl.fcntl(reader, 10, 18)  # F_SETSIG
    told()
except PermissionError:
    pass
if libc.prctl(1, 18, 0, 0, 0) == 0:
    told()
pid = call(56, 18, 0, 0, 0, 0)  # the child's end would send it
if pid == 0:
    os._exit(0)
if pid > 0:
    told()
"""


class Zygote(Told):
    """Names the zygote's process."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, zygote=ground.zygote_pid)


ATTEMPTS = (
    Attempt("unshare-user", "kernel", "makes a user namespace by unshare", _gets(272, "0x10000000"), Told, _NO_FILTER),
    Attempt("clone-user", "kernel", "makes a user namespace by clone", _CLONED.format(
        number=56, arguments="0x10000011, 0, 0, 0, 0"), Told, _NO_FILTER),
    Attempt("clone3-user", "kernel", "makes a user namespace by clone3", _CLONED.format(
        number=435, arguments="(ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17), 88"), Told, _NO_FILTER),
    Attempt("setns", "kernel", "joins the namespaces of the processes above it", _SETNS, Zygote),
    Attempt("mount", "kernel", "mounts a file system",
            'os.mkdir("there")\nif libc.mount(b"none", b"there", b"tmpfs", 0, None) == 0:\n'
            '    libc.umount2(b"there", 2)\n    told()', Told),
    Attempt("new-mount-calls", "kernel", "opens a file system by fsopen", _gets(430, 'b"tmpfs"', 0), Told),
    Attempt("open-tree", "kernel", "takes a copy of the mounts by open_tree", _gets(428, -100, 'b"/"', 0x8001), Told),
    Attempt("chroot", "kernel", "changes its root, as one does to leave it",
            'os.mkdir("there")\nos.chroot("there")\ntold()', Told),
    Attempt("pivot-root", "kernel", "changes its root by pivot_root", _permitted(155, 'b"/"', 'b"/"'), Told),
    Attempt("io-uring-register", "kernel", "calls io_uring_register", _permitted(427, -1, 0, 0, 0), Told, _NO_FILTER),
    Attempt("bpf", "kernel", "makes a BPF map",
            _gets(321, 0, "(ctypes.c_uint32 * 18)(2, 4, 8, 1)", 72), Told),
    Attempt("perf-event-open", "kernel", "watches the kernel by perf_event_open", _gets(
        298, "attributes", 0, -1, -1, 0, before="attributes = (ctypes.c_uint64 * 16)(1 | (128 << 32))"), Told,
        {"process": "performance counters, where perf_event_paranoid allows them"}),
    Attempt("userfaultfd", "kernel", "makes a userfaultfd, which holds the kernel in the middle of a copy",
            _gets(323, 1), Told, _NO_FILTER),
    Attempt("read-session-key", "kernel", "reads a key of the session's keyring", """
key = call(250, 10, -3, b"user", T["name"].encode(), 0)
buffer = ctypes.create_string_buffer(T["length"])
call(250, 11, key, buffer, T["length"])
print(buffer.raw.decode(errors="replace"), flush=True)
""", SessionKey, {"process": "keys that its session holds"}),
    Attempt("add-key", "kernel", "puts a key into a keyring", _gets(248, 'b"user"', 'b"kw"', 'b"x"', 1, -2), Told,
            _NO_FILTER),
    Attempt("type-on-terminal", "kernel", "types on somebody's terminal by TIOCSTI", """
import fcntl
terminal = os.open(T["path"], os.O_RDWR | os.O_NOCTTY)
fcntl.ioctl(terminal, 0x5412, b"x")
told()
""", Terminal),
    Attempt("write-to-terminal", "kernel", "writes control codes to somebody's terminal",
            'os.write(os.open(T["path"], os.O_WRONLY | os.O_NOCTTY), b"\\x1b]0;owned\\x07")', Terminal),
    Attempt("own-terminal", "kernel", "finds a controlling terminal", 'os.open("/dev/tty", os.O_RDWR)\ntold()', Told,
            control=False),
    Attempt("load-module", "kernel", "loads a kernel module", _permitted(175, 'b"x"', 1, 'b""'), Told, control=False),
    Attempt("kexec", "kernel", "loads another kernel", _permitted(246, 0, 99, 0, 0xFFFFFFFF), Told, control=False),
    Attempt("reboot", "kernel", "reboots the machine", _permitted(169, 0, 0, 0), Told),
    Attempt("set-clock", "kernel", "sets the machine's clock", _gets(
        227, 0, "(ctypes.c_int64 * 2)(int(time.time()), 0)", before="import time"), Told, control=False),
    Attempt("fanotify", "kernel", "watches all files of a mount by fanotify", _gets(300, 0, 0), Told),
    Attempt("compat-calls", "kernel", "makes system calls by the 32-bit table, past a filter of the 64-bit one",
            _COMPAT, Told, _NO_FILTER),
    Attempt("x32-calls", "kernel", "makes a forbidden call by its x32 number", _permitted(0x40000000 | 101, 99, 0),
            Told, control=False),
    Attempt("become-root", "kernel", "becomes root again by setuid", _SETUID, Told),
    Attempt("suid-program", "kernel", "runs a setuid program with the rights of its owner", _SUID_PROGRAM, Told),
    Attempt("capabilities", "kernel", "finds capabilities left over", _CAPABILITIES, Told),
    Attempt("continue-by-signal", "kernel", "sends SIGCONT, which ends a stop, by any of six system calls", _CONTINUES,
            Told, _NO_FILTER),
    Attempt("continue-by-kernel", "kernel", "has the kernel send it SIGCONT: by a pipe, a parent's end, a child's end",
            _CONTINUED, Told, _NO_FILTER),
    Attempt("continue-by-timer", "kernel", "makes a timer that sends it SIGCONT", _TIMER, Told, _NO_FILTER),
)  # fmt: skip
