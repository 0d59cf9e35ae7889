"""Reductions over rows, over columns and over everything."""

from __future__ import annotations

from worker.builtin.cpp import rows
from worker.builtin.cpp.recipe import Parts, Recipe, dense, rounded
from worker.builtin.expressions import Unmatched
from worker.builtin.families import ColumnReduction, Match, RowReduction

# A row is split between threads when there are few rows: each part leaves its result in double (and, for logsumexp, the
# maximum it is relative to), and the parts are put together in order, so the result does not depend on timing.
_ROWS = """\
{toolkit}
extern "C" void kernel(float* __restrict out, const float* __restrict in, int64_t rows, int64_t n) {{
    const int64_t parts = rows >= 4 * THREADS || n < 2 * SPLIT ? 1 : (n + SPLIT - 1) / SPLIT;
    static thread_local Room kept;
    double* const found = kept.of<double>(2 * rows * parts);
    double* const tops = found + rows * parts;
    #pragma omp parallel for schedule(static) num_threads(THREADS) if (rows * n >= GRAIN)
    for (int64_t task = 0; task < rows * parts; task++) {{
        const int64_t r = task / parts, part = task % parts;
        const int64_t from = n * part / parts, to = n * (part + 1) / parts;
        const float* __restrict x = in + r * n;
        {part}
    }}
    for (int64_t r = 0; r < rows; r++) {{
        const double* piece = found + r * parts;
        const double* top = tops + r * parts;
        {combine}
    }}
}}
"""

_PART = {
    "sum": "found[task] = row_sum(from, to, [&](auto k) { return at(x, k); });",
    "max": "found[task] = row_max(from, to, [&](auto k) { return at(x, k); });",
    "min": "found[task] = -row_max(from, to, [&](auto k) { return -at(x, k); });",
    "logsumexp": """\
float most = row_max(from, to, [&](auto k) { return at(x, k); });
        tops[task] = most;
        most = most == INF || most == -INF ? 0.0f : most;
        found[task] = row_sum(from, to, [&](auto k) { return kw_exp_flushed(at(x, k) - most); });""",
}
_COMBINE = {
    "sum": """\
double total = 0.0;
        for (int64_t p = 0; p < parts; p++) total += piece[p];
        out[r] = (float)total;""",
    "mean": """\
double total = 0.0;
        for (int64_t p = 0; p < parts; p++) total += piece[p];
        out[r] = (float)(total / (double)n);""",
    "max": """\
double best = piece[0];
        for (int64_t p = 1; p < parts; p++) best = piece[p] > best || piece[p] != piece[p] ? piece[p] : best;
        out[r] = (float)best;""",
    "min": """\
double best = piece[0];
        for (int64_t p = 1; p < parts; p++) best = piece[p] < best || piece[p] != piece[p] ? piece[p] : best;
        out[r] = (float)best;""",
    "logsumexp": """\
double most = -INF, total = 0.0;
        for (int64_t p = 0; p < parts; p++) most = top[p] > most || top[p] != top[p] ? top[p] : most;
        if (most == INF || most == -INF) most = 0.0;
        for (int64_t p = 0; p < parts; p++) {
            const double base = top[p] == INF || top[p] == -INF ? 0.0 : top[p];
            total += piece[p] * __builtin_exp(base - most);
        }
        out[r] = (float)(__builtin_log(total) + most);""",
}


def write_rows(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, RowReduction):
        raise Unmatched("not a reduction of rows")
    part = _PART["sum" if found.op == "mean" else found.op]
    kept = ", 1" * found.dims if found.keepdim else ""
    toolkit = rows.ROOM + rows.WALK + rows.SUM + rows.NAN_MAX
    return Parts(
        cpp=_ROWS.format(toolkit=toolkit, part=part, combine=_COMBINE[found.op]),
        inputs=[("x", found.x.text)],
        body=[
            "dtype = x.dtype",
            dense("x"),
            *rows.rows_and_columns(found.dims),
            *_refuse_empty(found.op, "cols"),
            f"out = torch.empty((*shape[:-{found.dims}]{kept or ','}), dtype=torch.float32)",
            "rows = out.numel()",
            "_LIB.kernel(out, x, rows, cols)",
            f"return {rounded('out')}",
        ],
        tunables={**rows.TUNABLES, "SPLIT": [8192, 32768, 131072]},
        defaults={**rows.DEFAULTS, "SPLIT": 32768},
    )


def _refuse_empty(op: str, extent: str) -> list[str]:
    if op not in ("max", "min"):
        return []
    return [f"if {extent} == 0:", f'    raise IndexError("{op} of an empty dimension")']


# [outer, n, inner] -> [outer, inner]: WIDE columns at a time, float lanes flushed into double every CHUNK rows. A
# long n is
# split between threads when there is nothing else to share out.
_COLUMNS = """\
{toolkit}
extern "C" void kernel(float* __restrict out, const float* __restrict in, int64_t outer, int64_t n, int64_t inner) {{
    const int64_t blocks = (inner + WIDE - 1) / WIDE;
    const int64_t parts = outer * blocks >= 2 * THREADS || n < 2 * CHUNK ? 1 : (n + 4 * CHUNK - 1) / (4 * CHUNK);
    static thread_local Room kept;
    double* const found = kept.of<double>(parts > 1 ? parts * outer * inner : 0);
    #pragma omp parallel for schedule(static) num_threads(THREADS) if (outer * n * inner >= GRAIN)
    for (int64_t task = 0; task < outer * blocks * parts; task++) {{
        const int64_t part = task % parts, block = task / parts % blocks, o = task / parts / blocks;
        const int64_t from = n * part / parts, to = n * (part + 1) / parts;
        const int64_t first = block * WIDE, count = inner - first < WIDE ? inner - first : WIDE;
        double total[WIDE];
        for (int64_t c = 0; c < count; c++) total[c] = {start};
        for (int64_t base = from; base < to; base += CHUNK) {{
            const int64_t stop = base + CHUNK < to ? base + CHUNK : to;
            float held[WIDE];
            for (int64_t c = 0; c < count; c++) held[c] = {start};
            for (int64_t j = base; j < stop; j++) {{
                const float* __restrict x = in + (o * n + j) * inner + first;
                #pragma omp simd
                for (int64_t c = 0; c < count; c++) held[c] = {step};
            }}
            for (int64_t c = 0; c < count; c++) total[c] = {join_held};
        }}
        if (parts == 1) {{
            for (int64_t c = 0; c < count; c++) out[o * inner + first + c] = (float)({finish});
        }} else {{
            memcpy(found + (part * outer + o) * inner + first, total, count * sizeof(double));
        }}
    }}
    if (parts == 1) return;
    for (int64_t e = 0; e < outer * inner; e++) {{
        double total[1] = {{{start}}};
        for (int64_t part = 0; part < parts; part++) {{
            const int64_t c = 0;
            const double more = found[part * outer * inner + e];
            total[c] = {join_more};
        }}
        const int64_t c = 0;
        out[e] = (float)({finish});
    }}
}}
"""

_MAX_STEP = "x[c] {0} held[c] || x[c] != x[c] ? x[c] : held[c]"
_MAX_JOIN = "{1} {0} total[c] || {1} != {1} ? {1} : total[c]"


def _column_forms(op: str) -> dict[str, str]:
    if op in ("sum", "mean"):
        finish = "total[c]" if op == "sum" else "total[c] / (double)n"
        return {"start": "0.0f", "step": "held[c] + x[c]", "join_held": "total[c] + held[c]",
                "join_more": "total[c] + more", "finish": finish}  # fmt: skip
    sign = ">" if op == "max" else "<"
    return {
        "start": "-INF" if op == "max" else "INF",
        "step": _MAX_STEP.format(sign),
        "join_held": _MAX_JOIN.format(sign, "held[c]"),
        "join_more": _MAX_JOIN.format(sign, "more"),
        "finish": "total[c]",
    }


def write_columns(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, ColumnReduction):
        raise Unmatched("not a reduction of columns")
    dim = found.dim
    kept = "1, " if found.keepdim else ""
    return Parts(
        cpp=_COLUMNS.format(toolkit=rows.ROOM, **_column_forms(found.op)),
        inputs=[("x", found.x.text)],
        body=[
            "dtype = x.dtype",
            dense("x"),
            "shape = x.shape",
            f"outer, n, inner = math.prod(shape[:{dim}]), shape[{dim}], math.prod(shape[{dim + 1}:])",
            *_refuse_empty(found.op, "n"),
            f"out = torch.empty((*shape[:{dim}], {kept}*shape[{dim + 1}:]), dtype=torch.float32)",
            "_LIB.kernel(out, x, outer, n, inner)",
            f"return {rounded('out')}",
        ],
        tunables={"WIDE": [64, 256, 1024], "CHUNK": [32, 128, 512], "GRAIN": [4096, 32768]},
        defaults={"WIDE": 256, "CHUNK": 128, "GRAIN": 32768},
    )


RECIPES = (
    Recipe(
        "row_reduction",
        "row_reduction",
        "Four vector accumulators a row, gathered in double; a long row is split between threads when rows are few.",
        write_rows,
    ),
    Recipe(
        "column_reduction",
        "column_reduction",
        "A block of columns walks down the rows in registers and L1, so memory is read in order; sums are flushed to "
        "double; a tall matrix is split between threads.",
        write_columns,
    ),
)
