"""The program spaces, one per problem."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.policy.genome import Space
from benchmarks.policy.programs import cumsum, layernorm, matmul, pointwise, rmsnorm, softmax

SPACES: Mapping[str, Space] = {
    module.SPACE.problem: module.SPACE for module in (softmax, layernorm, rmsnorm, pointwise, matmul, cumsum)
}
