"""Inductor's C++ kernels as one source for `kernelwright.load_cpp`.

The kernels keep torch's header `cpp_prefix.h` (vectors, reductions, Welford), which the loader finds beside torch. All
kernels of a candidate share one source: parsing that header is most of a build.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence

from worker.builtin.compiler_problem import NoCompilerSeed
from worker.builtin.compiler_wrapper import Kernel, Plain, Wrapper

_ENTRY = re.compile(r'extern "C"\s+void\s+kernel\s*\(')
_INCLUDE = re.compile(r"^[ \t]*#\s*include\s+(\S+).*$", re.MULTILINE)
# What Inductor itself compiles with, less what the loader always passes. No -ffast-math: NaN and infinity keep their
# meaning, and the code is vectorised by hand already.
_FLAGS = (
    "-std=c++20", "-DNDEBUG", "-DC10_USING_CUSTOM_GENERATED_MACROS",
    "-fno-trapping-math", "-fno-signed-zeros", "-ffp-contract=off", "-fno-tree-loop-vectorize",
)  # fmt: skip


class CppKernels:
    """The C++ functions of a candidate, collected while its calls are written."""

    names = frozenset({"_LIB"})
    imports: tuple[str, ...] = ("from kernelwright import load_cpp",)
    tunables: Mapping[str, Sequence[object]] = {}
    defaults: Mapping[str, object] = {}

    def __init__(self) -> None:
        self._functions: dict[str, str] = {}
        self._includes: list[str] = []

    def begin(self, workload: str) -> None:
        """The calls of this workload follow. Functions go by what they compute: workloads may share them."""

    def instead(self, wrapper: Wrapper, code: str, names: Mapping[str, str], returns: str) -> Plain | None:
        """Nothing: C++ kernels can all be written out."""
        return None

    def launch(self, kernel: Kernel, arguments: Sequence[ast.expr]) -> str:
        """The call of one kernel."""
        if kernel.language != "cpp":
            raise NoCompilerSeed(f"Inductor wrote {kernel.language} where C++ was wanted")
        return f"_LIB.{self._add(kernel)}({', '.join(ast.unparse(argument) for argument in arguments)})"

    def code(self) -> str:
        """The module-level Python that compiles the kernels. Raises NoCompilerSeed when there are none."""
        if not self._functions:
            raise NoCompilerSeed("Inductor calls torch's own kernels for all of it, and adds none")
        functions = [text.replace("@NAME@", name) for text, name in self._functions.items()]
        source = "\n".join([*(f"#include {name}" for name in self._includes), "", *functions])
        if '"""' in source:
            raise NoCompilerSeed("the C++ source cannot be quoted")
        flags = ", ".join(f'"{flag}"' for flag in (*_FLAGS, *(f"-D{macro}" for macro in _vector_macros())))
        return (
            f'SOURCE = r"""\n{source}"""\n'
            "# The code is for one vector width, and the headers are torch's: its version belongs to the build's key.\n"
            f'FLAGS = [{flags}, f"-DTORCH_HEADERS={{torch.__version__}}"]\n'
            "_LIB = load_cpp(SOURCE, FLAGS)\n"
        )

    def _add(self, kernel: Kernel) -> str:
        for include in _INCLUDE.findall(kernel.source):
            if not include.startswith("<"):
                raise NoCompilerSeed(f"Inductor's kernel includes {include}")
            if include not in self._includes:
                self._includes.append(include)
        body = _INCLUDE.sub("", kernel.source).strip()
        text, entries = _ENTRY.subn('extern "C" void @NAME@(', body)
        if entries != 1:
            raise NoCompilerSeed(f"Inductor's kernel {kernel.name} has {entries} entry points")
        if not body.startswith('extern "C"'):  # helpers stand before it: two kernels may have ones of the same name
            text = f"namespace @NAME@_parts {{\n{text}\n}}"
        if text not in self._functions:
            self._functions[text] = _unused(kernel.name, self._functions.values())
        return self._functions[text]


def _unused(name: str, taken: Collection[str]) -> str:
    used = set(taken)
    number = 1
    candidate = name
    while candidate in used:
        number += 1
        candidate = f"{name}_v{number}"
    return candidate


def _vector_macros() -> list[str]:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    isa = pick_vec_isa()
    return list(isa.build_macro()) if isa else []
