"""Trace a reference problem into a small graph of aten ops, without touching data.

The reference's source is executed here (its `Model`, `get_inputs`, `get_init_inputs`), under a `FakeTensorMode`: no
memory is allocated and no arithmetic done, so a problem with gigabytes of inputs traces in a second. One graph is
made per workload of the target, because a Python constant such as `1 / sqrt(q.shape[-1])` is burnt into the graph and
only a second workload shows that it depends on a shape.

Ops keep their *composite* names (`aten.softmax.int`, `aten.layer_norm.default`,
`aten.scaled_dot_product_attention.default`): the trace is made before autograd and before decompositions, where the
author's intent is still visible.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


class TraceError(Exception):
    """The reference could not be traced; only a compiler seed can be offered for it."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of another node's value."""

    index: int


Arg = Ref | int | float | bool | str | None | tuple["Arg", ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One value of the graph.

    `op` is `input`, `parameter` (buffers too), `getitem` or an aten overload such as `aten.add.Tensor` (in-place ops
    are renamed to their functional form). `name` is the forward argument or the state dict key of a leaf, else empty.
    `default_args` are filled in: `args` holds every positional argument of the overload's schema, `kwargs` the rest.
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    shape: tuple[int, ...]
    dtype: str
    name: str = ""

    def kwarg(self, name: str, default: Arg = None) -> Arg:
        return dict(self.kwargs).get(name, default)


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload of the spec: its name and the keyword arguments that `get_inputs`/`get_init_inputs` may take."""

    name: str
    params: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """The traced forward of one workload. `outputs` index `nodes`; `returns_tuple` says how they were returned.

    `inputs` are the tensor arguments of `forward` by name, in its order, with their shapes and dtypes; `scalars` its
    plain numbers, which the trace burns in where they are used.
    """

    workload: str
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    returns_tuple: bool
    scalars: tuple[tuple[str, float], ...] = ()

    @property
    def inputs(self) -> tuple[Node, ...]:
        names = {name for name, _ in self.scalars}
        return tuple(node for node in self.nodes if node.op == "input" and node.name not in names)

    @property
    def parameters(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.op == "parameter")

    def users(self, index: int) -> int:
        """How many times a value is used, outputs included."""
        uses = sum(1 for node in self.nodes for ref in refs((*node.args, *(v for _, v in node.kwargs))) if ref == index)
        return uses + self.outputs.count(index)


def refs(arg: Arg) -> Iterator[int]:
    """The node indices mentioned anywhere inside an argument."""
    if isinstance(arg, Ref):
        yield arg.index
    elif isinstance(arg, tuple):
        for item in arg:
            yield from refs(item)


def load_source(source: str, name: str = "problem") -> dict[str, Any]:
    """Execute a reference's source and return its namespace. Raises TraceError when it does not run."""
    filename = f"<{name}>"
    # Inductor and dynamo read sources back through linecache.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module = types.ModuleType(f"kernelwright_problem_{name}")
    try:
        exec(compile(source, filename, "exec"), module.__dict__)
    except Exception as error:  # noqa: BLE001 - a user's file may raise anything; it is reported, not hidden
        raise TraceError(f"the reference does not run: {type(error).__name__}: {error}") from error
    return module.__dict__


def read_spec(source: str) -> dict[str, Any]:
    """The literal SPEC dict of a reference, or an empty one. Never executes the source."""
    for statement in ast.parse(source).body:
        target, value = _assignment(statement)
        if target == "SPEC" and value is not None:
            try:
                spec = ast.literal_eval(value)
            except ValueError:
                return {}
            return spec if isinstance(spec, dict) else {}
    return {}


def _assignment(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id, statement.value
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id, statement.value
    return "", None


def workloads(source: str, hardware: str) -> tuple[Workload, ...]:
    """The workloads that count on this hardware; one called `default` when the spec names none."""
    mine = "cpu" if hardware == "cpu" else "gpu"
    listed = [w for w in read_spec(source).get("workloads", []) if w.get("for", "any") in (mine, "any")]
    if not listed:
        return (Workload("default"),)
    return tuple(Workload(str(w.get("name", "default")), tuple(w.get("params", {}).items())) for w in listed)


def call_accepting(function: Callable[..., Any], params: Mapping[str, object]) -> Any:
    """Call with those of `params` that the function accepts."""
    accepted = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    return function(**{k: v for k, v in params.items() if takes_any or k in accepted})


def build_model(namespace: Mapping[str, Any], params: Mapping[str, object]) -> torch.nn.Module:
    """Construct the reference for one workload."""
    init = call_accepting(namespace["get_init_inputs"], params)
    model = namespace["Model"](**init) if isinstance(init, dict) else namespace["Model"](*init)
    if not isinstance(model, torch.nn.Module):
        raise TraceError("Model is not an nn.Module")
    return model


def trace_problem(source: str, hardware: str, name: str = "problem") -> tuple[Graph, ...]:
    """Trace every workload of the target. Raises TraceError when the reference cannot be traced."""
    namespace = load_source(source, name)
    missing = [n for n in ("Model", "get_inputs", "get_init_inputs") if n not in namespace]
    if missing:
        raise TraceError(f"the reference does not define {', '.join(missing)}")
    graphs = [trace_workload(namespace, workload) for workload in workloads(source, hardware)]
    if graphs[0].scalars:
        # With other numbers for the number arguments, so that what follows them can be told from what equals them.
        graphs += [trace_workload(namespace, w, shift=1) for w in workloads(source, hardware)[:1]]
    return tuple(graphs)


def trace_workload(namespace: Mapping[str, Any], workload: Workload, shift: int = 0) -> Graph:
    """Trace one workload under fake tensors; `shift` is added to the plain numbers among forward's arguments."""
    params = dict(workload.params)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            model = build_model(namespace, params)
            inputs = list(call_accepting(namespace["get_inputs"], params))
            return _Importer(model, [i + shift if _is_number(i) else i for i in inputs], workload.name).graph()
    except TraceError:
        raise
    except Exception as error:  # noqa: BLE001 - tracing runs the user's forward, which may raise anything
        raise TraceError(f"forward could not be traced: {type(error).__name__}: {error}") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Importer:
    """Turns the traced GraphModule into a Graph."""

    def __init__(self, model: torch.nn.Module, inputs: Sequence[Any], workload: str) -> None:
        self.workload = workload
        self.state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.argument_names = _forward_names(model, len(inputs))
        pairs = zip(self.argument_names, inputs, strict=True)
        self.scalars = tuple((name, float(value)) for name, value in pairs if _is_number(value))
        self.nodes: list[Node] = []
        self.env: dict[FxNode, int] = {}
        self.viewed: set[int] = set()
        self.returns_tuple = False
        self.module = self._trace(model, inputs)

    def _trace(self, model: torch.nn.Module, inputs: Sequence[Any]) -> GraphModule:
        def forward(state: dict[str, torch.Tensor], args: list[Any]) -> Any:
            result = torch.func.functional_call(model, state, tuple(args))
            self.returns_tuple = not isinstance(result, torch.Tensor)
            return result

        traced: GraphModule = make_fx(forward, tracing_mode="fake", pre_dispatch=True)(self.state, list(inputs))
        return traced

    def graph(self) -> Graph:
        leaves = [("parameter", name) for name in self.state] + [("input", name) for name in self.argument_names]
        placeholders = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        if len(placeholders) != len(leaves):
            raise TraceError("forward takes nested arguments; only flat tensors and numbers are supported")
        for node, (kind, name) in zip(placeholders, leaves, strict=True):
            self._add(node, kind, (), {}, name)
        for node in self.module.graph.nodes:
            if node.op in ("get_attr", "call_module", "call_method"):
                raise TraceError(f"forward uses {node.target}, a tensor neither passed in nor in the state dict")
            if node.op == "call_function":
                self._call(node)
        return Graph(self.workload, tuple(self.nodes), self._outputs(), self.returns_tuple, self.scalars)

    def _outputs(self) -> tuple[int, ...]:
        result = next(node for node in self.module.graph.nodes if node.op == "output").args[0]
        flat = pytree.tree_leaves(result)
        if not all(isinstance(item, FxNode) for item in flat):
            raise TraceError("forward returns something that is not a tensor")
        return tuple(self.env[item] for item in flat)

    def _call(self, node: FxNode) -> None:
        if node.target is operator.getitem:
            self._item(node)
            return
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise TraceError(f"forward calls {target}, which is not an aten op")
        if target.namespace != "aten":
            raise TraceError(f"forward calls the custom op {target}")
        args, kwargs = _with_defaults(target, node.args, dict(node.kwargs))
        mutated = target._schema.is_mutable
        self._add(node, str(target).replace("_.", ".", 1) if mutated else str(target), args, kwargs)
        if mutated:
            self._rebind(node, target)
        elif any(a.alias_info is not None for a in target._schema.arguments):
            self.viewed.update(self.env[a] for a in node.args if isinstance(a, FxNode))

    def _item(self, node: FxNode) -> None:
        parent, item = node.args
        if isinstance(parent, FxNode) and parent.target is torch.ops.aten.broadcast_tensors.default:
            # Losses broadcast their arguments to each other; each result is an expand of one of them.
            sources = parent.args[0]
            assert isinstance(sources, list | tuple) and isinstance(item, int)
            self._add(node, "aten.expand.default", (sources[item], tuple(node.meta["val"].shape), False), {})
        else:
            self._add(node, "getitem", node.args, {})

    def _rebind(self, node: FxNode, target: torch._ops.OpOverload) -> None:
        """`y.mul_(2)` makes every later use of `y` mean the new value; views of `y` made before cannot follow."""
        name = target._schema.name.split("::")[1]
        first = node.args[0]
        writes = sum(1 for argument in target._schema.arguments if _writes(argument))
        if not name.endswith("_") or not isinstance(first, FxNode) or writes != 1:
            raise TraceError(f"forward mutates a tensor through {target}")
        old = self.env[first]
        if old in self.viewed or self.nodes[old].op in ("input", "parameter") or _is_view(self.nodes[old].op):
            raise TraceError("forward mutates an input, a parameter or a view")
        self.env[first] = self.env[node]

    def _add(self, node: FxNode, op: str, args: Any, kwargs: dict[str, Any], name: str = "") -> None:
        value = node.meta.get("val")
        shape = tuple(int(n) for n in value.shape) if isinstance(value, torch.Tensor) else ()
        dtype = str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__
        converted = tuple(self._arg(a) for a in args)
        pairs = tuple((k, self._arg(v)) for k, v in kwargs.items())
        self.env[node] = len(self.nodes)
        self.nodes.append(Node(op, converted, pairs, shape, dtype, name))

    def _arg(self, value: Any) -> Arg:
        if isinstance(value, FxNode):
            return Ref(self.env[value])
        if isinstance(value, list | tuple):
            return tuple(self._arg(item) for item in value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return str(value)


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


VIEW_OPS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "reshape.default", "transpose.int", "permute.default", "unsqueeze.default", "squeeze.dim",
        "squeeze.default", "expand.default", "slice.Tensor", "select.int", "chunk.default", "split.Tensor", "t.default",
        "flatten.using_ints", "unflatten.int", "numpy_T.default", "mT.default", "detach.default", "alias.default",
        "squeeze.dims", "movedim.int", "unbind.int", "split_with_sizes.default", "narrow.default", "expand_as.default",
        "swapaxes.default", "view_as.default", "adjoint.default", "broadcast_to.default",
    )
)  # fmt: skip


def _is_view(op: str) -> bool:
    return op in VIEW_OPS or op == "getitem"


def _with_defaults(
    target: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Fill in the schema's defaults, so that recognisers read arguments by position."""
    positional = list(args)
    named: dict[str, Any] = {}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(args):
            continue
        value = kwargs.get(argument.name, argument.default_value)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return tuple(positional), named


def _forward_names(model: torch.nn.Module, count: int) -> tuple[str, ...]:
    """The names of forward's positional arguments; `args[i]` for those taken by a starred one."""
    names: list[str] = []
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names.extend(f"{parameter.name}[{i}]" for i in range(count - len(names)))
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    if len(names) < count:
        raise TraceError("get_inputs returns more values than forward takes")
    return tuple(names[:count])
