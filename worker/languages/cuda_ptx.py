"""The PTX of a CUDA source: compiled once more with the same flags, up to where the assembler takes over.

Not a kernel language: a candidate cannot ask for it. A cubin holds no PTX, and NVRTC makes it in 20 to 40 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker.languages.cuda import LANGUAGE as CUDA
from worker.runner import kernelwright


class CudaPtx:
    """PTX for one arch, as text."""

    name = "cuda_ptx"
    suffix = ".ptx"

    def check_flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        """The flags that CUDA C++ may be built with. Raises FlagRefused."""
        return CUDA.check_flags(flags)

    def toolchain(self) -> str:
        """That of CUDA C++. Raises ToolchainMissing."""
        return CUDA.toolchain()

    def prepare(self) -> None:
        """As for CUDA C++."""
        CUDA.prepare()

    def build(self, source: str, flags: Sequence[str], arch: str, out_dir: Path) -> Path:
        """`kernel.ptx` in `out_dir`. Raises BuildError."""
        ptx, log = kernelwright.compile_cuda(source, self.check_flags(flags), arch, out_dir, "ptx")
        (out_dir / "build.log").write_text(log, encoding="utf-8")
        return ptx

    def describe(self) -> dict[str, Any]:
        """That of CUDA C++."""
        return CUDA.describe()


LANGUAGE = CudaPtx()
