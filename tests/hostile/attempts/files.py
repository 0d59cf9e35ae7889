"""Reads: secrets of the worker and of the judge, other candidates' memory and scratch, built artefacts, devices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.hostile.attempt import Attempt
from tests.hostile.traps import Secret, Told
from tests.hostile.victims import OtherCandidate, SysVSegment, Victim

if TYPE_CHECKING:
    from tests.hostile.ground import Ground

_READ = 'print(read(T["path"]), read("/proc/1/root" + T["path"]), read("/old" + T["path"]), flush=True)'
_ANYBODY = {"process": "what every user of the machine may read"}

_OTHERS = """
for pid in [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]:
    {what}
"""
_SCAN_MEMORY = """
import re
for pid in {pids}:
    for line in read(f"/proc/{{pid}}/maps").splitlines():
        if "[heap]" in line or "rw-p 00000000 00:00 0 " in line:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            with open(f"/proc/{{pid}}/mem", "rb", buffering=0) as memory:
                memory.seek(start)
                print(*re.findall(rb"kw-[0-9a-f]{{24}}", memory.read(min(end - start, 64 << 20))), flush=True)
"""
_PTRACE = """
pid = T["pid"]
if call(101, 16, pid, 0, 0) == 0:
    os.waitpid(pid, 0x40000000)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(T["address"])
        print(memory.read(T["length"]).decode(), flush=True)
    call(101, 17, pid, 0, 0)
"""
_READV = """
class Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))
buffer = ctypes.create_string_buffer(T["length"])
here, there = Piece(ctypes.addressof(buffer), T["length"]), Piece(T["address"], T["length"])
call(310, T["pid"], ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
print(buffer.raw.decode(), flush=True)
"""
_BY_HANDLE = """
# The root folder of most file systems is inode 2: with its handle a process gets out of a root of its own.
handle = (ctypes.c_ubyte * 16)(8, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0)
mount = os.open("/usr", os.O_RDONLY)
if call(304, mount, handle, os.O_RDONLY) >= 0:
    told()
"""
_SEGMENT = """
libc.shmat.restype = ctypes.c_void_p
address = libc.shmat(libc.shmget(T["key"], 0, 0), None, 0o10000)
print(ctypes.string_at(address, T["length"]).decode(), flush=True)
"""


class Environment:
    """The secret in the environment of the judge."""

    def __init__(self, ground: Ground) -> None:
        self._secret = ground.canary
        self.targets: dict[str, str | int] = {}

    def seen(self, log: str) -> str:
        return "the secret was printed" if self._secret in log else ""

    def close(self) -> None:
        """It is the ground's."""


class Artefact(Secret):
    """A file in the build cache, as another candidate's artefact is: readable for all."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, 0o444, ground.builds.root / "ab")


class JudgeHome(Secret):
    """A file in the judge's home."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, 0o644, ground.home)


ATTEMPTS = (
    Attempt("read-by-path", "files", "reads a file that every user of the host may read", _READ, Secret, _ANYBODY),
    Attempt("read-private", "files", "reads a file of the worker's user alone", _READ, partial(Secret, mode=0o600)),
    Attempt("read-ssh-key", "files", "reads a key below a folder of mode 700", _READ,
            partial(Secret, mode=0o600, around=0o700, name="id_ed25519")),
    Attempt("read-judge-home", "files", "reads the judge's home", _READ, JudgeHome,
            {"process": "the judge's home, where the folder's mode allows it"}),
    Attempt("read-artefacts", "files", "reads another candidate's artefact in the build cache",
            'print(*(read(os.path.join(folder, name)) for folder, _none, names in os.walk(T["folder"]) '
            'for name in names))', Artefact, {"process": "the build cache, where the folder's mode allows it"}),
    Attempt("read-environment", "files", "looks for secrets in its environment, as it is and as it was",
            'print(dict(os.environ), read("/proc/self/environ"), flush=True)', Environment),
    Attempt("read-parents-environ", "files", "reads the environment of the processes above it",
            'for pid in (1, os.getppid()):\n    print(read(f"/proc/{pid}/environ"), flush=True)', Environment,
            control=False),
    Attempt("read-every-environ", "files", "reads the environment of every process that it can see",
            _OTHERS.format(what='print(read(f"/proc/{pid}/environ"), flush=True)'), Victim),
    Attempt("read-memory", "files", "reads a process's memory through /proc/PID/mem",
            'with open(f"/proc/{T[\'pid\']}/mem", "rb", buffering=0) as memory:\n    memory.seek(T["address"])\n'
            '    print(memory.read(T["length"]).decode(), flush=True)', Victim),
    Attempt("read-descriptors", "files", "opens a process's unlinked file through /proc/PID/fd",
            'print(read(f"/proc/{T[\'pid\']}/fd/{T[\'descriptor\']}"), flush=True)', Victim),
    Attempt("read-through-root", "files", "reads a private file through /proc/PID/root of every process",
            _OTHERS.format(what='print(read(f"/proc/{pid}/root" + T["path"]), flush=True)'),
            partial(Secret, mode=0o600)),
    Attempt("ptrace", "files", "attaches to a process as a debugger and reads its memory", _PTRACE, Victim),
    Attempt("process-vm-readv", "files", "reads a process's memory by process_vm_readv", _READV, Victim),
    Attempt("open-by-handle", "files", "opens the host's root by its file handle", _BY_HANDLE, Told),
    Attempt("other-candidates-scratch", "files", "reads another candidate's scratch",
            _OTHERS.format(what='print(read(f"/proc/{pid}/cwd/secret"), flush=True)')
            + 'import glob\nprint(*map(read, glob.glob("/tmp/*/secret")), flush=True)', OtherCandidate, control=False),
    Attempt("other-candidates-memory", "files", "scans the memory of another candidate's processes",
            _SCAN_MEMORY.format(pids='T["pids"].split()'), OtherCandidate),
    Attempt("other-candidates-environ", "files", "reads the environment of another candidate's processes",
            'for pid in T["pids"].split():\n    print(read(f"/proc/{pid}/environ"), flush=True)', OtherCandidate,
            control=False),
    Attempt("system-v-segment", "files", "attaches a System V segment of the host's", _SEGMENT, SysVSegment,
            {"process": "the host's System V memory"}),
    Attempt("raw-memory", "files", "opens the machine's memory and its disks as devices", """
for name in ("mem", "kmem", "port", "kmsg", "vda", "sda", "nvme0n1"):
    try:
        os.open(f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK)
        told()
    except OSError:
        pass
""", Told),
    Attempt("make-device", "files", "makes a device node in its scratch", """
os.mknod("zeros", 0o20666, os.makedev(1, 5))
if read("zeros"):
    told()
""", Told),
    Attempt("kernel-log", "files", "reads the kernel's log", """
buffer = ctypes.create_string_buffer(4096)
if call(103, 3, buffer, 4096) > 0:
    told()
""", Told, {"process": "dmesg, where the machine lets every user read it"}),
)  # fmt: skip
