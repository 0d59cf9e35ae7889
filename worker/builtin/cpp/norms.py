"""Layer norm and RMS norm over rows, with an optional residual that is added first."""

from __future__ import annotations

from worker.builtin.cpp import rows
from worker.builtin.cpp.recipe import Parts, Recipe, common_dtype, dense, matrix, rounded, vector
from worker.builtin.expressions import Operand, Unmatched
from worker.builtin.families import LayerNorm, Match, RmsNorm

_KERNEL = """\
{toolkit}
extern "C" void kernel({parameters}, int64_t rows, int64_t n, double eps) {{
    #pragma omp parallel num_threads(THREADS) if (rows * n >= GRAIN)
    {{
        float* __restrict held = scratch_row(n);
        #pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++) {{
            const float* __restrict x = in + r * n;
            {body}
        }}
        FENCE
    }}
}}
"""

# The mean is rounded to float before it is subtracted; `slip` is what that left over, found in the second pass, so that
# inputs far from zero (1e4 + noise) lose nothing.
_LAYER = """\
const float mean = (float)({sum} / (double)n);
            double squares, slip;
            row_sums(n, squares, slip, [&](auto k, auto& a, auto& b) {{
                const auto d = at({h}, k) - mean;
                a += d * d;
                b += d;
            }});
            slip /= (double)n;
            const double spread = squares / (double)n - slip * slip;
            const double factor_ = 1.0 / __builtin_sqrt((spread > 0.0 || spread != spread ? spread : 0.0) + eps);
            const float factor = (float)factor_, shift = (float)(-slip * factor_);
            write_row(out + r * n, n, [&](auto k) {{
                {ahead}
                return ((at({h}, k) - mean) * factor + shift){affine};
            }});"""

_RMS = """\
const double squares = {sum};
            const float factor = (float)(1.0 / __builtin_sqrt(squares / (double)n + eps));
            write_row(out + r * n, n, [&](auto k) {{
                {ahead}
                return at({h}, k) * factor{affine};
            }});"""


_AHEAD = {False: "NEXT_ROW(x, k);", True: "NEXT_ROW(x, k); NEXT_ROW(y, k);"}


def _sum(residual: bool, second: bool, square: bool) -> str:
    """The first pass: the sum of the row or of its squares; with a residual the added row is kept in `held`."""
    value = "at(x, k)"
    if residual:
        value = "put(held, k, at(x, k) + at(y, k))"
    if second:
        value = f"put(sum_out + r * n, k, {value})"
    return f"row_sum(0, n, [&](auto k) {{ const auto h = {value}; return {'h * h' if square else 'h'}; }})"


def _parts(found: LayerNorm | RmsNorm, body: str, weights: list[tuple[str, Operand]]) -> Parts:
    names = [name for name, _ in weights]
    parameters = ["float* __restrict out"] + ["float* __restrict sum_out"] * found.returns_sum
    parameters += ["const float* __restrict in"] + ["const float* __restrict residual"] * (found.residual is not None)
    parameters += [f"const float* __restrict {name}" for name in names]
    row_start = "const float* __restrict y = residual + r * n;\n            " if found.residual is not None else ""
    residual = [("residual", found.residual.text)] if found.residual is not None else []
    passed = ["out", *["total"] * found.returns_sum, "x", *["residual"] * bool(residual), *names]
    total = ["total = torch.empty(shape, dtype=torch.float32)"] if found.returns_sum else []
    summed = ["x", *["residual"] * bool(residual)]
    result = f"return {rounded('out')}"
    if found.returns_sum:
        result = f"return ({rounded('out')}), ({rounded('total', 'plain')})"
    return Parts(
        cpp=_KERNEL.format(
            toolkit=rows.WALK + rows.SUM + rows.SUM2 + rows.WRITE + rows.AHEAD + rows.SCRATCH,
            parameters=", ".join(parameters),
            body=row_start + body,
        ),
        inputs=[("x", found.x.text), *residual, *((name, operand.text) for name, operand in weights),
                ("eps", found.eps.text)],
        body=[
            f"dtype = {common_dtype([*summed, *names])}",
            *([f"plain = {common_dtype(summed)}"] if found.returns_sum else []),
            dense("x"),
            *rows.rows_and_columns(found.dims),
            *([matrix("residual")] if residual else []),
            *(vector(name, "cols") for name in names),
            "out = torch.empty(shape, dtype=torch.float32)",
            *total,
            f"_LIB.kernel({', '.join(passed)}, rows, cols, eps)",
            result,
        ],
        tunables=rows.STREAM_TUNABLES,
        defaults=rows.STREAM_DEFAULTS,
    )  # fmt: skip


def write_layer(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, LayerNorm):
        raise Unmatched("not a layer norm")
    weights = [(name, o) for name, o in (("weight", found.weight), ("bias", found.bias)) if o is not None]
    affine = (" * at(weight, k)" if found.weight else "") + (" + at(bias, k)" if found.bias else "")
    has_residual = found.residual is not None
    total = _sum(has_residual, found.returns_sum, square=False)
    return _parts(
        found,
        _LAYER.format(sum=total, h="held" if has_residual else "x", affine=affine, ahead=_AHEAD[has_residual]),
        weights,
    )


def write_rms(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, RmsNorm):
        raise Unmatched("not an RMS norm")
    weights = [("weight", found.weight)] if found.weight is not None else []
    affine = ""
    if found.weight is not None:
        affine = f" * ({found.offset!r}f + at(weight, k))" if found.offset else " * at(weight, k)"
    has_residual = found.residual is not None
    total = _sum(has_residual, found.returns_sum, square=True)
    body = _RMS.format(sum=total, h="held" if has_residual else "x", affine=affine, ahead=_AHEAD[has_residual])
    return _parts(found, body, weights)


RECIPES = (
    Recipe(
        "layer_norm",
        "layer_norm",
        "Each row is read from memory once: mean, then the variance about it, corrected for the mean's rounding, "
        "then the normalised row streamed out.",
        write_layer,
    ),
    Recipe(
        "rms_norm",
        "rms_norm",
        "Each row is read from memory once: the residual is added into a buffer in the cache while the squares "
        "are summed, then the scaled row is streamed out.",
        write_rms,
    ),
)
