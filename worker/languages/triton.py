"""Triton: Python source that compiles itself on a GPU; without one, ahead-of-time build and interpreter.

A Triton candidate has nothing to build from its text alone: what a kernel compiles to depends on the arguments of its
launches. So `build` checks the text, and the two ways to do without a GPU run inside the sandbox:

* `worker.runner.triton_record.recording(arch)`: run the candidate with its launches compiled for a GPU's arch and left
  out. Says whether it builds, and what registers and shared memory it takes.
* `worker.runner.triton_interpret.use_interpreter()`: run it on CPU tensors. Says whether its numbers are right.

Each wants a process of its own. Neither says anything about time.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from worker.languages.flags import allow
from worker.runner.kernelwright import BuildError, ToolchainMissing
from worker.runner.triton_record import capability

INTERPRET, RECORD = "interpret", "record"


class Triton:
    """A candidate's own Python file is the artefact."""

    name = "triton"
    suffix = ".py"

    def check_flags(self, flags: Sequence[str]) -> tuple[str, ...]:
        """No flags: num_warps and the like are arguments of a launch. Raises FlagRefused."""
        return allow(flags)

    def toolchain(self) -> str:
        """Triton's version. Raises ToolchainMissing."""
        if importlib.util.find_spec("triton") is None:
            raise ToolchainMissing("Triton is not installed")
        return f"triton {metadata.version('triton')}"

    def prepare(self) -> None:
        """Nothing."""

    def build(self, source: str, flags: Sequence[str], arch: str, out_dir: Path) -> Path:
        """The source, checked to be Python with at least one `@triton.jit` kernel. Raises BuildError."""
        self.check_flags(flags)
        capability_of(arch)
        kernels = jit_functions(source)
        if not kernels:
            raise BuildError("no function of this source is decorated with @triton.jit")
        artefact = out_dir / f"kernel_{hashlib.sha256(source.encode()).hexdigest()[:12]}.py"
        artefact.write_text(source, encoding="utf-8")
        (out_dir / "build.log").write_text("kernels: " + ", ".join(kernels), encoding="utf-8")
        return artefact

    def describe(self) -> dict[str, Any]:
        """Whether Triton is here, its version, and whether it carries an assembler for ahead-of-time builds."""
        try:
            version = self.toolchain().removeprefix("triton ")
        except ToolchainMissing as missing:
            return {"available": False, "why": str(missing)}
        spec = importlib.util.find_spec("triton")
        roots = list(spec.submodule_search_locations or []) if spec else []
        assembler = any((Path(root) / "backends/nvidia/bin/ptxas").exists() for root in roots)
        return {"available": True, "compiler": version, "ahead_of_time": assembler}


def capability_of(arch: str) -> int:
    """90 for sm_90a. Raises BuildError for what is no CUDA arch."""
    try:
        return capability(arch)
    except ValueError as wrong:
        raise BuildError(str(wrong)) from None


def jit_functions(source: str) -> list[str]:
    """Names of the functions that the source decorates with `@triton.jit`. Raises BuildError for a syntax error."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as broken:
        raise BuildError(f"not Python: {broken}") from None
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if any(_is_jit(decorator) for decorator in node.decorator_list)]


def _is_jit(decorator: ast.expr) -> bool:
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (isinstance(call, ast.Attribute) and call.attr == "jit") or (isinstance(call, ast.Name) and call.id == "jit")


def environment(mode: str, scratch: Path) -> dict[str, str]:
    """Variables for the process that runs a candidate without a GPU: `mode` is INTERPRET or RECORD.

    A private cache folder, because a shared one could be filled with another candidate's binaries.
    """
    variables = {"TRITON_CACHE_DIR": str(scratch / "triton-cache")}
    if mode == INTERPRET:
        variables["TRITON_INTERPRET"] = "1"
    elif mode != RECORD:
        raise ValueError(f"mode is {INTERPRET!r} or {RECORD!r}, not {mode!r}")
    return variables


LANGUAGE = Triton()
