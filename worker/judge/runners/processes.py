"""The processes of one judge: the zygote, and the confined runners that it forks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from worker.judge.runners.builder import make_builder
from worker.judge.runners.sessions import Runner, Zygote, runner_environment, zygote_environment
from worker.languages.cache import BuildCache
from worker.runner import sandbox

_PROJECT_ROOT = Path(__file__).resolve().parents[3]
_RUNNER_LIFE_S = 1800.0
"""For what outlives its judge; each message has a limit of its own. With six judges on one GPU a runner waited up to
340 s while others were timed or its baselines compiled."""
_BASELINE_LIFE_S = 24 * 3600.0
_BESIDE_A_GPU = 4


class SandboxTooWeak(Exception):
    """The machine's sandbox is weaker than required. The message says what to allow."""


@dataclass(frozen=True, slots=True)
class RefereeOptions:
    """Where a judge works and how strictly."""

    home: Path
    hardware: str
    minimum_sandbox: str = "process"
    """Refuse to judge below this sandbox level."""
    eager_only: bool = False
    """Race no compiled baseline."""
    profile: bool = True
    """Look for the bottleneck of what is accepted. Never of verdicts alone (`eager_only`)."""
    code: bool = False
    """Put the generated code of what is accepted into the report."""

    @property
    def build_root(self) -> Path:
        """Where built files are kept."""
        return self.home / "cache" / "build"


class Processes:
    """Starts runners on one device. The zygote starts with the first of them."""

    def __init__(self, options: RefereeOptions, *, on_gpu: bool) -> None:
        self._options, self._on_gpu = options, on_gpu
        options.build_root.mkdir(parents=True, exist_ok=True)
        self._builder = make_builder(BuildCache(options.build_root), on_gpu=on_gpu)
        self._zygote: Zygote | None = None

    @property
    def level(self) -> str:
        """The sandbox level of the runners; `none` before the first."""
        return self._zygote.level if self._zygote is not None else "none"

    def start(self) -> None:
        """Start what forks the runners, for other threads to use. Raises SandboxTooWeak."""
        self._ensure_zygote()

    @contextmanager
    def runner(self, *, unlimited: bool = False, device: bool = True) -> Iterator[Runner]:
        """A runner for a candidate, with its build broker; without a `device` it sees no GPU. Raises SandboxTooWeak.

        `unlimited` lifts the limit on address space, of which AddressSanitizer reserves 16 TiB; resident memory stays
        limited.
        """
        runner = self._spawn(_RUNNER_LIFE_S, unlimited=unlimited, gpu=device and self._on_gpu)
        runner.build = self._builder
        try:
            yield runner
        finally:
            runner.close()

    def baseline_runner(self, source_hash: str) -> Runner:
        """A runner for baselines of a problem, which share a compile cache of their own. Raises SandboxTooWeak."""
        return self._spawn(_BASELINE_LIFE_S, self.compile_cache(source_hash), gpu=self._on_gpu)

    def compile_cache(self, source_hash: str) -> Path:
        """Inductor's cache for one problem's baselines, which no candidate can see: without it every start of a judge
        compiles the baselines again (20 to 30 s on two cores)."""
        folder = self._options.home / "cache" / "baselines" / source_hash
        folder.mkdir(parents=True, exist_ok=True)
        sandbox.hand_over(folder)
        return folder.resolve()

    def close(self) -> None:
        """End all of them."""
        if self._zygote is not None:
            self._zygote.close()

    def _spawn(self, wall_s: float, compile_cache: Path | None = None, *, unlimited: bool = False, gpu: bool) -> Runner:
        zygote = self._ensure_zygote()
        memory_bytes = min(16 << 30 if self._on_gpu else 6 << 30, _machine_memory_bytes() // 2)
        limits = sandbox.Limits(
            memory_bytes=memory_bytes,
            scratch_bytes=2 << 30,
            wall_s=wall_s,
            address_space_bytes=None if self._on_gpu or unlimited else memory_bytes + _address_space_beyond(),
        )
        if compile_cache:  # then its user is not its own: the threads of all baselines and builds count as one's
            limits = replace(limits, processes=sandbox.SHARED_PROCESSES)
        confinement = sandbox.Confinement(
            level=zygote.level,
            limits=limits,
            readable=sandbox.python_folders(),
            writable=(str(compile_cache),) if compile_cache else (),
            gpu=gpu,
        )
        own = {"TORCHINDUCTOR_CACHE_DIR": str(compile_cache)} if compile_cache else {}
        return zygote.spawn(confinement, runner_environment(threads_for(on_gpu=self._on_gpu), gpu=gpu) | own)

    def _ensure_zygote(self) -> Zygote:
        if self._zygote is None:
            self._zygote = Zygote(zygote_environment(_PROJECT_ROOT, threads_for(on_gpu=self._on_gpu)))
            weakest = sandbox.LEVELS.index(self._options.minimum_sandbox)
            if sandbox.LEVELS.index(self._zygote.level) > weakest:
                raise SandboxTooWeak(
                    f"this machine offers sandbox level {self._zygote.level!r}, and {self._options.minimum_sandbox!r} "
                    "is required: allow user namespaces, or lower the requirement knowingly"
                )
        return self._zygote


def threads_for(*, on_gpu: bool) -> int:
    """Threads of torch's in a runner: as many as in its judge, but few where kernels run on a GPU.

    It has them twice, and a runner is stopped and resumed hundreds of times in a race: with 128 threads that took
    14.5 ms a time, with 32 2.5, with 8 1.0, most of it for looking through all of them for children (two busy cores).
    """
    return min(_BESIDE_A_GPU, torch.get_num_threads()) if on_gpu else torch.get_num_threads()


def _address_space_beyond() -> int:
    """What libraries and the heaps of threads may reserve: glibc's malloc takes 64 MiB for each of its arenas."""
    return (8 << 30) + (os.cpu_count() or 1) * (256 << 20)


def _machine_memory_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return fields["MemTotal"]
