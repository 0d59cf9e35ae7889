"""An extension of torch, C++ and CUDA with bindings, as `torch.utils.cpp_extension.load_inline` builds it: 20 to 60 s.

No kernel language of its own: what a `cuda` candidate may use (`worker.runner.extensions`). The source is JSON of
`load_inline`'s arguments; each flag begins with whose it is.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker.languages import cpp, cuda
from worker.languages.flags import FlagRefused
from worker.runner import kernelwright
from worker.runner.extensions import C_FLAG, CUDA_FLAG, NAME, OF_THE_BUILD

_JOBS = 4
"""Compilers at once: there are two files, and one of them may be split by torch."""


class Extension:
    """A Python module in a shared library."""

    name = "extension"
    suffix = ".so"

    def check_flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        """The flags, when all are such as g++'s or nvcc's kernels may have. Raises FlagRefused."""
        of_c, of_cuda = _split(flags)
        cpp.LANGUAGE.check_flags(of_c)
        cuda.LANGUAGE.check_flags(of_cuda)
        return tuple(flags)

    def toolchain(self) -> str:
        """Both compilers and torch. Raises ToolchainMissing."""
        torch = importlib.metadata.version("torch")
        return f"torch {torch} | {cpp.LANGUAGE.toolchain()} | {_cuda_compiler() or 'no CUDA'}"

    def prepare(self) -> None:
        """Import torch, and put ninja, which torch starts by its name, on the path."""
        _cpp_extension()
        os.environ["PATH"] = os.pathsep.join([*_ninja(), os.environ.get("PATH", os.defpath)])

    def build(self, source: str, flags: Sequence[str], arch: str, out_dir: Path) -> Path:
        """`<name>.so` for `arch` (sm_90a, ...), where there are CUDA sources. Raises BuildError, ToolchainMissing."""
        of_c, of_cuda = _split(self.check_flags(flags))
        what = _arguments(source)
        os.environ["TORCH_CUDA_ARCH_LIST"] = _arch_list(arch)
        os.environ["MAX_JOBS"] = str(_JOBS)
        tools = _cpp_extension()
        tools.CUDA_HOME = tools.CUDA_HOME or kernelwright.cuda_home() and str(kernelwright.cuda_home())
        tools._import_module_from_library = _not_imported
        if what["cuda_sources"] and not tools.CUDA_HOME or shutil.which("ninja") is None:
            raise kernelwright.ToolchainMissing("an extension needs ninja, and nvcc for its CUDA sources")
        try:
            tools.load_inline(**what, extra_cflags=of_c, extra_cuda_cflags=of_cuda, build_directory=str(out_dir))
        except (RuntimeError, ValueError, TypeError, OSError) as refused:
            raise kernelwright.BuildError(_without_commands(str(refused))) from refused
        (out_dir / "build.log").write_text("", encoding="utf-8")
        return out_dir / f"{what['name']}.so"

    def describe(self) -> dict[str, Any]:
        """Whether all that it takes is here."""
        try:
            return {"available": True, "compiler": self.toolchain(), "cuda": _cuda_compiler() is not None}
        except (kernelwright.ToolchainMissing, importlib.metadata.PackageNotFoundError) as missing:
            return {"available": False, "why": str(missing)}


def _arguments(source: str) -> dict[str, Any]:
    """`load_inline`'s, if they are such as a runner sends: it is untrusted, and others would set paths and libraries.

    Raises BuildError.
    """
    try:
        what = json.loads(source)
        texts = [what["cpp_sources"], what["cuda_sources"]]
        known = what.keys() <= OF_THE_BUILD | {"name", "cpp_sources", "cuda_sources"}
        plain = all(isinstance(text, str) for group in texts for text in group)
        if not (known and plain and isinstance(what["name"], str) and NAME.fullmatch(what["name"])):
            raise ValueError("an argument is missing, unknown or of another type")
    except (ValueError, TypeError, KeyError, AttributeError) as malformed:
        raise kernelwright.BuildError(f"no arguments of load_inline: {malformed}") from malformed
    return dict(what)


def _split(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """g++'s and nvcc's. Raises FlagRefused for one that is nobody's."""
    stray = [flag for flag in flags if not flag.startswith((C_FLAG, CUDA_FLAG))]
    if stray:
        raise FlagRefused(f"whose flags are these: {' '.join(stray)[:500]}")
    return (
        [flag.removeprefix(C_FLAG) for flag in flags if flag.startswith(C_FLAG)],
        [flag.removeprefix(CUDA_FLAG) for flag in flags if flag.startswith(CUDA_FLAG)],
    )


def _without_commands(log: str) -> str:
    """The compilers' log: not what they were called with, which is ten times as long as most errors."""
    return "\n".join(line for line in log.splitlines() if "-DTORCH_EXTENSION_NAME=" not in line)


def _arch_list(arch: str) -> str:
    """As torch wants it: sm_90a is 9.0a."""
    digits = arch.removeprefix("sm_")
    number = digits.rstrip("af")
    return f"{number[:-1]}.{number[-1]}{digits[len(number) :]}"


def _cuda_compiler() -> str | None:
    try:
        return kernelwright.compiler_version("cuda")
    except kernelwright.ToolchainMissing:
        return None


def _ninja() -> list[str]:
    """Where the package `ninja` has its program; nothing where the system has one."""
    found = importlib.util.find_spec("ninja")
    return [importlib.import_module("ninja").BIN_DIR] if found is not None else []


def _cpp_extension() -> Any:
    return importlib.import_module("torch.utils.cpp_extension")


def _not_imported(*_what: Any, **_more: Any) -> types.ModuleType:
    """In place of torch's import of what was built: nothing of a candidate runs where it is compiled."""
    return types.ModuleType("built")


LANGUAGE = Extension()
