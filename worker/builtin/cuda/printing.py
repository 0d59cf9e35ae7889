"""A Program's steps and operands as CUDA C++: the same places as in Triton's tiles, read as vectors of 16 bytes.

A kernel works on packs of VEC neighbouring columns of one row. For each it has in scope `row` and `col` (the pack's
first column); inside a pack `j` counts the elements, and step i is `v{i}`, a float (or a bool, for truth values).
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.builtin.expressions import Number, Program, Unmatched
from worker.builtin.triton.tiles import Place, Tiles, needed, operand_of

_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&&", "or": "||",
}  # fmt: skip

_CALLS = {
    "abs": "fabsf({0})", "neg": "-{0}", "reciprocal": "1.0f / {0}", "sqrt": "sqrtf({0})", "rsqrt": "rsqrtf({0})",
    "square": "{0} * {0}", "exp": "expf({0})", "exp2": "exp2f({0})", "expm1": "expm1f({0})", "log": "logf({0})",
    "log2": "log2f({0})", "log1p": "log1pf({0})", "sigmoid": "1.0f / (1.0f + expf(-{0}))", "tanh": "tanhf({0})",
    "erf": "erff({0})", "sin": "sinf({0})", "cos": "cosf({0})", "pow": "powf({0}, {1})", "floor": "floorf({0})",
    "ceil": "ceilf({0})", "round": "rintf({0})", "trunc": "truncf({0})", "not": "!{0}",
    "sign": "(float)(({0} > 0.0f) - ({0} < 0.0f))", "bool_to_float": "({0} ? 1.0f : 0.0f)",
    "where": "({0} ? {1} : {2})", "maximum": "kw_max({0}, {1})", "minimum": "kw_min({0}, {1})",
}  # fmt: skip

PRELUDE = """\
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define INF __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

// VEC neighbours, moved in pieces of up to 16 bytes.
template <class T> struct alignas(sizeof(T) * VEC < 16 ? sizeof(T) * VEC : 16) Pack { T v[VEC]; };

template <class T> __device__ __forceinline__ Pack<T> fetch(const T* from) { return *(const Pack<T>*)from; }
template <class T> __device__ __forceinline__ void store(T* to, const Pack<T>& pack) { *(Pack<T>*)to = pack; }

__device__ __forceinline__ float value(float x) { return x; }
__device__ __forceinline__ float value(__half x) { return __half2float(x); }
__device__ __forceinline__ float value(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float value(long long x) { return (float)x; }
__device__ __forceinline__ float value(int x) { return (float)x; }
__device__ __forceinline__ float value(short x) { return (float)x; }
__device__ __forceinline__ float value(signed char x) { return (float)x; }
__device__ __forceinline__ float value(unsigned char x) { return (float)x; }
__device__ __forceinline__ bool value(bool x) { return x; }

__device__ __forceinline__ void put(float& to, float x) { to = x; }
__device__ __forceinline__ void put(__half& to, float x) { to = __float2half_rn(x); }
__device__ __forceinline__ void put(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }
__device__ __forceinline__ void put(bool& to, bool x) { to = x; }

// As torch's: NaN wins.
__device__ __forceinline__ float kw_max(float a, float b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float kw_min(float a, float b) { return a < b || a != a ? a : b; }
"""

TYPES = '''\
_TYPES = {
    torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", torch.bool: "bool",
    torch.int64: "long long", torch.int32: "int", torch.int16: "short", torch.int8: "signed char",
    torch.uint8: "unsigned char",
}


@functools.cache
def _library(*choices):
    """The kernels, compiled for these (name, value) pairs."""
    return load_cuda("".join(f"#define {name} {value}\\n" for name, value in choices) + SOURCE)
'''

ALIGNED = '''\
def _vectors(cols, *tensors):
    """How many neighbouring columns can be moved at once: 16 bytes' worth where rows start at multiples of that."""
    count = 16 // min(t.element_size() for t in tensors)
    for t in tensors:
        if t.data_ptr() % 16 or cols % count or (t.dim() > 1 and t.stride(0) % count):
            return 1
    return count
'''


def literal(value: Number, names: dict[Number, str]) -> str:
    """A number inside a kernel: a float literal, or the name of the parameter that carries it."""
    if value in names:
        return names[value]
    special = {"math.inf": "INF", "-math.inf": "(-INF)", "math.nan": "NOT_A_NUMBER"}
    if value.text in special:
        return special[value.text]
    text = repr(float(value.text))
    return f"({text}f)" if text.startswith("-") else f"{text}f"


class Packs(Tiles):
    """The operands of one Program, as a CUDA kernel sees them; the Python side is that of `Tiles`."""

    def declared(self) -> list[str]:
        """The kernel's parameters for the operands, in the order of `arguments`."""
        found = [f"const T{index}* __restrict__ p{index}" for index, _, _ in self.operands()]
        for index, _, place in self.operands():
            if place.kind == "matrix":
                found.append(f"long long s{index}")
            for k in range(len(place.groups)):
                found += [f"long long g{index}_{k}", f"long long a{index}_{k}"]
        return [*found, *(f"float {name}" for name in self.numbers.values())]

    def types(self) -> str:
        """The (name, value) pairs of the operands' types, as Python."""
        return "".join(f'("T{index}", _TYPES[x{index}.dtype]), ' for index, _, _ in self.operands())

    def vectors(self) -> str:
        """The tensors that `_vectors` must look at, as Python: those that are read in packs."""
        packed = [f"x{index}" for index, _, place in self.operands() if place.kind in ("matrix", "column")]
        return ", ".join(packed)

    def packed(self, index: int) -> bool:
        """Whether an operand is read in packs."""
        return self.places[index].kind in ("matrix", "column")

    def address(self, index: int) -> str:
        """Where the pack of an operand that is read in packs starts."""
        return f"p{index} + " + (f"row * s{index} + col" if self.places[index].kind == "matrix" else "col")

    def _mixed(self, index: int, place: Place) -> str:
        text = ""
        for k, group in enumerate(place.groups):
            in_rows = group.stop <= self.split
            first, last = (0, self.split) if in_rows else (self.split, self.program.rank)
            term = "(long long)row" if in_rows else "(long long)(col + j)"
            if group.stop < last:
                term = f"({term} / a{index}_{k})"
            if group.start > first:
                term = f"({term} % g{index}_{k})"
            later = [f"g{index}_{j}" for j in range(k + 1, len(place.groups))]
            text += f" + {' * '.join([term, *later])}"
        return text

    def element(self, index: int) -> str:
        """An operand's value inside a pack; packs are named k0, k1, ..."""
        place = self.places[index]
        if self.packed(index):
            return f"value(k{index}.v[j])"
        address = {"row": " + row", "scalar": ""}.get(place.kind)
        return f"value(*(p{index}{self._mixed(index, place) if address is None else address}))"

    def value(self, index: int) -> str:
        step = self.program.steps[index]
        if step.op == "load":
            return self.element(operand_of(step))
        parts = [literal(arg, self.numbers) if isinstance(arg, Number) else f"v{arg}" for arg in step.args]
        if step.op in _BINARY:
            return f"{parts[0]} {_BINARY[step.op]} {parts[1]}"
        if step.op not in _CALLS:
            raise Unmatched(f"{step.op} has no CUDA form here")
        return _CALLS[step.op].format(*parts)

    def statement(self, index: int) -> str:
        """A step's declaration."""
        step = self.program.steps[index]
        truth = step.truth or (step.op == "load" and self.program.operands[operand_of(step)].kind == "bool")
        return f"const {'bool' if truth else 'float'} v{index} = {self.value(index)};"

    def statements(self, wanted: Sequence[int], known: frozenset[int] = frozenset()) -> list[str]:
        return [self.statement(index) for index in needed(self.program, wanted, known)]

    def packs_of(self, wanted: Sequence[int], known: frozenset[int] = frozenset()) -> list[int]:
        """The operands whose packs the wanted steps need."""
        found = [self.program.steps[index] for index in needed(self.program, wanted, known)]
        return [operand_of(step) for step in found if step.op == "load" and self.packed(operand_of(step))]


def element_outputs(program: Program) -> list[tuple[int, int, str]]:
    """(place, step, C type) of the outputs that have a value per element."""
    return [
        (k, output.step, "bool" if output.kind == "bool" else "TO")
        for k, output in enumerate(program.outputs)
        if program.steps[output.step].level == "element"
    ]


def output_parameters(program: Program) -> list[str]:
    """The kernel's parameters for the outputs."""
    kinds = ["bool" if output.kind == "bool" else "TO" for output in program.outputs]
    return [f"{kind}* __restrict__ o{k}" for k, kind in enumerate(kinds)]
