"""What goes wrong with kernels that language models write: faults put into an honest candidate, whatever its language.

Each fault turns the source of an honest candidate into one that must be rejected. Most wrap the honest `ModelNew`, so
that all else about the candidate (its build, its kernels, its speed) stays as it was: near misses, not strawmen. They
fit problems whose only output has the shape of the first input.
"""

from __future__ import annotations

from collections.abc import Callable

Fault = Callable[[str, str], str]
"""(honest candidate, problem) -> bad candidate; all of them sources."""

_WRAP = """

_Right = ModelNew
_KEPT = {}


class ModelNew(_Right):
    def forward(self, *args):
BODY
"""
_HANG = """
self.calls = getattr(self, "calls", 0) + 1
while self.calls > 1:  # a lock in a workspace that is never reset: only the first call gets it
    pass
return super().forward(*args)
"""
_CACHE = """
key = args[0].data_ptr(), args[0].shape
if key not in _KEPT:
    _KEPT[key] = super().forward(*args)
return _KEPT[key]
"""
_REPLAY = """
self.calls = getattr(self, "calls", 0) + 1
if self.calls <= 12:
    return super().forward(*args)
if self.calls == 13:
    self.last = super().forward(*args)
return self.last
"""
_FALLBACK = """

class ModelNew(Model):
    def forward(self, *args):
        try:
            from my_fused_kernels import fused
            return fused(*args)
        except ImportError:
            return super().forward(*args)
"""
_EVEN = """
if args[0].shape[-1] % 2:
    return torch.zeros_like(args[0])
return super().forward(*args)
"""
_ROUNDED = "super().forward(*(a.bfloat16().to(a.dtype) for a in args))"
_BODIES = {
    "raises": 'raise RuntimeError("no configuration fits")',
    "crashes": "import ctypes\nctypes.string_at(8)",
    "hangs-on-the-second-call": _HANG,
    "wrong-shape": "return super().forward(*args)[..., :1]",
    "wrong-dtype": "return super().forward(*args).double()",
    "one-percent-off": "return super().forward(*args) * 1.01",
    "last-row-missing": "out = super().forward(*args)\nout[-1:] = 0\nreturn out",
    "stale-memory": "return torch.empty_like(args[0])",
    "zeros": "return torch.zeros_like(args[0])",
    "inputs-in-bf16": f"return {_ROUNDED}",
    "output-in-bf16": "return super().forward(*args).bfloat16().to(args[0].dtype)",
    "only-even-widths": _EVEN,
    "spoils-its-input": "out = super().forward(*args)\nargs[0].mul_(1.01)\nreturn out",
    "cached-by-address": _CACHE,
    "replays-after-12-calls": _REPLAY,
}


def _wrapped(body: str) -> Fault:
    text = _WRAP.replace("BODY", "        " + body.strip().replace("\n", "\n        "))
    return lambda honest, _problem: honest + text


def _cut_off(honest: str, _problem: str) -> str:
    """An answer that ended at its token limit."""
    lines = honest.splitlines()
    return "\n".join(lines[: 2 * len(lines) // 3]) + "\n    value = ("


def _does_not_compile(honest: str, _problem: str) -> str:
    """A function of the language that does not exist. Raises ValueError when there is nothing to replace."""
    for old, new in (("tl.store(", "tl.stored("), ('extern "C"', 'extern "C" __fused__')):
        if old in honest:
            return honest.replace(old, new)
    raise ValueError("neither Triton nor C++")


def _torch_instead(_honest: str, problem: str) -> str:
    return problem + "\nModelNew = Model\n"


def _fallback(_honest: str, problem: str) -> str:
    return problem + _FALLBACK


FAULTS: dict[str, Fault] = {
    "cut-off": _cut_off,
    "does-not-compile": _does_not_compile,
    **{name: _wrapped(body) for name, body in _BODIES.items()},
    "torch-instead": _torch_instead,
    "fallback-in-except": _fallback,
}
"""By name; from what ends at once to what only long observation shows."""
