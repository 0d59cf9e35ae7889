"""The build process: reads one request, gives up its rights, builds, and answers in JSON.

Compilers read whatever hostile source tells them to (`#include "/etc/shadow"`, `.incbin`), so each runs in the runner's
sandbox: as nobody, no network, only system folders and toolchains to read, a private scratch folder to write.

Started by `worker.languages.cache`, as `main()` in an isolated interpreter, with the request on standard input. The
artefact goes out through a descriptor that the parent opened, so nothing needs to be writable by both sides.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from worker.languages import INPUT, BuildError, CompilerKilled, Language, ToolchainMissing, language
from worker.runner import kernelwright, sandbox

_COPY_BYTES = 1 << 20
_MAX_REASON = 2000
# Nobody's processes are counted together, runners' included: a fork bomb in one of those (512) must not fail a build.
_PROCESSES = 4096
_HEADERS = ("/usr/include", "/usr/local", "/usr/share")


@dataclass(frozen=True, slots=True)
class Request:
    """One build, as the parent asks for it."""

    language: str
    source: str
    flags: tuple[str, ...]
    arch: str
    cpu_s: int = 0
    memory_bytes: int = 0
    file_bytes: int = 0
    level: str = "process"
    """Sandbox level, one of `sandbox.LEVELS`."""
    scratch: str = ""
    """Private folder for the levels that have no tmpfs of their own."""
    artefact_fd: int = -1
    input_fd: int = -1
    """A file to read, for those that read what was built before; -1 for those that build."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the process inherits."""
        return tuple(descriptor for descriptor in (self.artefact_fd, self.input_fd) if descriptor >= 0)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        fields = json.loads(text)
        return cls(**{**fields, "flags": tuple(fields["flags"])})


@dataclass(frozen=True, slots=True)
class Answer:
    """How the build ended: outcome is built, refused, killed or missing."""

    outcome: str
    log: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Answer:
        return cls(**json.loads(text))


def main() -> int:
    """Serve one request. Exit code 0 with an answer on standard output, or `sandbox.EXIT_SETUP` with why on error."""
    request = Request.from_json(sys.stdin.read())
    # Whatever the rest of the program prints must not end up in the answer.
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    tool = language(request.language)
    tool.prepare()
    try:
        return _in_sandbox(request, tool, answer_fd)
    except OSError as problem:
        print(f"sandbox level {request.level}: {problem}", file=sys.stderr)  # noqa: T201 - the parent reads it
        return sandbox.EXIT_SETUP


def _in_sandbox(request: Request, tool: Language, answer_fd: int) -> int:
    isolated = request.level == "namespaces"
    if isolated:
        sandbox.enter_namespaces()
    child = os.fork()  # the first process of the new PID namespace: when it ends, so does all that it started
    if child == 0:
        code = sandbox.EXIT_SETUP
        try:
            code = _build_confined(request, tool, answer_fd, isolated=isolated)
        except OSError as problem:
            os.write(2, f"sandbox level {request.level}: {problem}\n".encode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF


def _build_confined(request: Request, tool: Language, answer_fd: int, *, isolated: bool) -> int:
    limits = sandbox.Limits(
        scratch_bytes=request.file_bytes, processes=_PROCESSES, address_space_bytes=request.memory_bytes
    )
    readable = tuple(folder for folder in readable_folders() if isolated or _reachable(folder))
    confinement = sandbox.Confinement(level=request.level, limits=limits, readable=readable)
    scratch = request.scratch
    if isolated:
        sandbox.build_root(confinement)
        scratch = "/tmp"
    os.chdir(scratch)
    os.environ["TMPDIR"] = os.environ["HOME"] = scratch
    resource.setrlimit(resource.RLIMIT_CPU, (request.cpu_s, request.cpu_s))
    sandbox.confine(confinement, scratch)
    try:
        answer = _answer(request, tool, Path(scratch))
    except Exception as failure:  # noqa: BLE001 - from here on it is the source's doing, and says nothing of the sandbox
        answer = Answer("killed", f"the build failed: {type(failure).__name__}: {failure}"[:_MAX_REASON])
    os.write(answer_fd, answer.to_json().encode())
    return 0


def _answer(request: Request, tool: Language, folder: Path) -> Answer:
    if request.input_fd >= 0:
        _copy(request.input_fd, folder / INPUT)
    try:
        artefact = tool.build(request.source, request.flags, request.arch, folder)
    except ToolchainMissing as missing:
        return Answer("missing", str(missing))
    except (CompilerKilled, subprocess.TimeoutExpired, MemoryError) as killed:
        return Answer("killed", str(killed) or type(killed).__name__)
    except BuildError as refused:
        return Answer("refused", str(refused))
    with artefact.open("rb") as built, os.fdopen(request.artefact_fd, "wb") as sink:
        shutil.copyfileobj(built, sink, _COPY_BYTES)
    return Answer("built", (folder / "build.log").read_text(encoding="utf-8", errors="replace"))


def _copy(descriptor: int, path: Path) -> None:
    with os.fdopen(descriptor, "rb") as given, path.open("wb") as copy:
        shutil.copyfileobj(given, copy, _COPY_BYTES)


def readable_folders() -> tuple[str, ...]:
    """What a build may read beside the system's own folders: this interpreter and the toolchains."""
    return tuple(sorted({*_HEADERS, *sandbox.python_folders(), *(str(folder) for folder in _toolchains())}))


def _reachable(folder: str) -> bool:
    """Whether nobody gets there without a bind mount: an interpreter below a /root of mode 700 is out of reach."""
    path = Path(folder)
    return os.geteuid() != 0 or all(parent.stat().st_mode & stat.S_IXOTH for parent in [path, *path.parents])


def _toolchains() -> Iterator[Path]:
    home = kernelwright.cuda_home()
    if home is not None:
        yield home
        yield home.resolve()
    for tool in ("g++", "nvcc"):
        path = shutil.which(tool)
        # A toolchain of its own (conda's, a module system's) is <prefix>/bin/g++; the system's are readable anyway.
        if path is not None and not path.startswith(("/usr/", "/bin/")):
            with contextlib.suppress(IndexError):
                yield Path(path).parents[1]
                yield Path(path).resolve().parents[1]
