"""What a problem file says, without running it: the bundled suite and the check of a user's own file.

A problem is a KernelBench-style Python file: `class Model(nn.Module)`, `get_inputs()`, `get_init_inputs()`, and, if
wanted, a module-level literal `SPEC`. Standard library only: the API, which has no torch, uses it.

    outline = bundled()["softmax"]            # or outline(source, "my_op"), which raises ProblemError("line 12: ...")
    outline.spec.workloads_for("cpu")         # the workloads judged on that hardware
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from problems._spec import Domain, Param, Precision, ProblemError, SeatSpec, Spec, Workload, read_spec

__all__ = [
    "MAX_SOURCE_BYTES",
    "Domain",
    "Outline",
    "Param",
    "Precision",
    "ProblemError",
    "SeatSpec",
    "Spec",
    "Workload",
    "bundled",
    "outline",
    "source_hash",
]

MAX_SOURCE_BYTES = 1 << 20
"""The largest problem file in bytes: KernelBench's largest is 14 KB; beyond this it is a mistake or an attack."""

_NEEDED = {
    "Model": "class Model(nn.Module): the reference, with __init__ and forward",
    "get_inputs": "def get_inputs(): it returns the list of forward's arguments",
    "get_init_inputs": "def get_init_inputs(): it returns the list of Model's constructor arguments (often [])",
}


@dataclass(frozen=True, slots=True)
class Outline:
    """A problem file that was read and checked, but not run."""

    name: str
    source: str
    spec: Spec
    source_hash: str
    forward_args: tuple[str, ...] = ()
    """The names of forward's arguments, when Model defines forward itself with plain arguments; else empty."""

    @property
    def summary(self) -> str:
        """One line on what it computes."""
        return self.spec.summary

    @property
    def op_family(self) -> str:
        """What kind of operation it is: the knowledge base groups by it."""
        return self.spec.op_family


def source_hash(source: str) -> str:
    """SHA-256 of the source, in hex: the problem's identity."""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def bundled() -> Mapping[str, Outline]:
    """The bundled problems by name, in alphabetical order."""
    folder = Path(__file__).parent / "suite"
    paths = sorted(path for path in folder.glob("*.py") if not path.stem.startswith("_"))
    return MappingProxyType({path.stem: outline(path.read_text(encoding="utf-8"), path.stem) for path in paths})


def outline(source: str, name: str) -> Outline:
    """Read a problem file without running it.

    Raises:
        ProblemError: it cannot be a problem; the message names the line and says what to write.
    """
    tree = _parse(source)
    bound = _bound(tree)
    for needed, hint in _NEEDED.items():
        if needed not in bound:
            raise ProblemError(f"line {_last_line(source)}: {needed} is missing: add `{hint}`")
    spec, lines = _spec_of(tree)
    forward_args = _forward_args(bound["Model"])
    _check_domains(spec, lines, forward_args)
    _check_library(spec, lines, bound)
    _check_params(spec, lines, [bound["get_inputs"], bound["get_init_inputs"]])
    return Outline(name=name, source=source, spec=spec, source_hash=source_hash(source), forward_args=forward_args)


def _parse(source: str) -> ast.Module:
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        raise ProblemError(f"line 1: the file has {size} bytes of at most {MAX_SOURCE_BYTES}: move data out of it")
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise ProblemError(f"line {error.lineno or 1}: {error.msg}") from error
    except ValueError as error:  # null bytes, lone surrogates
        raise ProblemError(f"line 1: the file is no Python text: {error}") from error
    except (MemoryError, RecursionError) as error:
        raise ProblemError("line 1: the file nests too deeply to be read: flatten its expressions") from error


def _bound(tree: ast.Module) -> dict[str, ast.stmt]:
    """Top-level names and the statement that binds each (the last one wins, as when the file runs)."""
    bound: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            bound[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            bound |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
    return bound


def _last_line(source: str) -> int:
    return max(1, len(source.splitlines()))


def _spec_of(tree: ast.Module) -> tuple[Spec, dict[str, int]]:
    statement = _bound(tree).get("SPEC")
    if statement is None:
        return Spec(), {"workloads.0": 1}
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if value is None:
        raise ProblemError(f"line {statement.lineno}: SPEC is a module-level dict: write `SPEC = {{...}}`")
    spec, lines = read_spec(value)
    return spec, {f"workloads.{place}": statement.lineno for place in range(len(spec.workloads))} | lines


def _forward_args(model: ast.stmt) -> tuple[str, ...]:
    if not isinstance(model, ast.ClassDef):
        return ()
    for statement in model.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "forward":
            arguments = statement.args
            return tuple(arg.arg for arg in (*arguments.posonlyargs, *arguments.args)[1:])
    return ()


def _check_domains(spec: Spec, lines: Mapping[str, int], forward_args: tuple[str, ...]) -> None:
    for name, domain in spec.domains.items():
        line = lines[f"domains.{name}"]
        if forward_args and name not in forward_args:
            takes = ", ".join(forward_args)
            raise ProblemError(f'line {line}: a domain is given for "{name}", but forward takes {takes}')
        if isinstance(domain.bound, str) and not any(domain.bound in workload.params for workload in spec.workloads):
            raise ProblemError(f'line {line}: "{name}" is bounded by "{domain.bound}", but no workload gives that')


def _check_library(spec: Spec, lines: Mapping[str, int], bound: Mapping[str, ast.stmt]) -> None:
    for name, model in spec.library.items():
        if model not in bound or model == "Model":
            raise ProblemError(
                f'line {lines[f"library.{name}"]}: the library op "{name}" is the class {model}, which this file does '
                f"not define: add `class {model}(nn.Module)` with Model's arguments, parameters and outputs"
            )


def _check_params(spec: Spec, lines: Mapping[str, int], functions: list[ast.stmt]) -> None:
    """Each parameter must reach a function, and each function must get what it cannot do without."""
    known = [function.args for function in functions if isinstance(function, ast.FunctionDef)]
    if len(known) < len(functions):  # bound by an assignment: only running it would tell
        return
    for place, workload in enumerate(spec.workloads):
        line = lines[f"workloads.{place}"]
        for param in workload.params:
            if not any(arguments.kwarg or param in _names(arguments) for arguments in known):
                raise ProblemError(
                    f'line {line}: workload "{workload.name}" gives "{param}", '
                    "but neither get_inputs nor get_init_inputs takes it: add it there or drop it here"
                )
        for function, arguments in zip(functions, known, strict=True):
            missing = [name for name in _required(arguments) if name not in workload.params]
            if missing:
                raise ProblemError(
                    f'line {function.lineno}: {getattr(function, "name", "")} needs "{missing[0]}", which workload '
                    f'"{workload.name}" does not give: give it a default here or add it to the workload\'s params'
                )


def _names(arguments: ast.arguments) -> set[str]:
    return {arg.arg for arg in (*arguments.args, *arguments.kwonlyargs)}


def _required(arguments: ast.arguments) -> list[str]:
    plain = [*arguments.posonlyargs, *arguments.args]
    without = plain[: len(plain) - len(arguments.defaults)]
    keyword = [arg for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None]
    return [arg.arg for arg in (*without, *keyword)]
