"""The problems of recorded spaces: bundled ones, and for each a sibling that differs in its operation and nothing else.

The siblings were chosen before anything of them was measured.
"""

from __future__ import annotations

from functools import cache

from problems.catalog import Outline, bundled, outline

_SIBLINGS = {
    "cross_entropy_ignoring": ("cross_entropy", {"ignore_index=-100": "ignore_index=3"}),
    "cumsum_reversed": ("cumsum", {
        "torch.cumsum(x, dim=self.dim)": "x.flip(self.dim).cumsum(self.dim).flip(self.dim)",
    }),
    "layernorm_plain": ("layernorm", {"nn.LayerNorm(hidden, ": "nn.LayerNorm(hidden, elementwise_affine=False, "}),
    "log_softmax": ("softmax", {"torch.softmax(": "torch.log_softmax("}),
    "rmsnorm": ("rmsnorm_residual", {
        "x, residual):\n        h = x + residual": "x):\n        h = x",
        '    "library": {"fused": "Fused", "liger": "Liger"},\n': "",
        ', "residual": "real"': "",
        "range(2)": "range(1)",
    }),
}  # fmt: skip
"""By name: the bundled problem, and what is another text in its source."""


@cache
def problem(name: str) -> Outline:
    """A bundled problem or a sibling of one. Raises KeyError."""
    if name not in _SIBLINGS:
        return bundled()[name]
    original, changes = _SIBLINGS[name]
    source = bundled()[original].source
    for old, new in changes.items():
        assert source.count(old) == 1, f"{name}: {old!r} is {source.count(old)} times in {original}"
        source = source.replace(old, new)
    return outline(source, name)
