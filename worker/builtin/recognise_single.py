"""Recognise the families built round one structured op: cross entropy, scans, group norm, rope, embedding,
transpose."""

from __future__ import annotations

from typing import Literal

from worker.builtin.expressions import Number, Operand, Program, Unmatched
from worker.builtin.families import CrossEntropy, Embedding, GroupNorm, Rope, Scan, Transpose
from worker.builtin.leaves import Leaves
from worker.builtin.lowering import Lowering
from worker.builtin.trace import Arg, Graph, Node, Ref

_COPIES = ("aten.contiguous.default", "aten.clone.default")
_REDUCTION: dict[Arg, Literal["none", "mean", "sum"]] = {0: "none", 1: "mean", 2: "sum"}


def only_output(graph: Graph) -> int:
    if len(graph.outputs) != 1 or graph.returns_tuple:
        raise Unmatched("several outputs")
    return graph.outputs[0]


def ref(arg: Arg) -> int:
    if isinstance(arg, Ref):
        return arg.index
    raise Unmatched("expected a tensor")


def optional(leaves: Leaves, arg: Arg) -> Operand | None:
    return None if arg is None else leaves.operand(ref(arg))


def the_node(graph: Graph, *ops: str) -> int:
    """The index of the only node with one of these ops."""
    found = [i for i, node in enumerate(graph.nodes) if node.op in ops]
    if len(found) != 1:
        raise Unmatched(f"{len(found)} nodes of {ops}")
    return found[0]


def epilogue(graph: Graph, product: int) -> Program | None:
    """The elementwise program that follows a node, its value being the operand `acc`; None when nothing follows."""
    output = only_output(graph)
    if output == product:
        return None
    node = graph.nodes[product]
    accumulated = Operand("acc", "input", ("acc",), "float", len(node.shape))
    program = Lowering(graph, {product: accumulated}).program()
    if any(step.level != "element" or step.op.startswith(("row_", "all_")) for step in program.steps):
        raise Unmatched("a reduction after the product")
    mine = next((o for o in program.operands if o.name == "acc"), None)
    if mine is None or any(mine.broadcast) or program.rank != len(node.shape):
        raise Unmatched("an epilogue that widens the product")
    return None if len(program.steps) == 1 else program


def cross_entropy(graph: Graph) -> CrossEntropy:
    node = graph.nodes[only_output(graph)]
    leaves = Leaves(graph)
    smoothing: Arg = 0.0
    if node.op == "aten.cross_entropy_loss.default":
        logits, target, weight, reduction, ignore, smoothing = node.args[:6]
    elif node.op in ("aten.nll_loss_nd.default", "aten.nll_loss.default"):
        scores, target, weight, reduction, ignore = node.args[:5]
        softmax = graph.nodes[ref(scores)]
        if softmax.op not in ("aten.log_softmax.int", "aten._log_softmax.default") or softmax.args[1] not in (1, -1):
            raise Unmatched("not the log-softmax over classes")
        logits = softmax.args[0]
    else:
        raise Unmatched("not a cross entropy")
    x, t = leaves.operand(ref(logits)), leaves.operand(ref(target))
    if weight is not None or x.rank != 2 or t.rank != 1 or x.kind != "float" or t.kind != "int":
        raise Unmatched("a weighted or spatial cross entropy, or one of probabilities")
    assert isinstance(ignore, int) and isinstance(smoothing, int | float)
    return CrossEntropy(x, t, _REDUCTION[reduction], ignore, float(smoothing))


def scan(graph: Graph) -> Scan:
    leaves = Leaves(graph)
    node = graph.nodes[only_output(graph)]
    outer, node = _unflip(graph, node)
    kind = {"aten.cumsum.default": "sum", "aten.cumprod.default": "prod"}.get(node.op)
    rank = len(node.shape)
    if kind is None or node.kwarg("dtype") is not None or not isinstance(node.args[1], int):
        raise Unmatched("not a scan")
    if node.args[1] % rank != rank - 1:
        raise Unmatched("a scan along another dimension")
    source = ref(node.args[0])
    inner, flipped = _unflip(graph, graph.nodes[source])
    if inner != outer:
        raise Unmatched("a scan flipped once")
    if inner:
        source = graph.nodes.index(flipped)
    x, factor = _product(leaves, source)
    if x.kind != "float":
        raise Unmatched("a scan of integers")
    return Scan(x, factor, "sum" if kind == "sum" else "prod", inner)


def _unflip(graph: Graph, node: Node) -> tuple[bool, Node]:
    if node.op != "aten.flip.default":
        return False, node
    if node.args[1] not in ((-1,), (len(node.shape) - 1,)):
        raise Unmatched("a flip of another dimension")
    return True, graph.nodes[ref(node.args[0])]


def _product(leaves: Leaves, index: int) -> tuple[Operand, Operand | None]:
    node = leaves.graph.nodes[index]
    if leaves.is_leaf(index) or node.op != "aten.mul.Tensor":
        return leaves.operand(index), None
    left, right = ref(node.args[0]), ref(node.args[1])
    shapes = {leaves.graph.nodes[left].shape, leaves.graph.nodes[right].shape, node.shape}
    x, factor = leaves.operand(left), leaves.operand(right)
    if len(shapes) != 1 or factor.kind == "int":
        raise Unmatched("a broadcast factor")
    return x, factor


def group_norm(graph: Graph) -> GroupNorm:
    leaves = Leaves(graph)
    index = the_node(graph, "aten.group_norm.default", "aten.instance_norm.default")
    node = graph.nodes[index]
    x = leaves.operand(ref(node.args[0]))
    if node.op == "aten.group_norm.default":
        groups = _constant_int(node.args[1])
        weight, bias, eps = node.args[2], node.args[3], node.args[4]
    else:
        weight, bias, mean, var, from_input, _, eps = node.args[1:8]
        if not from_input or mean is not None or var is not None:
            raise Unmatched("an instance norm with running statistics")
        groups = leaves.size(node.shape[1])
    if x.rank < 3 or x.kind != "float":
        raise Unmatched("a group norm without space")
    after = epilogue(graph, index)
    return GroupNorm(x, groups, optional(leaves, weight), optional(leaves, bias), leaves.number(eps), after)


def _constant_int(arg: Arg) -> Number:
    if not isinstance(arg, int):
        raise Unmatched("a computed number of groups")
    return Number(float(arg), (repr(arg),))


def rope(graph: Graph) -> Rope:
    leaves = Leaves(graph)
    parts = [_rotated(leaves, index) for index in graph.outputs]
    if len({(cos, sin) for _, cos, sin in parts}) != 1:
        raise Unmatched("several tables")
    _, cos, sin = parts[0]
    return Rope(tuple(x for x, _, _ in parts), cos, sin, graph.returns_tuple)


def _rotated(leaves: Leaves, index: int) -> tuple[Operand, Operand, Operand]:
    """`x * cos + rotate_half(x) * sin`, each product and the sum in either order."""
    node = leaves.graph.nodes[index]
    if node.op != "aten.add.Tensor" or node.kwarg("alpha", 1) != 1:
        raise Unmatched("not a rotary embedding")
    for plain, turned in ((0, 1), (1, 0)):
        try:
            return _rotated_terms(leaves, ref(node.args[plain]), ref(node.args[turned]), node)
        except Unmatched:
            continue
    raise Unmatched("not a rotary embedding")


def _rotated_terms(leaves: Leaves, plain: int, turned: int, out: Node) -> tuple[Operand, Operand, Operand]:
    cats = [i for i in _mul_args(leaves, turned) if leaves.graph.nodes[i].op == "aten.cat.default"]
    if len(cats) != 1:
        raise Unmatched("no rotated half")
    x = _half_turned(leaves, cats[0])
    sin = _other(_mul_args(leaves, turned), cats[0])
    cos = _other(_mul_args(leaves, plain), x)
    if leaves.graph.nodes[x].shape != out.shape:
        raise Unmatched("a table wider than its input")
    found = leaves.operand(x), leaves.operand(cos), leaves.operand(sin)
    if any(o.kind != "float" for o in found):
        raise Unmatched("a rotary embedding of integers")
    return found


def _mul_args(leaves: Leaves, index: int) -> tuple[int, int]:
    node = leaves.graph.nodes[index]
    if node.op != "aten.mul.Tensor":
        raise Unmatched("not a product")
    return ref(node.args[0]), ref(node.args[1])


def _other(pair: tuple[int, int], one: int) -> int:
    if one not in pair:
        raise Unmatched("not a product with that value")
    return pair[1] if pair[0] == one else pair[0]


def _half_turned(leaves: Leaves, cat: int) -> int:
    """The x of `cat((-x[..., d/2:], x[..., :d/2]), -1)`."""
    nodes = leaves.graph.nodes
    items, dim = nodes[cat].args[0], nodes[cat].args[1]
    rank = len(nodes[cat].shape)
    if not isinstance(items, tuple) or len(items) != 2 or not isinstance(dim, int) or dim % rank != rank - 1:
        raise Unmatched("not a rotated half")
    negated = nodes[ref(items[0])]
    if negated.op != "aten.neg.default":
        raise Unmatched("not a rotated half")
    high = _half(leaves, ref(negated.args[0]))
    low = _half(leaves, ref(items[1]))
    if high != (low[0], 1) or low[1] != 0:
        raise Unmatched("not a rotated half")
    return low[0]


def _half(leaves: Leaves, index: int) -> tuple[int, int]:
    """(node, 0 or 1) for the lower or upper half of a node's last dimension."""
    node = leaves.graph.nodes[index]
    if node.op == "getitem":
        parent = leaves.graph.nodes[ref(node.args[0])]
        sizes = {"aten.chunk.default": 2, "aten.split.Tensor": node.shape[-1]}
        last = len(node.shape) - 1
        if parent.op in sizes and parent.args[1] == sizes[parent.op] and parent.args[2] in (-1, last):
            source = ref(parent.args[0])
            if leaves.graph.nodes[source].shape[-1] == 2 * node.shape[-1] and node.args[1] in (0, 1):
                return source, int(bool(node.args[1]))
        raise Unmatched("not a half")
    if node.op != "aten.slice.Tensor" or node.args[1] not in (-1, len(node.shape) - 1):
        raise Unmatched("not a half")
    return _half_slice(leaves, node)


def _half_slice(leaves: Leaves, node: Node) -> tuple[int, int]:
    source = ref(node.args[0])
    extent = leaves.graph.nodes[source].shape[-1]
    start = node.args[2] if isinstance(node.args[2], int) else 0
    if 2 * node.shape[-1] != extent or node.args[4] != 1:
        raise Unmatched("not a half")
    return source, 0 if start == 0 else 1


def embedding(graph: Graph) -> Embedding:
    leaves = Leaves(graph)
    index = the_node(graph, "aten.embedding.default")
    node = graph.nodes[index]
    weight, indices = leaves.operand(ref(node.args[0])), leaves.operand(ref(node.args[1]))
    if weight.kind != "float" or indices.kind != "int":
        raise Unmatched("not an embedding of floats")
    return Embedding(weight, indices, epilogue(graph, index))


def transpose(graph: Graph) -> Transpose:
    leaves = Leaves(graph)
    index = only_output(graph)
    if graph.nodes[index].op not in _COPIES:
        raise Unmatched("a view is not a kernel")
    index = ref(graph.nodes[index].args[0])
    order = tuple(range(len(graph.nodes[index].shape)))
    while graph.nodes[index].op not in ("input", "parameter"):
        node = graph.nodes[index]
        step = permutation(node)
        order = tuple(step[d] for d in order)
        index = ref(node.args[0])
    if order == tuple(range(len(order))):
        raise Unmatched("a plain copy")
    return Transpose(leaves.operand(index), order)


def permutation(node: Node) -> tuple[int, ...]:
    """The permutation that a view node applies."""
    rank = len(node.shape)
    order = list(range(rank))
    if node.op == "aten.permute.default" and isinstance(node.args[1], tuple):
        return tuple(int(d) % rank for d in node.args[1] if isinstance(d, int))
    if node.op in ("aten.transpose.int", "aten.swapaxes.default"):
        first, second = node.args[1], node.args[2]
    elif node.op in ("aten.t.default", "aten.mT.default", "aten.numpy_T.default") and rank >= 2:
        first, second = -2, -1
    else:
        raise Unmatched("not a permutation")
    assert isinstance(first, int) and isinstance(second, int)
    order[first], order[second] = order[second], order[first]
    return tuple(order)
