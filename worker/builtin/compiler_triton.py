"""Inductor's Triton kernels as plain `@triton.jit` functions with their launches.

Inductor wraps each kernel in its own autotuner. Here the block sizes and warps that the autotuner would try become a
list of configurations, and which one is used a tunable: the search times them with the judge's clock. The helper
functions of Inductor's runtime that a kernel calls are copied into the candidate.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.builtin.compiler_configs import grid_and_configs
from worker.builtin.compiler_helpers import Helpers
from worker.builtin.compiler_problem import NoCompilerSeed
from worker.builtin.compiler_wrapper import Kernel, Plain, Wrapper, dotted, embedded

MAX_TUNABLES = 16
"""As many as the search takes."""
_MAX_GRID_Y = 65535

_LOAD = '''\
def _load(code):
    """Inductor's module as it is, with its own autotuner: not all of it could be written out as plain Triton."""
    import torch._inductor.config
    from torch._inductor.codecache import PyCodeCache

    torch._inductor.config.compile_threads = 1
    return PyCodeCache.load(code)
'''

_SPLIT_Y = f'''\
def _split_y(blocks):
    """A grid's second dimension ends at {_MAX_GRID_Y}: what is more goes into the third."""
    rounds = triton.cdiv(blocks, {_MAX_GRID_Y})
    return triton.cdiv(blocks, rounds), rounds
'''


@dataclass(frozen=True, slots=True)
class _Function:
    """One kernel of the candidate."""

    name: str
    origin: str
    """Inductor's name, which lists the ops that the kernel computes."""
    text: str
    parameters: tuple[str, ...]
    """Those that the call passes; block sizes come from the configuration."""
    configs: tuple[dict[str, int], ...]
    grid: str


class TritonKernels:
    """The Triton kernels of a candidate, collected while its calls are written.

    `interpreted`: it will run in Triton's interpreter, which has no libdevice.
    """

    def __init__(self, *, interpreted: bool) -> None:
        self.interpreted = interpreted
        self.helpers = Helpers(interpreted=interpreted)
        self.functions: dict[str, _Function] = {}
        self._modules: list[str] = []
        self._workload = ""
        self._before: dict[str, _Function] = {}

    def begin(self, workload: str) -> None:
        """The calls of this workload follow."""
        self._workload = re.sub(r"\W", "_", workload)
        self._before = dict(self.functions)

    @property
    def names(self) -> frozenset[str]:
        made = {name for f in self.functions.values() for name in (f.name, _config_name(f))}
        return frozenset(made | {"triton", "_split_y"})

    @property
    def imports(self) -> tuple[str, ...]:
        return ("import triton", "import triton.language as tl", *self.helpers.imports)

    @property
    def tunables(self) -> dict[str, Sequence[object]]:
        return {f"CONFIG_{f.name.upper()}": list(range(len(f.configs))) for f in self._tunable()}

    @property
    def defaults(self) -> dict[str, object]:
        return dict.fromkeys(self.tunables, 0)

    def _tunable(self) -> list[_Function]:
        choosable = [f for f in self.functions.values() if len(f.configs) > 1]
        return choosable[:MAX_TUNABLES]

    def launch(self, kernel: Kernel, arguments: Sequence[ast.expr]) -> str:
        """The call of one kernel. Raises NoCompilerSeed."""
        function = self._function(kernel)
        takes, passes = len(function.parameters), len(arguments)
        if takes != passes:
            raise NoCompilerSeed(f"{kernel.name} takes {takes} arguments, Inductor passes {passes}")
        given = {name: ast.unparse(argument) for name, argument in zip(function.parameters, arguments, strict=True)}
        config = _config_name(function)
        return f"{function.name}[{_grid(function, given)}]({', '.join(given.values())}, **{config})"

    def instead(self, wrapper: Wrapper, code: str, names: Mapping[str, str], returns: str) -> Plain | None:
        """A call of Inductor's module as it is, where it could not be rewritten: it needs a GPU when it is loaded."""
        if self.interpreted or not wrapper.kernels:
            return None
        self.functions = self._before
        self._modules.append(code)
        return embedded(wrapper, names, f"_MODULE_{len(self._modules) - 1}", returns)

    def code(self) -> str:
        """The module-level Python that defines the kernels. Raises NoCompilerSeed when there are none."""
        if not self.functions and not self._modules:
            raise NoCompilerSeed("Inductor calls the library for all of it, and adds no kernel")
        functions = list(self.functions.values())
        parts = [self.helpers.code()]
        parts += [_SPLIT_Y] if any(f.grid == "Grid2DWithYZOverflow" for f in functions) else []
        parts += [f"# {f.origin}\n{f.text}" for f in functions]
        parts += [_LOAD] if self._modules else []
        parts += [f"_MODULE_{index} = _load({_quoted(code)})" for index, code in enumerate(self._modules)]
        return "\n\n\n".join([*filter(None, parts), *self._configs()]) + "\n"

    def _configs(self) -> list[str]:
        if not self.functions:
            return []
        tunable = {f.name for f in self._tunable()}
        lines = ["# Block sizes and warps that Inductor would try, its first choice first."]
        for f in self.functions.values():
            choice = f"CONFIG_{f.name.upper()}" if f.name in tunable else "0"
            listed = "".join(f"    {config!r},\n" for config in f.configs)
            lines.append(f"{_config_name(f)} = (\n{listed})[{choice}]")
        return ["\n".join(lines)]

    def _function(self, kernel: Kernel) -> _Function:
        if kernel.language != "triton":
            raise NoCompilerSeed(f"Inductor wrote {kernel.language} where Triton was wanted")
        if kernel.source not in self.functions:
            self.functions[kernel.source] = self._translated(kernel)
        return self.functions[kernel.source]

    def _translated(self, kernel: Kernel) -> _Function:
        definition, parts = _definition(kernel)
        arguments = definition.args.args
        chosen = [a.arg for a in arguments if a.annotation is not None]  # tl.constexpr: block sizes
        grid, configs = grid_and_configs(definition, frozenset(chosen))
        if grid not in _GRIDS:
            raise NoCompilerSeed(f"{kernel.name} is launched on a {grid}")
        if any(name not in config for config in configs for name in chosen):
            raise NoCompilerSeed(f"{kernel.name} wants more than its configurations give")
        kind = kernel.name.removeprefix("triton_").partition("_")[0]  # poi, red, per, ...
        definition.name = f"{kind}_{self._workload}_{len(self.functions)}"
        texts = [self._text(function, definition.name, parts) for function in (*parts, definition)]
        passed = tuple(a.arg for a in arguments if a.annotation is None)
        return _Function(definition.name, kernel.name, "\n\n\n".join(texts), passed, configs, grid)

    def _text(self, function: ast.FunctionDef, kernel: str, parts: Sequence[ast.FunctionDef]) -> str:
        """A function's source; a kernel's own parts (what a scan combines with) are named after it."""
        own = {part.name: f"{kernel}{part.name}" for part in parts}
        function = ast.parse(ast.unparse(function)).body[0]  # type: ignore[assignment]
        function.decorator_list = [_JIT]
        function.name = own.get(function.name, function.name)
        for node in ast.walk(function):
            if isinstance(node, ast.Name):
                node.id = own.get(node.id, node.id)
        return ast.unparse(self.helpers.adopt(function, frozenset(own.values())))


def _quoted(text: str) -> str:
    return repr(text) if '"""' in text or text.endswith(("\\", '"')) else f'r"""{text}"""'


_JIT = ast.parse("triton.jit", mode="eval").body


def _definition(kernel: Kernel) -> tuple[ast.FunctionDef, list[ast.FunctionDef]]:
    """The kernel's function and the functions that it is made with, out of the module that Inductor wrote for it."""
    functions = [node for node in ast.parse(kernel.source).body if isinstance(node, ast.FunctionDef)]
    kernels = [f for f in functions if len(f.decorator_list) > 1 and dotted(f.decorator_list[-1]) == "triton.jit"]
    parts = [f for f in functions if [dotted(d) for d in f.decorator_list] == ["triton.jit"]]
    if len(kernels) != 1 or len(parts) != len(functions) - 1:
        raise NoCompilerSeed(f"{kernel.name} is no kernel with its parts")
    return kernels[0], parts


def _config_name(function: _Function) -> str:
    return f"_CONFIG_{function.name}"


# What each dimension of a grid counts, by what Inductor calls the kind of grid: elements of an axis, in its blocks.
_GRIDS = {
    "Grid1D": ("x",),
    "Grid2D": ("x", "y"),
    "Grid3D": ("x", "y", "z"),
    "Grid2DWithYZOverflow": ("x", "*y"),
    "SplitScanGrid": ("r0_", "x"),
}


def _grid(function: _Function, given: Mapping[str, str]) -> str:
    """How many programs run, as an expression."""
    parts = []
    for axis in _GRIDS[function.grid]:
        plain = axis.removeprefix("*")
        numel = given.get(f"{plain}numel")
        if numel is None:
            raise NoCompilerSeed(f"{function.origin} has a {function.grid} and no {plain}numel")
        block = f"{plain.upper()}BLOCK"
        split = block in function.configs[0]
        blocks = f'triton.cdiv({numel}, {_config_name(function)}["{block}"])' if split else numel
        parts.append(f"*_split_y({blocks})" if axis.startswith("*") else blocks)
    return f"({', '.join(parts)},)"
