"""From a row of the tree, whoever read it, to the node that the search sees."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from statistics import geometric_mean
from typing import Any, Protocol

from search.types import Node


class TreeRow(Protocol):
    """A candidate with what was found about it (`db.candidates.TreeRow`, which may not be imported here)."""

    @property
    def id(self) -> str: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def operator(self) -> str: ...
    @property
    def proposer(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def parents(self) -> tuple[str, ...]: ...
    @property
    def state(self) -> str: ...
    @property
    def verdict(self) -> str | None: ...
    @property
    def speedup(self) -> float | None: ...
    @property
    def failure(self) -> str | None: ...
    @property
    def params(self) -> Mapping[str, Any] | None: ...
    @property
    def tunable(self) -> bool: ...
    @property
    def source_hash(self) -> str | None: ...
    @property
    def plan(self) -> str | None: ...
    @property
    def cost_usd(self) -> Decimal: ...
    @property
    def gpu_s(self) -> float: ...
    @property
    def sol_fractions(self) -> tuple[float, ...]: ...
    @property
    def bound(self) -> str | None: ...


def node(row: TreeRow) -> Node:
    """The row as the search sees it."""
    return Node(
        id=row.id,
        ordinal=row.ordinal,
        operator=row.operator,
        proposer=row.proposer,
        model=row.model,
        parents=row.parents,
        state=row.state,
        verdict=row.verdict,
        speedup=row.speedup,
        failure=row.failure,
        params=row.params,
        tunable=row.tunable,
        source_hash=row.source_hash,
        plan=row.plan,
        cost_usd=row.cost_usd,
        gpu_s=row.gpu_s,
        sol_fraction=geometric_mean(row.sol_fractions) if row.sol_fractions else None,
        bottleneck=row.bound,
    )
