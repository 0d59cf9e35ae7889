"""Recognise matrix products with an epilogue, and attention, fused or written out."""

from __future__ import annotations

import math
from dataclasses import replace

from worker.builtin.expressions import Number, Operand, Unmatched, literal
from worker.builtin.families import Attention, Matmul
from worker.builtin.leaves import Leaves
from worker.builtin.recognise_single import epilogue, only_output, permutation, ref
from worker.builtin.trace import Arg, Graph, Node, Ref

_PRODUCTS = ("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
_ADDED = {"aten.addmm.default": "aten.mm.default", "aten.baddbmm.default": "aten.bmm.default"}


def split_bias(graph: Graph) -> Graph:
    """Write `linear(x, w, b)` as a product and an addition, so that the bias is part of the epilogue."""
    nodes: list[Node] = []
    place: dict[int, int] = {}
    for index, original in enumerate(graph.nodes):
        node = replace(
            original,
            args=tuple(_renumber(a, place) for a in original.args),
            kwargs=tuple((k, _renumber(v, place)) for k, v in original.kwargs),
        )
        nodes.extend(_split(node, len(nodes)))
        place[index] = len(nodes) - 1
    return replace(graph, nodes=tuple(nodes), outputs=tuple(place[o] for o in graph.outputs))


def _renumber(arg: Arg, place: dict[int, int]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(place[arg.index])
    return tuple(_renumber(a, place) for a in arg) if isinstance(arg, tuple) else arg


def _split(node: Node, position: int) -> list[Node]:
    product: Node | None = None
    bias: Arg = None
    if node.op == "aten.linear.default" and node.args[2] is not None:
        product, bias = replace(node, args=(node.args[0], node.args[1], None)), node.args[2]
    elif node.op in _ADDED and (node.kwarg("alpha", 1), node.kwarg("beta", 1)) == (1, 1):
        product, bias = replace(node, op=_ADDED[node.op], args=node.args[1:3], kwargs=()), node.args[0]
    if product is None:
        return [node]
    addition = replace(node, op="aten.add.Tensor", args=(Ref(position), bias), kwargs=(("alpha", 1),))
    return [product, addition]


def matmul(graph: Graph) -> Matmul:
    graph = split_bias(graph)
    leaves = Leaves(graph)
    found = [i for i, n in enumerate(graph.nodes) if n.op in (*_PRODUCTS, "aten.linear.default", "aten.einsum.default")]
    if len(found) != 1:
        raise Unmatched("not one product")
    node = graph.nodes[found[0]]
    left, right, transposed = _factors(node)
    if not transposed:
        right, transposed = _untransposed(graph, right)
    a, b = leaves.operand(left), leaves.operand(right)
    if a.rank < 2 or b.rank < 2 or a.kind != "float" or b.kind != "float":
        raise Unmatched("a product with a vector")
    batched = b.rank > 2
    if batched and graph.nodes[left].shape[:-2] != graph.nodes[right].shape[:-2]:
        raise Unmatched("a broadcast batch")
    return Matmul(a, b, transposed, batched, epilogue(graph, found[0]))


def _factors(node: Node) -> tuple[int, int, bool]:
    if node.op == "aten.einsum.default":
        items = node.args[1]
        if not isinstance(items, tuple) or len(items) != 2:
            raise Unmatched("an einsum of other than two tensors")
        return ref(items[0]), ref(items[1]), _einsum_transposes(str(node.args[0]))
    return ref(node.args[0]), ref(node.args[1]), node.op == "aten.linear.default"


def _einsum_transposes(equation: str) -> bool:
    """Whether `...k,kn->...n` (False) or `...k,nk->...n` (True). Raises Unmatched for any other equation."""
    inputs, _, output = equation.replace(" ", "").partition("->")
    left, _, right = inputs.partition(",")
    k, lead = left[-1:], left[:-1]
    letters = len(set(left)) == len(left) and len(set(output)) == len(output) and "." not in equation
    if not letters or len(right) != 2 or k in output or not lead:
        raise Unmatched(f"the einsum {equation}")
    n = right.replace(k, "")
    if len(n) != 1 or output != lead + n or n in left:
        raise Unmatched(f"the einsum {equation}")
    return right[1] == k


def _untransposed(graph: Graph, index: int) -> tuple[int, bool]:
    node = graph.nodes[index]
    try:
        order = permutation(node)
    except Unmatched:
        return index, False
    rank = len(order)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    return (ref(node.args[0]), True) if order == swapped else (index, False)


# -- attention -------------------------------------------------------------------------------------------------------


def attention(graph: Graph) -> Attention:
    node = graph.nodes[only_output(graph)]
    if node.op == "aten.scaled_dot_product_attention.default":
        return _fused(graph, node)
    return _written_out(graph, node)


def _fused(graph: Graph, node: Node) -> Attention:
    leaves = Leaves(graph)
    args = (node.args[0], *(Ref(_ungrouped(graph, ref(a))) for a in node.args[1:3]))
    q, k, v = (leaves.operand(ref(a)) for a in args)
    mask = None if node.args[3] is None else leaves.operand(ref(node.args[3]))
    given = node.kwarg("scale")
    if node.args[4] != 0.0:
        raise Unmatched("attention with dropout")
    scale = _default_scale(q, graph.nodes[ref(node.args[0])].shape[-1]) if given is None else leaves.number(given)
    return _checked(graph, args, Attention(q, k, v, scale, node.args[5] is True, mask, True))


def _default_scale(q: Operand, width: int) -> Number:
    """1 / sqrt(width), read from q's shape; only for a q that is an input or a parameter itself."""
    value = 1.0 / math.sqrt(width)
    if q.is_view:
        return Number(value, (literal(value),))
    return Number(value, (f"1.0 / math.sqrt({q.text}.shape[-1])",))


def _checked(graph: Graph, args: tuple[Arg, ...], found: Attention) -> Attention:
    q, k, v = (graph.nodes[ref(a)].shape for a in args)
    if not (k[:-1] == v[:-1] and q[-1] == k[-1] and len(q) == len(k)) or len(q) not in (3, 4):
        raise Unmatched("keys and values of different shapes")
    if q[:-2] != k[:-2] and not (len(q) == 4 and q[0] == k[0] and q[1] % k[1] == 0):
        raise Unmatched("heads that differ between queries and keys")
    if found.q.kind != "float" or found.k.kind != "float" or found.v.kind != "float":
        raise Unmatched("attention of integers")
    return found


def _written_out(graph: Graph, node: Node) -> Attention:
    leaves = Leaves(graph)
    if node.op not in _PRODUCTS:
        raise Unmatched("not attention")
    weights = graph.nodes[ref(node.args[0])]
    while weights.op == "aten.to.dtype" or (weights.op == "aten.dropout.default" and _idle(weights)):
        weights = graph.nodes[ref(weights.args[0])]
    rank = len(node.shape)
    if weights.op != "aten.softmax.int" or weights.args[1] not in (-1, rank - 1):
        raise Unmatched("no softmax before the product")
    scores, causal, mask = _masked(leaves, ref(weights.args[0]))
    q, k, scale = _scores(leaves, scores)
    k, v = _ungrouped(graph, k), _ungrouped(graph, ref(node.args[1]))
    found = Attention(leaves.operand(q), leaves.operand(k), leaves.operand(v), scale, causal, mask, False)
    return _checked(graph, (Ref(q), Ref(k), Ref(v)), found)


def _ungrouped(graph: Graph, index: int) -> int:
    """Keys and values before their heads are repeated for the query heads that share them."""
    node = graph.nodes[index]
    if node.op == "aten.repeat_interleave.self_int" and len(node.shape) == 4 and node.args[2] in (1, -3):
        return ref(node.args[0])
    return index


def _idle(node: Node) -> bool:
    return node.args[1] == 0.0 or node.args[2] is False


def _masked(leaves: Leaves, index: int) -> tuple[int, bool, Operand | None]:
    """Peel the mask off the scores: (score node, causal, mask operand)."""
    node = leaves.graph.nodes[index]
    if node.op == "aten.masked_fill.Scalar" and _is_hidden(node.args[2]):
        return _boolean_mask(leaves, ref(node.args[0]), ref(node.args[1]), hidden=True)
    if node.op == "aten.where.ScalarOther" and _is_hidden(node.args[2]):
        return _boolean_mask(leaves, ref(node.args[1]), ref(node.args[0]), hidden=False)
    if node.op == "aten.where.self" and _is_hidden(_filled_with(leaves.graph, node.args[2])):
        return _boolean_mask(leaves, ref(node.args[1]), ref(node.args[0]), hidden=False)
    if node.op == "aten.add.Tensor" and isinstance(node.args[1], Ref):
        for scores, mask in ((0, 1), (1, 0)):
            if _is_causal_bias(leaves.graph, ref(node.args[mask])):
                return ref(node.args[scores]), True, None
            if leaves.is_leaf(ref(node.args[mask])):
                return ref(node.args[scores]), False, leaves.operand(ref(node.args[mask]))
    return index, False, None


def _is_hidden(value: Arg) -> bool:
    """Minus infinity, or so low a number that its exponential is zero beside any other score."""
    return isinstance(value, int | float) and value <= -1e9


def _filled_with(graph: Graph, arg: Arg) -> Arg:
    if not isinstance(arg, Ref):
        return arg
    node = graph.nodes[arg.index]
    place = {"aten.full.default": 1, "aten.full_like.default": 1, "aten.scalar_tensor.default": 0}.get(node.op)
    return None if place is None else node.args[place]


def _boolean_mask(leaves: Leaves, scores: int, mask: int, *, hidden: bool) -> tuple[int, bool, Operand | None]:
    """A boolean mask that says what is hidden, or what is visible: causal if it is built from a triangle of ones."""
    graph = leaves.graph
    while graph.nodes[mask].op in _NEGATIONS or graph.nodes[mask].op in _RESHAPES:
        node = graph.nodes[mask]
        if node.op in ("aten.eq.Scalar", "aten.ne.Scalar") and node.args[1] != 0:
            break
        hidden ^= node.op in _NEGATIONS and node.op != "aten.ne.Scalar"
        if leaves.is_leaf(mask):
            break
        mask = ref(node.args[0])
    triangle = _triangle(graph, mask)
    if triangle is not None:
        if triangle == ("triu", 1) and hidden or triangle == ("tril", 0) and not hidden:
            return scores, True, None
        raise Unmatched("a triangular mask that is not causal")
    operand = leaves.operand(mask)
    test = " == 0)" if hidden else " != 0)"
    return scores, False, replace(operand, pieces=("(", *operand.pieces, test), kind="bool", is_view=True)


_NEGATIONS = frozenset({"aten.logical_not.default", "aten.bitwise_not.default", "aten.eq.Scalar", "aten.ne.Scalar"})
_RESHAPES = frozenset(
    {"aten.to.dtype", "aten.view.default", "aten.unsqueeze.default", "aten.expand.default", "aten.reshape.default"}
)


def _triangle(graph: Graph, index: int) -> tuple[str, int] | None:
    """`triu(ones, d)` or `tril(ones, d)` as (name, d)."""
    node = graph.nodes[index]
    name = node.op.removeprefix("aten.").removesuffix(".default")
    if name not in ("triu", "tril") or not isinstance(node.args[0], Ref) or not isinstance(node.args[1], int):
        return None
    if graph.nodes[node.args[0].index].op not in ("aten.ones.default", "aten.ones_like.default"):
        return None
    return name, node.args[1]


def _is_causal_bias(graph: Graph, index: int) -> bool:
    """`triu(full(-inf), 1)`, the additive causal mask."""
    node = graph.nodes[index]
    if node.op != "aten.triu.default" or node.args[1] != 1:
        return False
    return _is_hidden(_filled_with(graph, node.args[0]))


def _scores(leaves: Leaves, index: int) -> tuple[int, int, Number]:
    """`scale * q @ k^T`: (q, k, scale)."""
    graph = leaves.graph
    node = graph.nodes[index]
    scale: Number | None = None
    if node.op in ("aten.mul.Tensor", "aten.div.Tensor"):
        index, scale = _scaled(leaves, node)
        node = graph.nodes[index]
    if node.op not in _PRODUCTS:
        raise Unmatched("no product before the softmax")
    q, (k, transposed) = ref(node.args[0]), _untransposed(graph, ref(node.args[1]))
    if not transposed:
        raise Unmatched("keys that are not transposed")
    if scale is None and not leaves.is_leaf(q):
        q, scale = _scaled(leaves, graph.nodes[q])
    return q, k, scale or Number(1.0, (literal(1.0),))


def _scaled(leaves: Leaves, node: Node) -> tuple[int, Number]:
    factor = node.args[1] if len(node.args) > 1 else None
    if node.op not in ("aten.mul.Tensor", "aten.div.Tensor") or not isinstance(factor, int | float):
        raise Unmatched("a scale that is not a number")
    value = 1.0 / factor if node.op == "aten.div.Tensor" else float(factor)
    found = leaves.number(value)
    # A scale is nearly always 1 / sqrt(width): read it from the shape where that fits.
    ordered = sorted(found.alternatives, key=lambda text: not text.startswith("1.0 / math.sqrt"))
    return ref(node.args[0]), Number(found.value, tuple(ordered))
