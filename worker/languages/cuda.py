"""CUDA C++: NVRTC in process (20-40 ms for a plain kernel) or nvcc (0.3-0.5 s) to a cubin, no GPU needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker.languages.flags import DEFINE, STANDARD, WARNING, allow
from worker.runner import kernelwright

_ARCH = re.compile(r"sm_\d{2,3}[af]?")
_ALLOWED = (
    r"-O[0-3]|-lineinfo|--expt-(relaxed-constexpr|extended-lambda)|--extra-device-vectorization|--restrict",
    r"-{1,2}use_fast_math|--(ftz|prec-div|prec-sqrt|fmad)=(true|false)|-{1,2}maxrregcount=\d{1,3}",
    r"-Xptxas=(-v|-O[0-3]|--warn-on-spills|--allow-expensive-optimizations=(true|false))",
    DEFINE,
    WARNING,
    STANDARD,
)


class Cuda:
    """A cubin for one arch, loaded through the driver API by `kernelwright.load_cuda`."""

    name = "cuda"
    suffix = ".cubin"

    def check_flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        """The flags, when all are nvcc flags that a kernel may want. Raises FlagRefused."""
        return allow(flags, *_ALLOWED)

    def toolchain(self) -> str:
        """Compiler version."""
        return kernelwright.compiler_version("cuda")

    def prepare(self) -> None:
        """Load NVRTC, whose folder may be out of reach later."""
        kernelwright.nvrtc()

    def build(self, source: str, flags: Sequence[str], arch: str, out_dir: Path) -> Path:
        """A cubin for `arch` (sm_90a, ...); registers and spills of each kernel in `build.log`. Raises BuildError."""
        if not _ARCH.fullmatch(arch):
            raise kernelwright.BuildError(f"{arch!r} is no CUDA arch: use sm_90a, sm_100a, sm_80, ...")
        # -v costs nothing and its table of registers and spills is what the proposer wants to see.
        wanted = (*self.check_flags(flags), *(() if "-Xptxas=-v" in flags else ("-Xptxas=-v",)))
        artefact, log = kernelwright.compile_cuda(source, wanted, arch, out_dir)
        (out_dir / "build.log").write_text(log, encoding="utf-8")
        return artefact

    def describe(self) -> dict[str, Any]:
        """Which of NVRTC and nvcc are here."""
        try:
            compiler = kernelwright.compiler_version("cuda")
        except kernelwright.ToolchainMissing as missing:
            return {"available": False, "why": str(missing)}
        return {"available": True, "compiler": compiler, "nvcc": kernelwright.cuda_tool("nvcc") is not None}


LANGUAGE = Cuda()
