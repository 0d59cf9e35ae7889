"""Attacks by way of the compiler: hostile sources and flags for the build broker, and what the built library does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.hostile.attempt import Attempt
from tests.hostile.attempts.files import Environment
from tests.hostile.attempts.writes import PublicFolder
from tests.hostile.traps import Secret, Told

if TYPE_CHECKING:
    from tests.hostile.ground import Ground

_ANYBODY = {"process": "what every user of the machine may read"}

_BUILDS = """
from kernelwright import load_cpp
try:
    library = load_cpp({source}, flags={flags})
    {then}
except Exception as refused:
    print(refused, flush=True)
"""
_NOTHING = 'extern "C" void nothing() {}'


def _cpp(source: str, flags: str = "()", then: str = "library.nothing") -> str:
    return _BUILDS.format(source=source, flags=flags, then=then)


_INCBIN = r'''
from kernelwright import load_cpp
SOURCE = """
__asm__(".section .rodata\\n.global kept\\nkept: .incbin \\"PATH\\"\\n.byte 0\\n.previous");
extern "C" const char kept[];
extern "C" void copy_out(char* out) { for (int i = 0; i < 64 && kept[i]; i++) out[i] = kept[i]; }
"""
import torch
out = torch.zeros(65, dtype=torch.uint8)
load_cpp(SOURCE.replace("PATH", T["path"])).copy_out(out)
print(bytes(out.tolist()).decode(errors="replace"), flush=True)
'''
_HAS_INCLUDE = r'''
from kernelwright import load_cpp
SOURCE = """
#if __has_include("PATH")
extern "C" void it_exists() {}
#endif
extern "C" void nothing() {}
"""
if hasattr(load_cpp(SOURCE.replace("PATH", T["path"])), "it_exists"):
    told()
'''
_AT_LOAD = r'''
from kernelwright import load_cpp
SOURCE = """
#include <cstdio>
static struct Writes { Writes() { if (FILE* f = fopen("PATH", "w")) fclose(f); } } at_load;
extern "C" void nothing() {}
"""
load_cpp(SOURCE.replace("PATH", T["path"])).nothing
'''
_RECURSION = """
template <int N, int M> struct Fib {{ static constexpr long value = Fib<N - 1, 2 * M>::value + Fib<N - 1, 2 * M + 1>::value; }};
template <int M> struct Fib<0, M> {{ static constexpr long value = M; }};
long bomb = Fib<{depth}, 1>::value;
"""  # noqa: E501 - hostile code is rarely formatted


class SecretAndToken(Secret):
    """A secret file, and a token for whoever learns that it exists."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._told = Told(ground)
        self.targets |= self._told.targets

    def seen(self, log: str) -> str:
        return super().seen(log) or self._told.seen(log) and "its existence was found out"


class BuildSandbox:
    """The sandbox level of the builds: what one source does must not weaken it for the next."""

    def __init__(self, ground: Ground) -> None:
        self._builds = ground.builds
        self._before = list(self._builds._levels)
        if self._builds.level == "namespaces":
            self._builds._levels = ["namespaces", "landlock", "process"]  # as in the service: the strongest that works
        self._level = self._builds.level
        self.targets: dict[str, str | int] = {}

    def seen(self, _log: str) -> str:
        return f"builds run at {self._builds.level} now" if self._builds.level != self._level else ""

    def close(self) -> None:
        self._builds._levels = self._before


ATTEMPTS = (
    Attempt("include-secret", "builds", "includes a file of the host and reads it in the compiler's errors",
            _cpp('f\'#include "{T["path"]}"\''), Secret, _ANYBODY),
    Attempt("include-private", "builds", "includes a private file of the worker's user",
            _cpp('f\'#include "{T["path"]}"\''), partial(Secret, mode=0o600)),
    Attempt("include-environment", "builds", "includes the environment of the compiler and of what started it", _cpp(
        "'\\n'.join(f'#include \"/proc/{pid}/environ\"' for pid in ('self', 1, 2, os.getppid()))"), Environment,
        control=False),
    Attempt("include-standard-input", "builds", "includes what the build process was sent", _cpp(
        "'#include \"/dev/stdin\"\\n#include \"/proc/self/fd/3\"'"), Environment, control=False),
    Attempt("incbin-secret", "builds", "takes a file of the host into its library by .incbin", _INCBIN, Secret,
            _ANYBODY),
    Attempt("incbin-private", "builds", "takes a private file into its library by .incbin", _INCBIN,
            partial(Secret, mode=0o600)),
    Attempt("has-include", "builds", "asks the compiler whether a file of the host exists", _HAS_INCLUDE,
            SecretAndToken, {"process": "the names of files below folders that every user may enter"}),
    Attempt("plugin-flag", "builds", "has the compiler load a plugin of its own", _cpp(
        repr(_NOTHING), '("-fplugin=./kernel.so",)', "told()"), Told, control=False),
    Attempt("include-flag", "builds", "has the compiler include a file by a flag", _cpp(
        repr(_NOTHING), '("-include", T["path"])'), Secret),
    Attempt("response-file", "builds", "has the compiler read flags from a file", _cpp(
        repr(_NOTHING), '("@" + T["path"],)'), Secret),
    Attempt("output-flag", "builds", "has the compiler write its output elsewhere", _cpp(
        repr(_NOTHING), '("-o", T["path"])'), PublicFolder, control=False),
    Attempt("dependency-flag", "builds", "has the compiler write a list of headers elsewhere", _cpp(
        repr(_NOTHING), '("-MD", "-MF", T["path"])'), PublicFolder, control=False),
    Attempt("linker-flag", "builds", "passes a flag to the linker", _cpp(
        repr(_NOTHING), '("-Wl,-Map=" + T["path"],)'), PublicFolder, control=False),
    Attempt("wrapper-flag", "builds", "has the compiler run through a program of its own", _cpp(
        repr(_NOTHING), '("-wrapper", "/bin/touch," + T["path"])'), PublicFolder, control=False),
    Attempt("write-at-load", "builds", "writes a file when its library is loaded, wherever that may be", _AT_LOAD,
            PublicFolder, {"process": "folders that every user of the machine may write to"}),
    Attempt("surrogate-source", "builds", "sends a source that cannot be written down", _cpp(
        repr(_NOTHING) + ' + "// " + chr(0xD800)'), BuildSandbox, control=False),
    Attempt("huge-library", "builds", "builds a library that is larger than a file may be", _cpp(
        "'__asm__(\".data\\\\n.space 400000000, 1\\\\n\");' + " + repr(_NOTHING)), BuildSandbox, control=False),
    Attempt("include-endless", "builds", "includes itself without end", _cpp(
        "'#include \"/proc/self/cwd/kernel.cpp\"'"), BuildSandbox, control=False),
    Attempt("huge-log", "builds", "makes the compiler write without end",
            _cpp(repr(_RECURSION.format(depth=14).replace("long bomb", "#warning x\nlong bomb"))), BuildSandbox,
            control=False),
    Attempt("endless-templates", "builds", "keeps the compiler busy with templates", _cpp(
        repr(_RECURSION.format(depth=40))), BuildSandbox, control=False),
    Attempt("unknown-language", "builds", "asks for a language that only the judge may ask for", """
from kernelwright import load_cpp
import kernelwright
for name in ("machine_code", "cpp_report", "cuda_ptx", "../../etc", "os"):
    try:
        kernelwright._artefact(name, "extern \\"C\\" void nothing() {}", ())
        told()
    except Exception as refused:
        print(refused, flush=True)
""", Told, control=False),
)  # fmt: skip
