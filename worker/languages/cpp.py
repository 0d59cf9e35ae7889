"""C++ for the `cpu` target: g++ to a shared library, loaded with ctypes by `kernelwright.load_cpp`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker.languages import flags as flag_rules
from worker.languages import gcc_flags
from worker.runner import kernelwright


class Cpp:
    """g++ -O3 -march=native -fopenmp, compiled and linked in two steps (see `kernelwright.compile_cpp` for why)."""

    name = "cpp"
    suffix = ".so"

    def check_flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        """The flags, when all are on the list in `gcc_flags`. Raises FlagRefused."""
        return flag_rules.allow(flags, *gcc_flags.ALLOWED)

    def toolchain(self) -> str:
        """Compiler and processor: -march=native code of one machine can be an illegal instruction on another."""
        return f"{kernelwright.compiler_version('cpp')} | {kernelwright.native_cpu()}"

    def prepare(self) -> None:
        """Nothing: the compiler is a process of its own."""

    def build(self, source: str, flags: Sequence[str], arch: str, out_dir: Path) -> Path:
        """A shared library for this machine. `arch` is "native". Raises BuildError."""
        if arch != "native":
            raise kernelwright.BuildError(f"C++ is built for this machine only: arch is native, not {arch}")
        artefact, log = kernelwright.compile_cpp(source, self.check_flags(flags), out_dir)
        (out_dir / "build.log").write_text(log, encoding="utf-8")
        return artefact

    def describe(self) -> dict[str, Any]:
        """Whether g++ is here, and its version."""
        try:
            return {"available": True, "compiler": kernelwright.compiler_version("cpp")}
        except kernelwright.ToolchainMissing as missing:
            return {"available": False, "why": str(missing)}


LANGUAGE = Cpp()
