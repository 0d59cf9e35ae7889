"""Read Inductor's output module, and rewrite its `call` into a plain function over torch.

The module defines kernels (`async_compile.triton(...)`, `async_compile.cpp_pybinding(...)`) and a `call(args)` that
allocates buffers, launches kernels and calls the library. What of it belongs to Inductor's runtime is replaced by its
torch equivalent or dropped; whatever is left over that is not understood raises NoCompilerSeed, so that nothing of
Inductor is needed when the candidate runs.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from worker.builtin.compiler_problem import NoCompilerSeed

VIEW = '''\
def _view(t, size, stride, offset):
    """The memory of `t` with another shape; `offset` counts elements from where `t` begins."""
    return t.as_strided(size, stride, t.storage_offset() + offset)
'''

_KERNEL_MAKERS = {"async_compile.triton": 1, "async_compile.cpp_pybinding": 1}
"""What defines a kernel, and which argument is its source."""
_DROPPED = frozenset(
    ["args.clear", "assert_size_stride", "assert_alignment", "torch.cuda.set_device", "get_raw_stream"]
    + ["copy_if_misaligned", "async_compile.wait"]
)
_GUARDS = frozenset(["torch.cuda._DeviceGuard", "torch.cuda.device"])
_ALLOCATORS = frozenset(["empty_strided_cpu", "empty_strided_cuda"])
_LIBRARIES = frozenset(["aten", "prims"])
"""Namespaces of torch.ops that need no import beside torch's."""
_CONSTANTS = {"inf": "math.inf", "nan": "math.nan"}
_KNOWN = frozenset(["torch", "math", "device", "_view"])


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the output module, under Inductor's name for it."""

    name: str
    language: str
    source: str


@dataclass(frozen=True, slots=True)
class Wrapper:
    """The output module, read: kernels, the names of the arguments of `call`, and its statements."""

    kernels: tuple[Kernel, ...]
    parameters: tuple[str, ...]
    outputs: int
    body: tuple[ast.stmt, ...]


class Launcher(Protocol):
    """Knows how kernels are called in the candidate."""

    @property
    def names(self) -> frozenset[str]:
        """The module-level names that its calls use."""

    def launch(self, kernel: Kernel, arguments: Sequence[ast.expr]) -> str:
        """The call, as a Python expression. Raises NoCompilerSeed."""


def parse_wrapper(code: str) -> Wrapper:
    """Read Inductor's output module. Raises NoCompilerSeed."""
    module = ast.parse(code)
    kernels = tuple(kernel for statement in module.body for kernel in _kernels_of(statement))
    calls = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == "call"]
    if len(calls) != 1:
        raise NoCompilerSeed(f"Inductor's module has {len(calls)} functions named call")
    body = calls[0].body
    first = body[0] if body else None
    if not isinstance(first, ast.Assign) or dotted(first.value) != "args":
        raise NoCompilerSeed("Inductor's call does not begin with its arguments")
    target = first.targets[0]
    names = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    last = body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
        raise NoCompilerSeed("Inductor's call does not end with its results")
    return Wrapper(kernels, tuple(dotted(name) for name in names), len(last.value.elts), tuple(body[1:]))


def _kernels_of(statement: ast.stmt) -> list[Kernel]:
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return []
    maker = dotted(statement.value.func)
    if not maker.startswith("async_compile."):
        return []
    position = _KERNEL_MAKERS.get(maker)
    if position is None:
        raise NoCompilerSeed(f"Inductor made a kernel with {maker}")
    source = ast.literal_eval(statement.value.args[position])
    return [Kernel(dotted(statement.targets[0]), maker.split(".")[1].split("_")[0], source)]


def dotted(node: ast.expr | None) -> str:
    """`torch.cuda.set_device` for that expression; empty for what is no dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


@dataclass(frozen=True, slots=True)
class Plain:
    """A rewritten `call`: its statements, and what they need."""

    lines: tuple[str, ...]
    used: frozenset[str]
    """Names that are read, the parameters' among them."""


def rewrite(wrapper: Wrapper, names: Mapping[str, str], launcher: Launcher, returns: str) -> Plain:
    """The body of `call` as plain torch. `names` renames its arguments. Raises NoCompilerSeed."""
    rewriter = _Rewriter(wrapper.kernels, names, launcher)
    statements = [new for old in wrapper.body for new in rewriter.statement(old)]
    last = statements[-1]
    assert isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple)  # parse_wrapper saw to it
    if returns == "tensor":
        last.value = last.value.elts[0]
    elif returns == "list":
        last.value = ast.List(last.value.elts, ast.Load())
    used = _check_names(ast.Module(statements, []), launcher.names | set(names.values()))
    return Plain(tuple(ast.unparse(statement) for statement in statements), used)


def embedded(wrapper: Wrapper, names: Mapping[str, str], module: str, returns: str) -> Plain:
    """A call into Inductor's module as it is, which the candidate has loaded as `module`."""
    passed = [names[parameter] for parameter in wrapper.parameters]
    results = f"{module}.call([{', '.join(passed)}])"
    wanted = {"tensor": f"{results}[0]", "tuple": f"tuple({results})", "list": f"list({results})"}[returns]
    return Plain((f"return {wanted}",), frozenset(passed))


def _check_names(tree: ast.AST, known: frozenset[str]) -> frozenset[str]:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    unknown = read - bound - known - _KNOWN - set(dir(builtins))
    if unknown:
        raise NoCompilerSeed(f"Inductor's call uses {', '.join(sorted(unknown))}")
    return frozenset(read)


class _Rewriter(ast.NodeTransformer):
    """Replaces what belongs to Inductor's runtime in the statements of `call`."""

    def __init__(self, kernels: Sequence[Kernel], names: Mapping[str, str], launcher: Launcher) -> None:
        self.kernels = {kernel.name: kernel for kernel in kernels}
        self.names = {**names, **{f"{old}_size": f"{new}_size" for old, new in names.items()}}
        self.launcher = launcher

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """What stands in place of one statement: nothing, or one, or those inside a device guard."""
        if isinstance(node, ast.With):
            if all(_callee(item.context_expr) in _GUARDS for item in node.items):
                return [new for old in node.body for new in self.statement(old)]
            raise NoCompilerSeed(f"Inductor's call uses {ast.unparse(node.items[0])}")
        if isinstance(node, ast.Expr | ast.Assign) and _callee(node.value) in _DROPPED:
            return []
        if not isinstance(node, ast.Expr | ast.Assign | ast.Delete | ast.Return):
            raise NoCompilerSeed(f"Inductor's call has a {type(node).__name__} statement")
        return [ast.fix_missing_locations(self.visit(node))]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in _CONSTANTS:
            return _expression(_CONSTANTS[node.id])
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        name = dotted(node)
        if name.startswith("aten."):
            return _expression(f"torch.ops.{name}")
        if name.startswith("torch.ops."):
            if name.split(".")[2] not in _LIBRARIES:
                raise NoCompilerSeed(f"Inductor's call uses {name}")
            return node
        if name.startswith("extern_kernels."):
            return _expression(_library_call(name.removeprefix("extern_kernels.")))
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = dotted(node.func)
        kernel = self.kernels.get(name.removesuffix(".run"))
        if kernel is not None:
            return _expression(self.launcher.launch(kernel, [self.visit(argument) for argument in node.args]))
        if name in _ALLOCATORS:
            return self._allocation(node, on_gpu=name == "empty_strided_cuda")
        if name in ("device", "torch.device"):
            return ast.Name("device", ast.Load())
        if name == "reinterpret_tensor":
            node.func = ast.Name("_view", ast.Load())
        self.generic_visit(node)
        return node

    def _allocation(self, node: ast.Call, *, on_gpu: bool) -> ast.expr:
        size, stride, dtype = (self.visit(argument) for argument in node.args)
        keywords = [ast.keyword("dtype", dtype)]
        if on_gpu:
            keywords.append(ast.keyword("device", ast.Name("device", ast.Load())))
        return ast.Call(_expression("torch.empty_strided"), [size, stride], keywords)


def _callee(node: ast.expr | None) -> str:
    return dotted(node.func) if isinstance(node, ast.Call) else ""


def _library_call(name: str) -> str:
    """The public name of what Inductor calls `extern_kernels.name`."""
    if hasattr(torch, name) and not name.startswith("_"):
        return f"torch.{name}"
    if hasattr(torch.ops.aten, name):
        return f"torch.ops.aten.{name}"
    raise NoCompilerSeed(f"Inductor calls its own library function {name}")


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
