"""What all programs share: the Python around a C++ source, and loops over a row in four manners with six bugs.

Loops are templates over a body that takes one index (`One`) or a vector of them (`Many`), so that an algorithm is
written once for all manners: `scalar` (the compiler may not vectorise), `auto` (it may), `lanes8` and `lanes16`
(vectors of 8 or 16 floats, with a scalar loop for what is left). UNROLL loops run interleaved, with
accumulators of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.policy.genome import Genome

LOOP_BUGS = ("no_tail", "off_by_one", "lost_accumulator")
MODULE_BUGS = (
    "syntax",
    "undeclared",
    "static_output",
    "in_place",
    "assumed_contiguous",
    "argument_missing",
    "fixed_size",
)
BUGS = (*LOOP_BUGS, *MODULE_BUGS)

SIMD = ("scalar", "auto", "lanes8", "lanes16")
ARITHMETIC = ("strict", "fast")
UNROLL = (1, 2, 4, 8)

_LANES = {"scalar": 1, "auto": 1, "lanes8": 8, "lanes16": 16}

_TYPES = r"""
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define INLINE static inline __attribute__((always_inline))
constexpr int64_t U = UNROLL;
struct One { int64_t i; };
INLINE float at(const float* p, One k) { return p[k.i]; }
INLINE float put(float* p, One k, float v) { return p[k.i] = v; }
INLINE float select(bool m, float a, float b) { return m ? a : b; }
INLINE float bits(int32_t i) { float f; memcpy(&f, &i, 4); return f; }
INLINE int32_t whole(float f) { return (int32_t)f; }
template <class F> INLINE F splat(float x) { return F{} + x; }
template <> inline float splat<float>(float x) { return x; }
#if LANES > 1
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
struct Many { int64_t i; };
INLINE vf at(const float* p, Many k) { vf v; memcpy(&v, p + k.i, sizeof v); return v; }
INLINE vf put(float* p, Many k, vf v) { memcpy(p + k.i, &v, sizeof v); return v; }
INLINE vf select(vi m, vf a, vf b) { return m ? a : b; }
INLINE vf bits(vi i) { return (vf)i; }
INLINE vi whole(vf f) { return __builtin_convertvector(f, vi); }
template <class G> INLINE vf lanewise(vf x, G g) { for (int l = 0; l < LANES; l++) x[l] = g(x[l]); return x; }
#endif
template <class G> INLINE float lanewise(float x, G g) { return g(x); }
INLINE void ahead(const float* p, int64_t n) {
    if (AHEAD) for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(p + AHEAD * n + i);
}
"""

_SCALAR = r"""
template <class B> INLINE void each(int64_t n, B body) {
#pragma GCC unroll U
    for (int64_t i = 0; i < n @EXTRA@; i++) body(One{i});
}
template <class G> INLINE ACC total(int64_t n, G get) {
    ACC a[U] = {}, s = 0;
    int64_t i = 0;
    for (; i + U <= n; i += U)
        for (int64_t u = 0; u < U; u++) a[u] += get(One{i + u});
    @TAIL@ for (; i < n; i++) a[0] += get(One{i});
    for (int64_t u = @FIRST@; u < U; u++) s += a[u];
    return s;
}
template <class G> INLINE float top(int64_t n, G get) {
    float m = @LOWEST@;
    for (int64_t i = 0; i < n; i++) { const float v = get(One{i}); m = v > m ? v : m; }
    return m;
}
"""

_VECTOR = r"""
template <class B> INLINE void each(int64_t n, B body) {
    int64_t i = 0;
    for (; i + U * LANES <= n; i += U * LANES)
#pragma GCC unroll 8
        for (int64_t u = 0; u < U; u++) body(Many{i + u * LANES});
    for (; i + LANES <= n; i += LANES) body(Many{i});
    @TAIL@ for (; i < n @EXTRA@; i++) body(One{i});
}
template <class G> INLINE ACC total(int64_t n, G get) {
    vf a[U] = {};
    ACC s = 0;
    int64_t i = 0;
    for (; i + U * LANES <= n; i += U * LANES)
#pragma GCC unroll 8
        for (int64_t u = 0; u < U; u++) a[u] += get(Many{i + u * LANES});
    for (; i + LANES <= n; i += LANES) a[0] += get(Many{i});
    for (int64_t u = @FIRST@; u < U; u++)
        for (int l = 0; l < LANES; l++) s += a[u][l];
    @TAIL@ for (; i < n; i++) s += get(One{i});
    return s;
}
template <class G> INLINE float top(int64_t n, G get) {
    vf a[U];
    for (int64_t u = 0; u < U; u++) a[u] = splat<vf>(@LOWEST@);
    float m = @LOWEST@;
    int64_t i = 0;
    for (; i + U * LANES <= n; i += U * LANES)
#pragma GCC unroll 8
        for (int64_t u = 0; u < U; u++) { const vf v = get(Many{i + u * LANES}); a[u] = select(v > a[u], v, a[u]); }
    for (; i + LANES <= n; i += LANES) { const vf v = get(Many{i}); a[0] = select(v > a[0], v, a[0]); }
    for (int64_t u = @FIRST@; u < U; u++)
        for (int l = 0; l < LANES; l++) m = a[u][l] > m ? a[u][l] : m;
    @TAIL@ for (; i < n; i++) { const float v = get(One{i}); m = v > m ? v : m; }
    return m;
}
"""

EXP = {
    "libm": r"""
template <class F> INLINE F exponential(F x) { return lanewise(x, [](float v) { return expf(v); }); }
""",
    "polynomial": r"""
// x = n ln2 + r with |r| <= ln2 / 2; a polynomial for e^r; 2^n through the exponent's bits.
template <class F> INLINE F exponential(F x) {
    x = select(x > splat<F>(88.0f), splat<F>(88.0f), x);
    const auto low = x < splat<F>(-87.0f);
    x = select(low, splat<F>(-87.0f), x);
    const F t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f;
    const F r = x - n * 0.693359375f + n * 2.12194440e-4f;
    F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return select(low, splat<F>(0.0f), p * bits((whole(n) + 127) << 23));
}
""",
}

GELU = {
    "libm": r"""
template <class F> INLINE F gelu(F x) {
    return x * 0.5f * (lanewise(x * 0.70710678f, [](float v) { return erff(v); }) + 1.0f);
}
""",
    "rational": r"""
// erf as a ratio of polynomials on [-4, 4] (the one of Eigen and XLA).
template <class F> INLINE F gelu(F x) {
    F a = x * 0.70710678f;
    a = select(a > splat<F>(4.0f), splat<F>(4.0f), a);
    a = select(a < splat<F>(-4.0f), splat<F>(-4.0f), a);
    const F b = a * a;
    F p = b * -2.72614225801306e-10f + 2.77068142495902e-08f;
    p = p * b + -2.10102402082508e-06f;
    p = p * b + -5.69250639462346e-05f;
    p = p * b + -7.34990630326855e-04f;
    p = p * b + -2.95459980854025e-03f;
    p = p * b + -1.60960333262415e-02f;
    F q = b * -1.45660718464996e-05f + -2.13374055278905e-04f;
    q = q * b + -1.68282697438203e-03f;
    q = q * b + -7.37332916720468e-03f;
    q = q * b + -1.42647390514189e-02f;
    return x * 0.5f * (a * p / q + 1.0f);
}
""",
    "approximate": r"""
template <class F> INLINE F gelu(F x) {  // the formula with tanh: another function
    return x * 0.5f * (lanewise((x * x * x * 0.044715f + x) * 0.79788456f, [](float v) { return tanhf(v); }) + 1.0f);
}
""",
}

_MODULE = '''
from kernelwright import load_cpp
from torch import nn
import torch

TUNABLES = {space}
{values}

SOURCE = r"""{source}"""
FLAGS = ("-DUNROLL=" + str(UNROLL), "-DBLOCK=" + str(BLOCK), "-DAHEAD=" + str(AHEAD), {flags})


class ModelNew(nn.Module):
{init}
    def forward(self, {arguments}):
        {prepare}
        y = {output}
        self.library.run({call})
        return y
'''


def loops(genome: Genome, *, double: bool = False) -> str:
    """Types and loops for the genome's manner. `double`: sums are double at the end of a row (scalar: throughout)."""
    lanes = _LANES[genome.gene("simd")]
    bugs = genome.bugs
    text = _TYPES + (_VECTOR if lanes > 1 else _SCALAR)
    text = text.replace("@TAIL@", "if (0)" if "no_tail" in bugs else "")
    text = text.replace("@EXTRA@", "+ 1" if "off_by_one" in bugs else "")
    text = text.replace("@FIRST@", "1" if "lost_accumulator" in bugs else "0")
    text = text.replace("@LOWEST@", "0.0f" if "zero_maximum" in bugs else "-INFINITY")
    if "no_tail" in bugs and lanes == 1:
        text = text.replace("i < n ; i++) body", "i + 1 < n; i++) body")
    return f"#define LANES {lanes}\n#define ACC {'double' if double else 'float'}\n" + text


def module(
    genome: Genome,
    source: str,
    *,
    arguments: str,
    call: str,
    space: Mapping[str, Sequence[int]],
    fixed: int,
    init: str = "",
    setup: str = "",
    output: str = "torch.empty_like(x)",
) -> str:
    """The candidate's file. `call`: the arguments of `run` after x and y; `init`: the model's parameters;
    `setup`: a line of `forward` before the call;
    `fixed`: the length of a row that a program with the bug `fixed_size` was made for."""
    bugs = genome.bugs
    if "syntax" in bugs:
        source = source.rstrip()[:-1]
    if "undeclared" in bugs:
        source = source.replace("rows; r", "row_count; r", 1)
    if "fixed_size" in bugs:
        fixed_row = f"int64_t given) {{\n    const int64_t n = (void(given), {fixed});"
        loops_of_row, _, rest = source.rpartition("int64_t n) {")
        source = loops_of_row + fixed_row + rest
    names = [name.strip() for name in arguments.split(",")]
    contiguous = [] if "assumed_contiguous" in bugs else [f"{name} = {name}.contiguous()" for name in names]
    prepare = [*contiguous, *filter(None, [setup])] or ["pass"]
    parts = ["x", "x" if "in_place" in bugs else "y", call]
    if "argument_missing" in bugs:
        parts[-1] = parts[-1].rpartition(", ")[0]
    if "static_output" in bugs:
        made = f"self.kept = self.kept if getattr(self, 'size', None) == x.shape else {output}"
        prepare += [made, "self.size = x.shape"]
        output = "self.kept"
    flags = ['"-O3"']
    if genome.gene("simd") == "scalar":
        flags.append('"-fno-tree-vectorize", "-fno-tree-slp-vectorize"')
    if genome.gene("arithmetic") == "fast":
        flags.append('"-ffast-math"')
    values = "\n".join(f"{name} = {value}" for name, value in genome.tunables)
    return _MODULE.format(
        space={name: list(choices) for name, choices in space.items()},
        values=values,
        source=source,
        flags=", ".join(flags),
        init=init,
        arguments=arguments,
        prepare="\n        ".join(prepare),
        output=output,
        call=", ".join(parts),
    ).lstrip()
