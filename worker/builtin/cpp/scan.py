"""Cumulative sum and product along the last dimension."""

from __future__ import annotations

from worker.builtin.cpp.recipe import Parts, Recipe, common_dtype, dense, matrix, rounded
from worker.builtin.expressions import Unmatched
from worker.builtin.families import Match, Scan

# Eight doubles at a time: three shifted additions give the prefixes inside a vector, and only one addition a vector
# waits
# for the one before. Double, because torch accumulates cumsum in double too. ROWS_AT_ONCE rows are interleaved.
_KERNEL = """\
typedef double vd __attribute__((vector_size(64)));
typedef int64_t vx __attribute__((vector_size(64)));
typedef float v8 __attribute__((vector_size(32)));

INLINE vd shifted(vd v, vx from) {{ return __builtin_shuffle(v, vd{{}} + {identity}, from); }}
INLINE vd prefixes(vd v) {{
    v = v {op} shifted(v, {by_1});
    v = v {op} shifted(v, {by_2});
    return v {op} shifted(v, {by_4});
}}
INLINE vd step(vd& carry, vd v) {{
    const vd inside = prefixes(v), out = inside {op} carry;
    carry = carry {op} __builtin_shuffle(inside, vx{{}} + {last});
    return out;
}}

extern "C" void kernel(float* __restrict out, const float* __restrict in, {factor_parameter} int64_t rows, int64_t n) {{
    #pragma omp parallel for schedule(static) num_threads(THREADS) if (rows * n >= GRAIN)
    for (int64_t first = 0; first < rows; first += ROWS_AT_ONCE) {{
        const int64_t count = rows - first < ROWS_AT_ONCE ? rows - first : ROWS_AT_ONCE;
        vd carry[ROWS_AT_ONCE];
        for (int m = 0; m < ROWS_AT_ONCE; m++) carry[m] = vd{{}} + {identity};
        const float* __restrict x = in + first * n;
        {factor_row}
        float* __restrict y = out + first * n;
        {walk}
    }}
}}
"""

_FORWARD = """\
int64_t i = 0;
        for (; i + 8 <= n; i += 8)
            for (int m = 0; m < count; m++) {{
                v8 v;
                memcpy(&v, x + m * n + i, sizeof v);
                {multiply}
                const v8 done = __builtin_convertvector(step(carry[m], __builtin_convertvector(v, vd)), v8);
                memcpy(y + m * n + i, &done, sizeof done);
            }}
        for (; i < n; i++)
            for (int m = 0; m < count; m++) {{
                carry[m] = carry[m] {op} (double)(x[m * n + i]{scalar_multiply});
                y[m * n + i] = (float)carry[m][0];
            }}"""

_BACKWARD = """\
int64_t i = n;
        for (; i >= 8; i -= 8)
            for (int m = 0; m < count; m++) {{
                v8 v;
                memcpy(&v, x + m * n + i - 8, sizeof v);
                {multiply}
                const v8 done = __builtin_convertvector(step(carry[m], __builtin_convertvector(v, vd)), v8);
                memcpy(y + m * n + i - 8, &done, sizeof done);
            }}
        for (i--; i >= 0; i--)
            for (int m = 0; m < count; m++) {{
                carry[m] = carry[m] {op} (double)(x[m * n + i]{scalar_multiply});
                y[m * n + i] = (float)carry[m][0];
            }}"""

_MULTIPLY = {
    "float": "v8 w; memcpy(&w, f + m * n + i{0}, sizeof w); v *= w;",
    "bool": "for (int l = 0; l < 8; l++) v[l] = v[l] * (f[m * n + i{0} + l] ? 1.0f : 0.0f);",
}
_SCALAR = {"float": " * f[m * n + i]", "bool": " * (f[m * n + i] ? 1.0f : 0.0f)"}
_CTYPE = {"float": "float", "bool": "unsigned char"}


def _shift(by: int, *, reverse: bool) -> str:
    """The lanes that a shift takes its values from; 8 and up is the identity vector."""
    lanes = [lane + by if reverse else lane - by for lane in range(8)]
    return f"vx{{{', '.join(str(lane if 0 <= lane < 8 else 8) for lane in lanes)}}}"


def write(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, Scan):
        raise Unmatched("not a scan")
    op, identity = ("+", "0.0") if found.op == "sum" else ("*", "1.0")
    kind = None if found.factor is None else found.factor.kind
    walk = (_BACKWARD if found.reverse else _FORWARD).format(
        op=op,
        multiply="" if kind is None else _MULTIPLY[kind].format(" - 8" if found.reverse else ""),
        scalar_multiply="" if kind is None else _SCALAR[kind],
    )
    prepare_factor = {
        None: [],
        "float": [matrix("factor")],
        "bool": ["factor = _matrix(factor, shape)"],
    }
    dtype = common_dtype(["x", "factor"] if kind == "float" else ["x"])
    return Parts(
        cpp=_KERNEL.format(
            op=op,
            identity=identity,
            by_1=_shift(1, reverse=found.reverse),
            by_2=_shift(2, reverse=found.reverse),
            by_4=_shift(4, reverse=found.reverse),
            last=0 if found.reverse else 7,
            factor_parameter="" if kind is None else f"const {_CTYPE[kind]}* __restrict factor,",
            factor_row="" if kind is None else f"const {_CTYPE[kind]}* __restrict f = factor + first * n;",
            walk=walk,
        ),
        inputs=[("x", found.x.text), *([] if found.factor is None else [("factor", found.factor.text)])],
        body=[
            f"dtype = {dtype}",
            dense("x"),
            "shape = x.shape",
            *prepare_factor[kind],
            "cols = shape[-1] if shape else 1",
            "rows = x.numel() // cols if cols else 0",
            "out = torch.empty(shape, dtype=torch.float32)",
            f"_LIB.kernel(out, x, {'factor, ' if kind else ''}rows, cols)",
            f"return {rounded('out')}",
        ],
        tunables={"ROWS_AT_ONCE": [1, 2], "GRAIN": [4096, 32768]},
        defaults={"ROWS_AT_ONCE": 1, "GRAIN": 32768},
    )


RECIPES = (
    Recipe(
        "scan",
        "scan",
        "Prefixes of eight elements by three shifted vector operations in double, one carry a vector, several rows "
        "interleaved to hide its latency.",
        write,
    ),
)
