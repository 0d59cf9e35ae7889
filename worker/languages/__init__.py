"""One module per kernel language: how to build it, which flags a candidate may set, what this machine has for it.

    language("cuda").build(source, ("-use_fast_math",), "sm_90a", folder)     # -> folder/kernel.cubin

`worker.languages.cache.BuildCache` is the way to build hostile source: confined, with limits, and only once.
Standard library only, so that a build process starts in tens of milliseconds.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from worker.runner.kernelwright import BuildError, CompilerKilled, ToolchainMissing

__all__ = [
    "FORMS",
    "LANGUAGES",
    "BuildError",
    "CompilerKilled",
    "Language",
    "ToolchainMissing",
    "UnknownLanguage",
    "language",
]

LANGUAGES = ("cpp", "cuda", "triton")
FORMS = ("extension",)
"""Other forms that a candidate's source may have: built like languages, and no target of a job."""
_REPORTS = ("cpp_report", "cuda_ptx", "machine_code")
"""Built like languages, for the judge alone."""
INPUT = "input"
"""Those of them that read what was built before find it by this name in the folder of the build."""


class UnknownLanguage(ValueError):
    """There is no such kernel language. Use one of cpp, cuda, triton."""


class Language(Protocol):
    """What each language module offers."""

    name: str
    suffix: str
    """Of the artefact, with its dot."""

    def check_flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        """The flags, when a candidate may set all of them. Raises FlagRefused (a BuildError) otherwise."""
        ...

    def toolchain(self) -> str:
        """All that an artefact depends on beside source, flags and arch: compiler version, for C++ also the processor.

        Raises ToolchainMissing.
        """
        ...

    def prepare(self) -> None:
        """Load what must be loaded before the build process gives up its rights."""
        ...

    def build(self, source: str, flags: Sequence[str], arch: str, out_dir: Path) -> Path:
        """Build in `out_dir`; the artefact's path. The compiler's remarks are beside it in `build.log`.

        Not confined: the caller is. Raises BuildError with the compiler's log.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """What this machine has for the language: JSON-able, `available` and versions."""
        ...


def language(name: str) -> Language:
    """The language, form or report of that name. Raises UnknownLanguage."""
    if name not in LANGUAGES + FORMS + _REPORTS:
        raise UnknownLanguage(f"there is no kernel language {name!r}: use one of {', '.join(LANGUAGES)}")
    module = importlib.import_module(f"worker.languages.{name}")
    found: Language = module.LANGUAGE
    return found
