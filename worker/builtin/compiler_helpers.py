"""What Inductor's Triton kernels call besides Triton: its helper functions, copied, and libdevice."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect

from worker.builtin.compiler_problem import NoCompilerSeed
from worker.builtin.compiler_wrapper import dotted

# Where the interpreter has no libdevice, Triton's own functions: a little less exact, on a CPU exact all the same.
_INTERPRETED = {
    "abs": "abs", "ceil": "ceil", "cos": "cos", "erf": "erf", "exp": "exp", "exp2": "exp2", "fma": "fma",
    "floor": "floor", "log": "log", "log2": "log2", "rsqrt": "rsqrt", "sin": "sin", "sqrt": "sqrt",
}  # fmt: skip
# And what Triton does not have either. log1p and expm1 as in Kahan's notes: exact where the naive form cancels.
_STAND_INS = {
    "isnan": "def isnan(x):\n    return x != x",
    "isinf": "def isinf(x):\n    return tl.abs(x) == float('inf')",
    "log1p": "def log1p(x):\n    u = 1.0 + x\n    return tl.where(u == 1.0, x, tl.log(u) * x / (u - 1.0))",
    "expm1": "def expm1(x):\n    u = tl.exp(x)\n    y = tl.where(u == 1.0, x, (u - 1.0) * x / tl.log(u))\n"
    "    return tl.where(u - 1.0 == -1.0, -1.0, tl.where(u == float('inf'), u, y))",
    "tanh": "def tanh(x):\n    return 2.0 * tl.sigmoid(2.0 * x) - 1.0",
}
_KNOWN = frozenset(["tl", "triton", "libdevice", "math"]) | set(dir(builtins))


class Helpers:
    """The helper functions that a candidate's kernels call, collected as the kernels are adopted."""

    def __init__(self, *, interpreted: bool) -> None:
        self.interpreted = interpreted
        self._copied: dict[str, ast.stmt] = {}
        self._libdevice = False
        self._log2 = False

    @property
    def imports(self) -> tuple[str, ...]:
        """The imports that the copied code needs beside Triton's."""
        lines = ["from triton.language.extra import libdevice"] if self._libdevice else []
        return (*lines, *(["from triton.language.standard import _log2"] if self._log2 else []))

    def code(self) -> str:
        """The helper functions, those that others call first."""
        order = [name for name in _definitions() if name in self._copied]
        return "\n\n\n".join(ast.unparse(self._copied[name]) for name in order)

    def adopt(self, kernel: ast.stmt, parts: frozenset[str]) -> ast.stmt:
        """The kernel with its helpers called by their own names; `parts` are functions of its own.

        Raises NoCompilerSeed.
        """
        adopted: ast.stmt = _Renamed(self.interpreted).visit(kernel)
        self._need(adopted, set(parts))
        return ast.fix_missing_locations(adopted)

    def _need(self, tree: ast.AST, bound: set[str]) -> None:
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        own = bound | {n.id for n in names if isinstance(n.ctx, ast.Store)} | _inner_names(tree)
        for name in {n.id for n in names if isinstance(n.ctx, ast.Load)} - own:
            if name in _definitions():
                self._copy(name)
            elif name == "_log2":
                self._log2 = True
            elif name not in _KNOWN:
                raise NoCompilerSeed(f"a kernel uses {name}")
            self._libdevice = self._libdevice or name == "libdevice"

    def _copy(self, name: str) -> None:
        if name in self._copied:
            return
        statement = _Renamed(self.interpreted, in_helper=True).visit(
            ast.parse(ast.unparse(_definitions()[name])).body[0]
        )
        self._copied[name] = ast.fix_missing_locations(statement)
        self._need(statement, _inner_names(statement))


def _inner_names(tree: ast.AST) -> set[str]:
    """Names that functions inside `tree`, and it itself, bind as parameters or by definition."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    parameters = {a.arg for f in functions for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)}
    return parameters | {f.name for f in functions}


class _Renamed(ast.NodeTransformer):
    """Inductor's spelling to the candidate's: `triton_helpers.f` to `f`, `tl_math` to `tl.math`, and so on."""

    def __init__(self, interpreted: bool, *, in_helper: bool = False) -> None:
        self.interpreted = interpreted
        self.in_helper = in_helper

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        owner, _, name = dotted(node).rpartition(".")
        if owner in ("triton_helpers", "libdevice", "triton_helpers.libdevice", "tl_math", "triton_helpers.math"):
            return self._named(owner.rpartition(".")[2], name)
        self.generic_visit(node)
        return node

    def _named(self, owner: str, name: str) -> ast.expr:
        if owner == "triton_helpers":
            return ast.Name(name, ast.Load())
        if owner == "libdevice" and not self.interpreted:
            return _expression(f"libdevice.{name}")
        if owner == "libdevice" and name in _STAND_INS:
            return ast.Name(f"_{name}", ast.Load())
        if owner == "libdevice" and name not in _INTERPRETED:
            raise NoCompilerSeed(f"a kernel uses libdevice.{name}, which Triton's interpreter does not have")
        return _expression(f"tl.math.{_INTERPRETED.get(name, name) if owner == 'libdevice' else name}")

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if self.in_helper and node.id in ("math", "pymath") and isinstance(node.ctx, ast.Load):
            return _expression("tl.math" if node.id == "math" else "math")
        if node.id == "tl_math":
            return _expression("tl.math")
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Annotations name types that the candidate does not import; only tl's mean something to Triton."""
        node.returns = None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if argument.annotation is not None and not dotted(argument.annotation).startswith("tl."):
                argument.annotation = None
        self.generic_visit(node)
        return node


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@functools.lru_cache(maxsize=1)
def _definitions() -> dict[str, ast.stmt]:
    """Functions and constants of Inductor's helper module, by name, in its order."""
    from torch._inductor.runtime import triton_helpers

    found: dict[str, ast.stmt] = {}
    for statement in ast.parse(inspect.getsource(triton_helpers)).body:
        if isinstance(statement, ast.FunctionDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            found[dotted(target)] = statement
    for name, text in _STAND_INS.items():
        found[f"_{name}"] = ast.parse("@triton.jit\n" + text.replace(f"def {name}(", f"def _{name}(")).body[0]
    return found
