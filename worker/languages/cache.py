"""Builds hostile source once: a content-addressed cache in front of confined build processes.

    cache = BuildCache(home / "builds")
    built = cache.build("cpp", SOURCE, ("-ffast-math",))      # Built(path=…/ab/ab12….so, log, cached, wall_s)

The key is the SHA-256 of language, source, flags, arch, and toolchain with its version (for C++ the processor too).
A refused source is remembered like a built one. What is not remembered: a build that ran out of time or memory, and a
missing compiler, since the next try may end otherwise.

Several processes may share a root: entries appear by atomic rename, so two that build the same thing at once do the
work twice and end with the same whole file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from worker.languages import BuildError, CompilerKilled, ToolchainMissing, language
from worker.languages.confined import Answer, Request
from worker.runner import sandbox

MAX_SOURCE_BYTES = 1 << 20
MAX_LOG_CHARS = 8000
_MAX_ARTEFACT_BYTES = 256 << 20
_GRACE_S = 600.0  # entries used within this time are never evicted: a runner may be about to load one
_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from worker.languages.confined import main
sys.exit(main())
"""
_TIMES_AS_MUCH = {"extension": 5}
"""What may take more time and memory than the rest: torch's headers cost 20 s, torch itself gigabytes of addresses."""
_OUTCOMES = {"refused": BuildError, "killed": CompilerKilled, "missing": ToolchainMissing}


class BuildProcessFailed(RuntimeError):
    """The build process itself failed, at every sandbox level tried. The machine needs a look, not the source."""


@dataclass(frozen=True, slots=True)
class Built:
    """An artefact and what the compiler said about it."""

    path: Path
    log: str
    cached: bool
    wall_s: float


class BuildCache:
    """See the module. `level` fixes the sandbox level; None finds the strongest that works at the first build."""

    def __init__(
        self,
        root: Path,
        *,
        level: str | None = None,
        timeout_s: float = 60.0,
        memory_bytes: int = 6 << 30,
        max_bytes: int = 2 << 30,
    ) -> None:
        self.root = root.resolve()
        self.timeout_s = timeout_s
        self.memory_bytes = memory_bytes
        self.max_bytes = max_bytes
        self._levels = [level] if level else list(sandbox.LEVELS)
        self.root.mkdir(parents=True, exist_ok=True)

    @property
    def level(self) -> str:
        """The sandbox level of the next build; the one that works, once there was a build."""
        return self._levels[0]

    def build(self, language_name: str, source: str, flags: Sequence[str] = (), arch: str = "native") -> Built:
        """The artefact, built now or before. `arch` is native for C++ and sm_90a, ... for CUDA.

        Raises BuildError with the compiler's log, cleaned of local paths; CompilerKilled; ToolchainMissing;
        UnknownLanguage; BuildProcessFailed.
        """
        checked = language(language_name).check_flags(flags)
        if len(source.encode(errors="replace")) > MAX_SOURCE_BYTES:
            raise BuildError(f"the source is larger than {MAX_SOURCE_BYTES >> 10} KiB")
        return self._made(Request(language_name, source, checked, arch))

    def read(self, reader: str, path: Path) -> Built:
        """What a reader (`machine_code`) makes of a file that was built here, or that hostile code handed over.

        Raises as `build` does.
        """
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            return self._made(Request(reader, digest, (), "native", input_fd=file.fileno()))

    def _made(self, request: Request) -> Built:
        started = time.monotonic()
        tool = language(request.language)
        key = _key(request.language, request.source, request.flags, request.arch, tool.toolchain())
        path = self.root / key[:2] / (key + tool.suffix)
        log = self._recall(path)
        cached = log is not None
        if log is None:
            times = _TIMES_AS_MUCH.get(request.language, 1)
            cpu_s, memory_bytes = int(times * self.timeout_s) + 1, times * self.memory_bytes
            confined = replace(request, cpu_s=cpu_s, memory_bytes=memory_bytes, file_bytes=_MAX_ARTEFACT_BYTES)
            log = self._build(confined, path)
            self.evict()
        return Built(path, log, cached, time.monotonic() - started)

    def evict(self) -> None:
        """Drop the entries that were used longest ago, until the rest fits in `max_bytes`."""
        entries = []
        for record in self.root.glob("??/*.json"):
            with contextlib.suppress(FileNotFoundError):
                siblings = list(record.parent.glob(record.stem + ".*"))
                entries.append((record.stat().st_mtime, sum(path.stat().st_size for path in siblings), siblings))
        excess = sum(size for _used, size, _paths in entries) - self.max_bytes
        for used, size, paths in sorted(entries, key=lambda entry: entry[0]):
            if excess <= 0 or time.time() - used < _GRACE_S:
                return
            for path in paths:
                path.unlink(missing_ok=True)
            excess -= size

    def _recall(self, path: Path) -> str | None:
        """The log of an earlier build; None when there was none. Raises BuildError when it was refused then."""
        record_path = path.with_suffix(".json")
        try:
            record = json.loads(record_path.read_text(encoding="utf-8"))
            os.utime(record_path)
        except (FileNotFoundError, ValueError):
            return None
        if record["refused"]:
            raise BuildError(record["log"])
        return str(record["log"]) if path.exists() else None

    def _remember(self, path: Path, log: str, *, refused: bool) -> None:
        path.parent.mkdir(exist_ok=True)
        scrap = self._incoming()
        scrap.write_text(json.dumps({"log": log, "refused": refused}), encoding="utf-8")
        scrap.replace(path.with_suffix(".json"))

    def _incoming(self) -> Path:
        folder = self.root / "incoming"
        folder.mkdir(exist_ok=True)
        return folder / uuid.uuid4().hex

    def _build(self, request: Request, path: Path) -> str:
        scrap = self._incoming()
        try:
            with scrap.open("wb") as sink:
                answer = self._ask(request, sink.fileno())
            log = tidy_log(answer.log)
            if answer.outcome != "built":
                if answer.outcome == "refused":
                    self._remember(path, log, refused=True)
                raise _OUTCOMES[answer.outcome](log)
            scrap.chmod(0o444)
            path.parent.mkdir(exist_ok=True)
            scrap.replace(path)
            self._remember(path, log, refused=False)
            return log
        finally:
            scrap.unlink(missing_ok=True)

    def _ask(self, request: Request, artefact_fd: int) -> Answer:
        """Run the build process, one sandbox level weaker whenever a level cannot be entered here."""
        while True:
            level = self.level
            code, output, errors = self._run(replace(request, level=level, artefact_fd=artefact_fd))
            if code == 0:
                return Answer.from_json(output)
            if code == sandbox.EXIT_SETUP and len(self._levels) > 1:
                if self.level == level:  # else another thread found out at the same time
                    self._levels.pop(0)
            elif code in (sandbox.EXIT_SETUP, 1):
                raise BuildProcessFailed(errors[-2000:])
            else:
                return Answer("killed", f"the compiler ran out of time ({self.timeout_s:g} s) or memory")

    def _run(self, request: Request) -> tuple[int, str, str]:
        with tempfile.TemporaryDirectory(prefix="kernelwright-build-", ignore_cleanup_errors=True) as scratch:
            if os.geteuid() == 0:
                os.chown(scratch, sandbox.NOBODY, sandbox.NOBODY)
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BOOT, json.dumps(_import_path())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                env=_environment(), cwd="/", pass_fds=request.descriptors, start_new_session=True,
            )  # fmt: skip
            try:
                output, errors = process.communicate(
                    replace(request, scratch=scratch).to_json(), timeout=request.cpu_s - 1
                )
            except BaseException as stopped:
                os.killpg(process.pid, signal.SIGKILL)  # and the compilers that it started
                process.communicate()
                if isinstance(stopped, subprocess.TimeoutExpired):
                    return -signal.SIGKILL, "", ""
                raise
            return process.returncode, output, errors


def _key(language_name: str, source: str, flags: Sequence[str], arch: str, toolchain: str) -> str:
    # JSON and not joined text: ("-DA", "B") and ("-DA B",) must not meet.
    parts = json.dumps([language_name, source, list(flags), arch, toolchain])
    return hashlib.sha256(parts.encode()).hexdigest()


def _environment() -> dict[str, str]:
    """What a compiler needs to find itself, and no secret. CPATH and its like would change builds behind the key."""
    kept = ("PATH", "CUDA_HOME", "CUDA_PATH")
    return {"LC_ALL": "C.UTF-8", **{name: os.environ[name] for name in kept if name in os.environ}}


def _import_path() -> list[str]:
    return [str(Path(entry).resolve()) for entry in sys.path]


_FOLDERS = re.compile(r"(?<![\w./])/(?:[^\s/:'\"()<>‘’]+/)+")


def tidy_log(log: str) -> str:
    """A compiler's log for the candidate's author: no local folders, and the first errors when it is long."""
    text = _FOLDERS.sub("", log).strip()
    if len(text) > MAX_LOG_CHARS:
        text = text[:MAX_LOG_CHARS] + f"\n… {len(text) - MAX_LOG_CHARS} more characters"
    return text
