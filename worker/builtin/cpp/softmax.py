"""Softmax and log-softmax over rows."""

from __future__ import annotations

from worker.builtin.cpp import rows
from worker.builtin.cpp.recipe import Parts, Recipe, dense, rounded
from worker.builtin.expressions import Unmatched
from worker.builtin.families import Match, Softmax

_KERNEL = """\
{toolkit}
extern "C" void kernel(float* __restrict out, const float* __restrict in, int64_t rows, int64_t n, double scale_) {{
    const float scale = (float)scale_;
    #pragma omp parallel num_threads(THREADS) if (rows * n >= GRAIN)
    {{
        float* __restrict powers = scratch_row(n);
        #pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++) {{
            const float* __restrict x = in + r * n;
            const float top = row_top(0, n, [&](auto k) {{ return at(x, k) * scale; }});
            {tail}
        }}
        FENCE
    }}
}}
"""

_PLAIN = """\
const double total = row_sum(0, n, [&](auto k) {
                NEXT_ROW(x, k);
                return put(powers, k, kw_exp_down(at(x, k) * scale - top));
            });
            const float share = (float)(1.0 / total);
            write_row(out + r * n, n, [&](auto k) { return at(powers, k) * share; });"""

_LOG = """\
const double total = row_sum(0, n, [&](auto k) {
                NEXT_ROW(x, k);
                return kw_exp_down(at(x, k) * scale - top);
            });
            const float log_total = (float)__builtin_log(total);
            write_row(out + r * n, n, [&](auto k) { return at(x, k) * scale - top - log_total; });"""


def write(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, Softmax):
        raise Unmatched("not a softmax")
    return Parts(
        cpp=_KERNEL.format(
            toolkit=rows.WALK + rows.SUM + rows.MAX + rows.WRITE + rows.AHEAD + rows.SCRATCH,
            tail=_LOG if found.log else _PLAIN,
        ),
        inputs=[("x", found.x.text), ("scale", found.scale.text)],
        body=[
            "dtype = x.dtype",
            dense("x"),
            *rows.rows_and_columns(found.dims),
            "out = torch.empty(shape, dtype=torch.float32)",
            "_LIB.kernel(out, x, rows, cols, scale)",
            f"return {rounded('out')}",
        ],
        tunables=rows.STREAM_TUNABLES,
        defaults=rows.STREAM_DEFAULTS,
    )


RECIPES = (
    Recipe(
        "softmax",
        "softmax",
        "Each row is read from memory once: its maximum, then its powers into a buffer in the cache together "
        "with their sum, then the scaled row streamed out.",
        write,
    ),
)
