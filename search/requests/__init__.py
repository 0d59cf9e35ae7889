"""Requests in plain words: "a Triton kernel for RMSNorm with residual in bf16 on H100" becomes a problem and a target.

    wish = understand("a Triton kernel for RMSNorm with residual in bf16 on H100")
    wish.concepts, wish.dtype, wish.hardware, wish.language     # {rmsnorm, residual}, bfloat16, h100, triton
    rank(wish, bundled().values())[0].problem.name              # rmsnorm_residual

`understanding` reads the words with fixed patterns, `matching` finds the bundled problem that is nearest and says how
it differs, `deriving` fits its workloads to the type and the sizes that were asked for, and `writing` has a language
model write a reference where there is one. Nothing here runs what a model wrote: it is read, shown, and examined by the
judge before a search is paid for.
"""

from __future__ import annotations

from search.requests.matching import Match, rank
from search.requests.understanding import Wish, understand

__all__ = ["Match", "Wish", "rank", "understand"]
