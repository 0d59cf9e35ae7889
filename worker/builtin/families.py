"""Recognise what a reference computes: `recognise(source, hardware)` gives the families that fit, most specific first.

A family is a dataclass of *bindings*: everything a recipe needs, and nothing of any language. Recipes (`cpp/`,
`triton/`) are written against these classes. Conventions:

- `Operand.text` and `Number.text` are Python expressions for `ModelNew.forward`, where the reference's argument names
  and `self` are in scope. A `Number` with `is_literal` false must be computed at run time.
- `dims` counts trailing dimensions taken together: a row is `x.shape[-dims:]` flattened.
- dtypes are not bound: workloads may differ in them. Compute in float32 and return the input's dtype. Floats of 8 bits
  or fewer match nothing, neither as inputs nor as results nor on the way.
- No binding depends on a size; a candidate must work for every shape of that rank.
- `Match.examples` tells the shapes of each workload, to choose good first values of tunables.

| family | computes |
|---|---|
| Pointwise | any DAG of elementwise ops with broadcasting; includes gated activations and batch norm in inference |
| Rowwise | elementwise ops and reductions over rows, mixed: any softmax- or norm-like op not caught below |
| FullReduction | elementwise (and row) ops, then one sum or mean over everything: losses |
| Softmax | softmax or log-softmax of `scale * x` over rows |
| LayerNorm | `(x - mean) * rsqrt(var + eps) * weight + bias` over rows, optional residual |
| RmsNorm | `x * rsqrt(mean(x^2) + eps) * (offset + weight)` over rows, optional residual |
| RowReduction | sum, mean, max, min or logsumexp over rows |
| ColumnReduction | sum, mean, max or min over one dimension that is not last |
| Scan | cumulative sum or product along the last dimension |
| CrossEntropy | logits and class indices to a loss |
| Matmul | a product of matrices, with bias and an elementwise epilogue |
| Attention | softmax(scale * Q K^T + mask) V, causal or not |
| GroupNorm | normalisation over groups of channels, affine, elementwise epilogue |
| Rope | rotate-half rotary embedding of one or more tensors |
| Transpose | a permutation of dimensions, copied to a contiguous tensor |
| Embedding | rows of a table, with an elementwise epilogue |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from worker.builtin.expressions import Number, Operand, Program, Unmatched, merge_all
from worker.builtin.trace import Graph, trace_problem


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Every step has level `element`. All operands broadcast to the domain; see `Operand.broadcast`."""

    program: Program


@dataclass(frozen=True, slots=True)
class Rowwise:
    """At least one `row_*` reduction; steps of level `row` are one value per row. No `all_*` reduction."""

    program: Program


@dataclass(frozen=True, slots=True)
class FullReduction:
    """One `all_sum` or `all_mean` step; only steps of level `scalar` follow it. The single output is a 0-d tensor."""

    program: Program


@dataclass(frozen=True, slots=True)
class Softmax:
    """`log` selects log-softmax. Rows of `scale * x`; a row is the last `dims` dimensions."""

    x: Operand
    log: bool
    scale: Number
    dims: int = 1


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Normalises `x` (or `x + residual`). `weight`/`bias` have a row's shape, or are None. The variance is biased;
    it must
    be computed in two passes or by Welford: inputs may be shifted far from zero. `returns_sum`: the second output is
    `x + residual`."""

    x: Operand
    residual: Operand | None
    weight: Operand | None
    bias: Operand | None
    eps: Number
    dims: int = 1
    returns_sum: bool = False


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """`y = h * rsqrt(mean(h^2) + eps) * (offset + weight)` with `h = x` or `x + residual`; weight None means no factor.
    `returns_sum`: the second output is h."""

    x: Operand
    residual: Operand | None
    weight: Operand | None
    offset: float
    eps: Number
    dims: int = 1
    returns_sum: bool = False


@dataclass(frozen=True, slots=True)
class RowReduction:
    """Reduces the last `dims` dimensions; `keepdim` keeps them with extent 1. max and min propagate NaN."""

    x: Operand
    op: Literal["sum", "mean", "max", "min", "logsumexp"]
    keepdim: bool
    dims: int = 1


@dataclass(frozen=True, slots=True)
class ColumnReduction:
    """Reduces dimension `dim` (negative, not -1) of x: view x as [outer, n, inner]. `keepdim` keeps it with extent
    1."""

    x: Operand
    op: Literal["sum", "mean", "max", "min"]
    dim: int
    keepdim: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """Inclusive scan along the last dimension of x, or of `x * factor` (a float or bool operand of x's shape);
    `reverse`
    scans from the end (`flip(cumsum(flip(x)))`)."""

    x: Operand
    factor: Operand | None
    op: Literal["sum", "prod"]
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """`F.cross_entropy(logits[rows, classes], target[rows])` with integer targets. Rows whose target is
    `ignore_index` do
    not count; `reduction` mean divides by those that do. `logits`/`target` texts include the reference's reshapes."""

    logits: Operand
    target: Operand
    reduction: Literal["none", "mean", "sum"]
    ignore_index: int
    label_smoothing: float


@dataclass(frozen=True, slots=True)
class Matmul:
    """`epilogue(a @ b)`: a is [..., m, k]; b is [k, n], or [n, k] when `b_transposed` (nn.Linear's weight), or
    batched with
    the same leading dimensions as `a` when `batched`. The product has a's leading dimensions.

    `epilogue` is a Pointwise program whose operand named `acc` (source `input`, text `acc`) is the product; its other
    operands (bias, residual, scale) broadcast over the product's shape. None when there is nothing after the product.
    """

    a: Operand
    b: Operand
    b_transposed: bool
    batched: bool
    epilogue: Program | None


@dataclass(frozen=True, slots=True)
class Attention:
    """q, k, v are [..., heads, tokens, width] of one rank (3 or 4); the result has q's leading shape and v's width.

    k and v may have fewer heads than q (rank 4): query head h reads key head `h // (q.shape[1] // k.shape[1])`.

    `causal`: query i sees keys j <= i (mask aligned top-left, as torch's `is_causal` and `tril` are). `mask` is an
    extra boolean (True = visible) or additive float operand that broadcasts to [..., tokens, keys]. A row that sees
    no key is zero when `hidden_is_zero` (torch's scaled_dot_product_attention), else NaN (a plain softmax).
    """

    q: Operand
    k: Operand
    v: Operand
    scale: Number
    causal: bool
    mask: Operand | None
    hidden_is_zero: bool


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """x is [batch, channels, *space]; statistics over each group of channels. `weight`/`bias` are per channel.

    `epilogue` is a Pointwise program over the normalised and affine value, as in Matmul (operand `acc`), or None.
    """

    x: Operand
    groups: Number
    weight: Operand | None
    bias: Operand | None
    eps: Number
    epilogue: Program | None


@dataclass(frozen=True, slots=True)
class Rope:
    """For each x of `xs`: `x * cos + rotate_half(x) * sin`, rotate_half(x) = cat(-x[..., d/2:], x[..., :d/2]).

    cos and sin broadcast to x. One output per x, in order; `returns_tuple` when forward returns a tuple.
    """

    xs: tuple[Operand, ...]
    cos: Operand
    sin: Operand
    returns_tuple: bool


@dataclass(frozen=True, slots=True)
class Transpose:
    """`x.permute(permutation).contiguous()`."""

    x: Operand
    permutation: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Embedding:
    """`epilogue(weight[indices])`: indices has any shape, the result one more dimension. Out-of-range indices must
    raise or
    be left to torch: the candidate checks them. Epilogue as in Matmul."""

    weight: Operand
    indices: Operand
    epilogue: Program | None


Bindings = (
    Pointwise | Rowwise | FullReduction | Softmax | LayerNorm | RmsNorm | RowReduction | ColumnReduction | Scan |
    CrossEntropy
    | Matmul | Attention | GroupNorm | Rope | Transpose | Embedding
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Example:
    """One workload's concrete shapes: (name, shape, dtype) of the inputs and of the parameters and buffers, and the
    shapes
    of the outputs."""

    workload: str
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    parameters: tuple[tuple[str, tuple[int, ...], str], ...]
    outputs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Match:
    """A family that fits all workloads. `family` is the bindings' class name in snake case (`layer_norm`)."""

    family: str
    bindings: Bindings
    examples: tuple[Example, ...]


Recogniser = Callable[[Graph], Bindings]


def recognise(source: str, hardware: str, name: str = "problem") -> tuple[Match, ...]:
    """Trace a reference and say which families fit, most specific first. Raises TraceError when it cannot be traced."""
    return match_graphs(trace_problem(source, hardware, name))


def match_graphs(graphs: Sequence[Graph]) -> tuple[Match, ...]:
    """The families that fit every one of the graphs (one per workload)."""
    from worker.builtin.recognisers import RECOGNISERS

    examples = tuple(_example(graph) for graph in graphs)
    found = []
    for family, recogniser in RECOGNISERS.items():
        try:
            bindings = merge_all([recogniser(graph) for graph in graphs])
        except Unmatched:
            continue
        found.append(Match(family, bindings, examples))
    return tuple(found)


def _example(graph: Graph) -> Example:
    return Example(
        workload=graph.workload,
        inputs=tuple((n.name, n.shape, n.dtype) for n in graph.inputs),
        parameters=tuple((n.name, n.shape, n.dtype) for n in graph.parameters),
        outputs=tuple(graph.nodes[i].shape for i in graph.outputs),
    )
