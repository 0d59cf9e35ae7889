"""Group norm and instance norm, with an elementwise epilogue."""

from __future__ import annotations

from worker.builtin.cpp import rows
from worker.builtin.cpp.layout import Layout, epilogue_code
from worker.builtin.cpp.recipe import Parts, Recipe, common_dtype, dense, indent, rounded, vector
from worker.builtin.expressions import Unmatched
from worker.builtin.families import GroupNorm, Match

_KERNEL = """\
{toolkit}
extern "C" void kernel(float* __restrict out, const float* __restrict in, {parameters}int64_t batch, int64_t channels,
                       int64_t groups, int64_t cols, double eps) {{
    const int64_t share = channels / groups;
    #pragma omp parallel num_threads(THREADS) if (batch * channels * cols >= GRAIN)
    {{
        #pragma omp for schedule(static) nowait
        for (int64_t group = 0; group < batch * groups; group++) {{
            const int64_t n = share * cols;
            const float* __restrict x = in + group * n;
            const float mean = (float)(row_sum(0, n, [&](auto k) {{ return at(x, k); }}) / (double)n);
            double squares, slip;
            row_sums(n, squares, slip, [&](auto k, auto& a, auto& b) {{
                const auto d = at(x, k) - mean;
                a += d * d;
                b += d;
            }});
            slip /= (double)n;
            const double spread = squares / (double)n - slip * slip;
            const double factor = 1.0 / __builtin_sqrt((spread > 0.0 || spread != spread ? spread : 0.0) + eps);
            for (int64_t s = 0; s < share; s++) {{
                const int64_t r = group * share + s, channel = r % channels;
                (void)channel;
                const double gain = factor * {weight};
                const float scale = (float)gain, shift = (float)({bias} - slip * gain);
                const float* __restrict from = in + r * cols;
                {epilogue}
                write_row(out + r * cols, cols, [&](auto k) {{
                    const auto value = (at(from, k) - mean) * scale + shift;
                    return {value};
                }});
            }}
        }}
        FENCE
    }}
}}
"""


def write(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, GroupNorm):
        raise Unmatched("not a group norm")
    space = found.x.rank - 2
    layout = Layout(found.epilogue, space, mode="walk") if found.epilogue is not None else None
    weights = [(name, o) for name, o in (("weight", found.weight), ("bias", found.bias)) if o is not None]
    names = [name for name, _ in weights]
    parameters = [f"const float* __restrict {name}" for name in names] + (layout.parameters() if layout else [])
    arguments = names + (layout.arguments() if layout else [])
    typed = ["x", *names, *(layout.typed() if layout else [])]
    return Parts(
        cpp=_KERNEL.format(
            toolkit=rows.WALK + rows.SUM + rows.SUM2 + rows.WRITE,
            parameters="".join(f"{p}, " for p in parameters),
            weight="(double)weight[channel]" if found.weight else "1.0",
            bias="(double)bias[channel]" if found.bias else "0.0",
            epilogue=indent(epilogue_code(layout, "0"), 16) if layout else "",
            value="finish(k, value)" if layout else "value",
        ),
        inputs=[("x", found.x.text), *((name, o.text) for name, o in weights), ("groups", found.groups.text),
                ("eps", found.eps.text), *(layout.inputs() if layout else [])],
        body=[
            f"dtype = {common_dtype(typed)}",
            dense("x"),
            "shape = x.shape",
            "channels, cols = shape[1], math.prod(shape[2:])",
            "rows = shape[0] * channels",
            *(vector(name, "channels") for name in names),
            *(layout.prepare() if layout else []),
            "out = torch.empty(shape, dtype=torch.float32)",
            f"_LIB.kernel(out, x, {''.join(f'{a}, ' for a in arguments)}shape[0], channels, int(groups), cols, eps)",
            f"return {rounded('out')}",
        ],
        tunables={**rows.TUNABLES, "STREAM": [0, 1]},
        defaults={**rows.DEFAULTS, "STREAM": 1},
    )  # fmt: skip


RECIPES = (
    Recipe(
        "group_norm",
        "group_norm",
        "Each group is a contiguous run: two walks for its mean and variance, a third scales, shifts and applies what "
        "follows.",
        write,
    ),
)
