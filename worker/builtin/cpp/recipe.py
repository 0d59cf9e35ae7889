"""What a C++ recipe is, and how its parts become a candidate file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from worker.builtin.candidate import candidate
from worker.builtin.cpp.mathlib import helpers_for
from worker.builtin.families import Match

# No -ffast-math: the functions in `mathlib` vectorise without it, and NaN and infinity keep their meaning. These two
# only
# drop errno and floating-point exceptions, which torch has no notion of.
FLAGS = ("-fno-math-errno", "-fno-trapping-math")
# Choices that are compiler flags rather than macros: the vector width in bits, and how often loops are unrolled.
_FLAG_TUNABLES = {"WIDTH": [256, 512], "UNROLL": [1, 2, 4]}

HELPERS = {
    "_dtype": '''\
def _dtype(first, *others):
    """The dtype that torch promotes these tensors to."""
    dtype = first.dtype
    for t in others:
        if t.dtype is not dtype:
            dtype = torch.promote_types(dtype, t.dtype)
    return dtype
''',
    "_f32": '''\
def _f32(t):
    """The tensor in float32; half precision is widened, float64 is refused: this kernel computes in float32."""
    if t.dtype is torch.float32:
        return t
    if t.dtype not in (torch.bfloat16, torch.float16):
        raise TypeError(f"this kernel computes in float32, it cannot take {t.dtype}")
    return t.float()
''',
    "_matrix": '''\
def _matrix(t, shape):
    """The tensor with this shape, contiguous."""
    return t.contiguous() if t.shape == shape else t.expand(shape).contiguous()
''',
    "_strided": '''\
def _strided(t, shape):
    """A view as [rows, columns] whose neighbouring columns are neighbours in memory: copied only if it must be."""
    t = (t if t.shape == shape else t.expand(shape)).flatten(0, -2)
    return t if t.stride(1) == 1 else t.contiguous()
''',
    "_vector": '''\
def _vector(t, size):
    """The tensor as `size` contiguous values."""
    t = t.reshape(-1)
    return t.contiguous() if t.numel() == size else t.expand(size).contiguous()
''',
}


@dataclass(frozen=True, slots=True)
class Parts:
    """What a recipe writes.

    `cpp` is the C++ source without prelude, with the tunables as macros; `inputs` are the parameters of the Python
    function `_run` and the expressions that forward passes for them; `body` are its statements, which call `_LIB.…`.
    `tunables` maps each macro to its choices; `defaults` gives the values that the file starts with.
    """

    cpp: str
    inputs: Sequence[tuple[str, str]]
    body: Sequence[str]
    tunables: Mapping[str, Sequence[int]]
    defaults: Mapping[str, int]
    constraints: Sequence[str] = ()
    python: str = ""
    """More module-level Python, for functions that `body` calls."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A parametric kernel for one family. `write` raises Unmatched when the bindings are not what it can do."""

    name: str
    family: str
    plan: str
    write: Callable[[Match], Parts]


# The common case (float32, contiguous, of the expected shape) is told in line and costs no call: after a cache flush,
# as before every timed call, a helper call for each argument took some 30 us more (88-146 us for a tiny input, 65-77 us
# for the bare call).


def dense(name: str) -> str:
    """A statement that makes a tensor float32 and contiguous."""
    return f"{name} = {name}.contiguous() if {name}.dtype is _F32 else _f32({name}).contiguous()"


def matrix(name: str, shape: str = "shape") -> str:
    """A statement that makes a tensor float32, contiguous and of a shape."""
    fits = f"{name}.dtype is _F32 and {name}.shape == {shape} and {name}.is_contiguous()"
    return f"{name} = {name} if {fits} else _matrix(_f32({name}), {shape})"


def vector(name: str, size: str) -> str:
    """A statement that makes a tensor float32 and `size` contiguous values."""
    fits = f"{name}.dtype is _F32 and {name}.numel() == {size} and {name}.is_contiguous()"
    return f"{name} = {name} if {fits} else _vector(_f32({name}), {size})"


def rounded(name: str, dtype: str = "dtype") -> str:
    """An expression for a float32 result in the reference's dtype."""
    return f"{name} if {dtype} is _F32 else {name}.to({dtype})"


def common_dtype(names: Sequence[str]) -> str:
    """An expression for the dtype that torch promotes tensors to."""
    return f"{names[0]}.dtype" if len(names) == 1 else f"_dtype({', '.join(names)})"


def indent(lines: Sequence[str], by: int) -> str:
    """Lines joined for a place in a template that is indented by `by` spaces."""
    return ("\n" + " " * by).join(lines)


def threads() -> tuple[list[int], int]:
    """(choices, first value) for a thread count on this machine."""
    count = len(os.sched_getaffinity(0))
    choices = sorted({1, max(1, count // 2), count})
    return choices, count


def has_wide_vectors() -> bool:
    """Whether this machine has 512-bit vectors (and twice the registers)."""
    return "AVX512" in torch.backends.cpu.get_cpu_capability()


def write_candidate(recipe: Recipe, match: Match, problem_source: str) -> str:
    """The candidate file of a recipe for a match. Raises Unmatched."""
    parts = recipe.write(match)
    counts, first = threads()
    tunables = {"THREADS": counts, **_FLAG_TUNABLES, **parts.tunables}
    width = 512 if has_wide_vectors() else 256
    defaults = {"THREADS": first, "WIDTH": width, "UNROLL": 1, **parts.defaults}
    names = ", ".join(name for name, _ in parts.inputs)
    expressions = ", ".join(text for _, text in parts.inputs)
    return candidate(
        problem_source,
        plan=recipe.plan,
        imports=["import platform", "from kernelwright import load_cpp"],
        tunables=tunables,
        defaults=defaults,
        constraints=parts.constraints,
        kernel=_kernel(parts, names, list(tunables)),
        returns=f"_run({expressions})",
    )


def _kernel(parts: Parts, names: str, tunables: Sequence[str]) -> str:
    body = "\n".join(f"    {line}" for line in parts.body)
    helpers = "\n\n".join(HELPERS[name] for name in HELPERS if f"{name}(" in body + parts.python)
    helpers += f"\n\n{parts.python}" if parts.python else ""
    defines = ", ".join(f'f"-D{name}={{{name}}}"' for name in tunables if name not in _FLAG_TUNABLES)
    flags = ", ".join(repr(flag) for flag in FLAGS)
    return f'''\
SOURCE = r"""
{helpers_for(parts.cpp)}
{parts.cpp.strip()}
"""

_F32 = torch.float32
_X86 = platform.machine() in ("x86_64", "AMD64")
_WIDTH = (f"-DLANES={{WIDTH // 32}}", *((f"-mprefer-vector-width={{WIDTH}}",) if _X86 else ()))
_UNROLL = ("-funroll-loops", f"--param=max-unroll-times={{UNROLL}}") if UNROLL > 1 else ()
_LIB = load_cpp(SOURCE, flags=({flags}, *_WIDTH, *_UNROLL, {defines}))


{helpers}

def _run({names}):
{body}
'''
