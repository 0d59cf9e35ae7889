"""Cells of kernels: what holds a kernel back, by the family of its algorithm. Kernels in two cells are different ideas.

The bottleneck is what the kernel's profile found; without a profile a class of its fraction of the speed of light
stands in. The family is what the plan of the last large step says, or else the direction that its prompt asked for.
Small steps (repair, refine, tune) stay in the family that they come from.

Representatives for such cells, in place of a grid of code lengths: AdaExplore (arXiv 2604.16625) and KernelBand
(arXiv 2511.18868), which clusters kernels by profile.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from search.prompts.angles import angle_index
from search.tree import Tree
from search.types import BY_MODEL, Node, Operator

NEAR_ROOF = 0.6
FAR_FROM_ROOF = 0.2
"""Fractions of the speed of light. Above the first there is little to gain but bytes; below the second the kernel waits
(for latency, launches or one busy unit) rather than works."""

SMALL_STEPS = frozenset({Operator.REPAIR, Operator.REFINE, Operator.TUNE})


class Bottleneck(StrEnum):
    """What holds a kernel back: four classes of its profile, or else as far as the clock alone can tell."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LATENCY = "latency"
    OVERHEAD = "overhead"
    NEAR_ROOF = "near_roof"
    BELOW_ROOF = "below_roof"
    FAR_FROM_ROOF = "far_from_roof"
    UNKNOWN = "unknown"


class Family(StrEnum):
    """The kind of algorithm. The order of `_WORDS` decides where a plan names several."""

    COMPILER = "compiler"
    TENSOR_CORE = "tensor_core"
    PERSISTENT = "persistent"
    SPLIT = "split"
    ONE_PASS = "one_pass"
    FORMULA = "formula"
    VECTORISED = "vectorised"
    COARSENED = "coarsened"
    BLOCKED = "blocked"
    OTHER = "other"


class Cell(NamedTuple):
    """Where a kernel stands in the map of ideas."""

    bottleneck: Bottleneck
    family: Family


_WORDS = (
    (Family.COMPILER, r"inductor|torch\.compile"),
    (Family.TENSOR_CORE, r"tensor.?cores?|\bw?g?mma\b|wmma|tl\.dot"),
    (Family.PERSISTENT, r"persistent"),
    (Family.SPLIT, r"\bsplit|split-k|stream-k|partial (sum|result)|\bpieces\b|two.?(stage|phase)"),
    (Family.ONE_PASS, r"(one|single).(pass|walk)|\bonce\b|online|fus(e|ed|ing|ion)\b"),
    (Family.FORMULA, r"polynomial|approximat|cheaper formula"),
    (Family.VECTORISED, r"vectori[sz]|vector (unit|load|width)|\bsimd\b|\bavx|coalesc|float4|wide load"),
    (Family.COARSENED, r"coarsen|work per thread|fewer.{0,9} threads"),
    (Family.BLOCKED, r"\btil(e|es|ed|ing)\b|\bblock(s|ed|ing)?\b|panels?\b"),
)

_DIRECTIONS = {
    "cpp": (Family.ONE_PASS, Family.VECTORISED, Family.SPLIT, Family.BLOCKED, Family.FORMULA),
    "gpu": (
        Family.ONE_PASS,
        Family.VECTORISED,
        Family.SPLIT,
        Family.TENSOR_CORE,
        Family.COARSENED,
        Family.PERSISTENT,
    ),
}
"""The families of the directions in `search.prompts.angles`, in their order."""


def cell_of(tree: Tree, node: Node, language: str) -> Cell:
    """The node's cell."""
    return Cell(bottleneck_of(node), family_of(tree, node, language))


PROFILED = frozenset({Bottleneck.MEMORY, Bottleneck.COMPUTE, Bottleneck.LATENCY, Bottleneck.OVERHEAD})


def bottleneck_of(node: Node) -> Bottleneck:
    """What holds it back, by its profile, or else by its fraction of the speed of light."""
    if node.bottleneck in PROFILED:
        return Bottleneck(node.bottleneck)
    if node.sol_fraction is None:
        return Bottleneck.UNKNOWN
    if node.sol_fraction >= NEAR_ROOF:
        return Bottleneck.NEAR_ROOF
    return Bottleneck.FAR_FROM_ROOF if node.sol_fraction < FAR_FROM_ROOF else Bottleneck.BELOW_ROOF


def family_of(tree: Tree, node: Node, language: str) -> Family:
    """The family of its algorithm, which is that of its last large step."""
    while node.operator in SMALL_STEPS and node.parents and node.parents[0] in tree.by_id:
        node = tree.by_id[node.parents[0]]
    named = _named(node.plan or "")
    if named is not None:
        return named
    directed = node.proposer in BY_MODEL and node.operator in (Operator.SEED, Operator.REWRITE)
    return directed_family(language, node.ordinal) if directed else Family.OTHER


def directed_family(language: str, ordinal: int) -> Family:
    """The family of the direction that a seed's or a rewrite's prompt asked for."""
    return _DIRECTIONS["cpp" if language == "cpp" else "gpu"][angle_index(language, ordinal)]


def _named(plan: str) -> Family | None:
    return next((family for family, words in _WORDS if re.search(words, plan, re.IGNORECASE)), None)
