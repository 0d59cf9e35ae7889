"""Ask Inductor for its code for one workload of a reference: the text of its output module, and what it expects.

Nothing is run and no data exists: the reference is traced under fake tensors and handed to Inductor's own front end
(AOTAutograd, decompositions, fusion passes, code generation), which is stopped when it has written its Python module.
So a problem with gigabytes of inputs takes a second or two, the GPU stays free, and a GPU need not be there at all
(see `compiler_pretend`).

`dynamic` makes every dimension a symbol: one capture then serves all shapes that satisfy its conditions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

from worker.builtin.compiler_problem import NoCompilerSeed, as_no_seed, instance, replaced, state_of
from worker.builtin.trace import Workload


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor that Inductor's code takes.

    `key` is the state dict key, or the forward argument's name. `shape` and `strides` hold numbers, symbols or
    expressions of symbols as Python text.
    """

    key: str
    is_state: bool
    dtype: str
    shape: tuple[str, ...]
    strides: tuple[str, ...]
    contiguous: bool


@dataclass(frozen=True, slots=True)
class Capture:
    """Inductor's output for one workload.

    `conditions` are Python expressions, all of which must hold, each with the symbols that it reads; `symbols` names
    those that a shape gives directly. `numbers` are inputs of forward that are no tensors: the code has their values.
    `graph` is what was traced, as text: the same computation has the same text.
    """

    workload: str
    code: str
    arguments: tuple[Argument, ...]
    numbers: tuple[tuple[str, object], ...]
    symbols: frozenset[str]
    conditions: tuple[tuple[str, frozenset[str]], ...]
    returns: str
    """tensor, tuple or list: what forward returns."""
    outputs: int
    graph: str


class _Captured(Exception):
    """Inductor's code is written; the rest of its work is not wanted."""


def capture(namespace: Mapping[str, Any], workload: Workload, device: torch.device, *, dynamic: bool) -> Capture:
    """Inductor's code for one workload. Raises NoCompilerSeed."""
    with as_no_seed():
        return _Session(namespace, workload, device, dynamic).capture()


def graph_text(namespace: Mapping[str, Any], workload: Workload, *, dynamic: bool) -> str:
    """`Capture.graph` of a workload, without asking Inductor. Raises NoCompilerSeed."""
    with as_no_seed():
        return _Session(namespace, workload, torch.device("cpu"), dynamic).graph().code


class _Session:
    """One capture: the fake tensors, the graph, the code."""

    def __init__(self, namespace: Mapping[str, Any], workload: Workload, device: torch.device, dynamic: bool) -> None:
        self.workload = workload
        self.device = device
        self.dynamic = dynamic
        self.shapes = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.shapes, allow_non_fake_inputs=True)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            self.model, self.inputs = instance(namespace, workload)
        self.state = {key: self._fake(key, value) for key, value in state_of(self.model).items()}
        self.tensors = {k: self._fake(k, v) for k, v in self.inputs.items() if isinstance(v, torch.Tensor)}
        self.numbers = {k: v for k, v in self.inputs.items() if not isinstance(v, torch.Tensor)}
        self.returns = "tensor"

    def capture(self) -> Capture:
        if any(not isinstance(value, int | float | bool | str | None) for value in self.numbers.values()):
            raise NoCompilerSeed("forward takes nested arguments")
        graph = self.graph()
        outputs, text = _outputs(graph), graph.code
        flat = [*self.state.values(), *self.tensors.values()]
        flat = self._to_device(graph, flat)
        code = self._code(graph, flat)
        keys = [(key, True) for key in self.state] + [(key, False) for key in self.tensors]
        arguments = tuple(self._argument(*key, value) for key, value in zip(keys, flat, strict=True))
        symbols = frozenset(name for argument in arguments for name in argument.shape if name.isidentifier())
        conditions = tuple(self._conditions(symbols))
        numbers = tuple(self.numbers.items())
        return Capture(self.workload.name, code, arguments, numbers, symbols, conditions, self.returns, outputs, text)

    def _fake(self, key: str, value: torch.Tensor) -> torch.Tensor:
        from torch._dynamo.source import LocalSource

        if value.layout is not torch.strided or type(value.data).__name__ not in ("FakeTensor", "Tensor"):
            raise NoCompilerSeed(f"{key} is not a plain dense tensor")
        kind = DimDynamic.DYNAMIC if self.dynamic else DimDynamic.STATIC
        context: Any = StatelessSymbolicContext(dynamic_sizes=[kind] * value.dim())
        return self.mode.from_tensor(value.detach(), source=LocalSource(key), symbolic_context=context)

    def graph(self) -> GraphModule:
        def forward(state: dict[str, torch.Tensor], tensors: list[torch.Tensor]) -> Any:
            given = dict(zip(self.tensors, tensors, strict=True))
            args = tuple(given.get(name, value) for name, value in self.inputs.items())
            result = torch.func.functional_call(self.model, state, args)
            self.returns = _kind_of(result)
            return result

        with torch.no_grad(), self.mode:
            # Before autograd and decompositions: Inductor's front end shall meet the ops that the author wrote.
            traced: GraphModule = make_fx(forward, tracing_mode="real", pre_dispatch=True)(
                self.state, list(self.tensors.values())
            )
        if any(node.op in ("get_attr", "call_module", "call_method") for node in traced.graph.nodes):
            raise NoCompilerSeed("forward uses a tensor that is neither passed in nor in the state dict")
        return traced

    def _to_device(self, graph: GraphModule, flat: list[torch.Tensor]) -> list[torch.Tensor]:
        """The graph was traced on the CPU, where every op can be; move what it names, and its inputs, to the target."""
        if self.device.type == "cpu":
            return flat
        for node in graph.graph.nodes:
            node.args = pytree.tree_map(self._moved, node.args)
            node.kwargs = pytree.tree_map(self._moved, node.kwargs)
        graph.recompile()
        with self.mode:
            return [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=self.device) for t in flat]

    def _moved(self, value: Any) -> Any:
        return self.device if isinstance(value, torch.device) else value

    def _code(self, graph: GraphModule, flat: Sequence[torch.Tensor]) -> str:
        written: list[str] = []

        def stop(code: str) -> None:
            written.append(code)
            raise _Captured

        try:
            with torch.no_grad(), tracing(TracingContext(self.mode)), _settings():
                # Seconds to import, so not at the top; and not without a warning.
                from torch._inductor.compile_fx import compile_fx
                from torch._inductor.graph import GraphLowering

                with replaced(GraphLowering, "save_output_code", staticmethod(stop)):
                    compile_fx(graph, list(flat))
        except Exception:
            if not written:
                raise
        if not written:
            raise NoCompilerSeed("Inductor wrote no code: there is nothing to compute")
        return written[-1]

    def _argument(self, key: str, is_state: bool, value: torch.Tensor) -> Argument:
        shape = tuple(self._text(size) for size in value.shape)
        strides = tuple(self._text(stride) for stride in value.stride())
        dtype = str(value.dtype).removeprefix("torch.")
        return Argument(key, is_state, dtype, shape, strides, value.is_contiguous())

    def _text(self, size: Any) -> str:
        """A dimension as Python text, with what Inductor found out about its symbols put in."""
        if isinstance(size, torch.SymInt):
            return _printed(self.shapes.replace(size.node.expr))
        return str(int(size))

    def _conditions(self, symbols: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
        """What Inductor assumed of the symbols: bounds first (0 and 1 are always special), then whatever it met."""
        for symbol, bounds in self.shapes.var_to_range.items():
            name = str(symbol)
            if name in symbols:
                yield f"{name} >= {max(0, int(bounds.lower))}", frozenset({name})
                if bounds.upper < 2**62:
                    yield f"{name} <= {int(bounds.upper)}", frozenset({name})
        for guard in self.shapes.guards:
            expression = self.shapes.replace(guard.expr)
            if expression.free_symbols:
                yield _printed(expression), frozenset(map(str, expression.free_symbols))


def _kind_of(result: Any) -> str:
    if isinstance(result, torch.Tensor):
        return "tensor"
    if isinstance(result, tuple | list) and all(isinstance(item, torch.Tensor) for item in result):
        return "tuple" if isinstance(result, tuple) else "list"
    raise NoCompilerSeed("forward returns something else than tensors")


def _outputs(graph: GraphModule) -> int:
    result = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    return len(pytree.tree_leaves(result))


def _printed(expression: Any) -> str:
    from torch._inductor.codegen.wrapper import pexpr

    return str(pexpr(expression))


@contextmanager
def _settings() -> Iterator[None]:
    """No caches (they would answer in place of the code generator), no workers, nothing fixed to this process."""
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor  # a second to import: recipes, which come first, shall not wait for it

    changes: dict[str, Any] = {
        "fx_graph_cache": False,
        "fx_graph_remote_cache": False,
        "compile_threads": 1,
        "cpp_wrapper": False,
        "freezing": False,
        "cpp.dynamic_threads": True,  # else the thread count of this process is baked in, as the size of arrays
        "triton.cudagraphs": False,
        "graph_partition": False,
    }
    known = {name: value for name, value in changes.items() if _has(inductor, name)}
    patch: Callable[..., Any] = inductor.patch
    with (
        patch(known),
        functorch.patch(enable_autograd_cache=False),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # advice to users of torch.compile, such as to allow TF32
        yield


def _has(config: Any, name: str) -> bool:
    for part in name.split("."):
        if not hasattr(config, part):
            return False
        config = getattr(config, part)
    return True
