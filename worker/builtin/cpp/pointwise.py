"""Elementwise Programs: one pass over memory, all operands read once, intermediate values in registers."""

from __future__ import annotations

from worker.builtin.cpp.layout import Layout, needed, uniform_suffix
from worker.builtin.cpp.recipe import Parts, Recipe, indent, rounded
from worker.builtin.cpp.rows import STREAM
from worker.builtin.expressions import Program, Unmatched
from worker.builtin.families import Match, Pointwise

# Streaming stores save reading the lines that they overwrite: a third of the traffic of `a + b -> c` (measured on one
# Zen 5 core with cold caches: 52 GB/s against 37). They need aligned addresses, and a line that was streamed must
# not be
# stored to: so the ends of a row are stored in part.
_KERNEL = """\
typedef vf F;
typedef vi M;

{stream_stores}INLINE void stream(bool* p, vi v) {{ store(p, v); }}
INLINE void store_first(bool* p, vi v, int64_t count) {{ bool t[LANES]; store(t, v); memcpy(p, t, count); }}
INLINE void store_past(bool* p, vi v, int64_t skip) {{
    bool t[LANES];
    store(t, v);
    memcpy(p + skip, t + skip, LANES - skip);
}}
enum {{ WHOLE, STREAMED, FIRST, PAST }};
template <int how> struct Store {{ static constexpr int value = how; }};

extern "C" void kernel({outputs}, {parameters}, int64_t rows, int64_t cols) {{
    const int64_t blocks = (cols + BLOCK - 1) / BLOCK, tasks = rows * blocks;
    #pragma omp parallel num_threads(THREADS) if (rows * cols >= GRAIN)
    {{
        #pragma omp for schedule(static) nowait
        for (int64_t task = 0; task < tasks; task++) {{
            const int64_t r = task / blocks, start = task % blocks * BLOCK;
            const int64_t stop = start + BLOCK < cols ? start + BLOCK : cols;
            {row_start}
            auto body = [&]({body_parameters}, auto how, int64_t part) {{
                {statements}
                if constexpr (decltype(how)::value == STREAMED) {{
                    {streams}
                }} else if constexpr (decltype(how)::value == WHOLE) {{
                    {stores}
                }} else if constexpr (decltype(how)::value == FIRST) {{
                    {firsts}
                }} else {{
                    {pasts}
                }}
            }};
            if (stop - start < LANES) {{
                const int64_t count = stop - start;
                {pad}
                body({padded}, Store<WHOLE>(), 0);
                {unpad}
                continue;
            }}
            int64_t i = start;
            if (STREAM) {{
                const int64_t past = ((uintptr_t)(o0 + r * cols + start) & (sizeof(vf) - 1)) / sizeof(float);
                if (past) {{
                    body({at_start}, Store<FIRST>(), LANES - past);
                    i = start + LANES - past;
                }}
            }}
            for (; i + LANES <= stop; i += LANES) {{
                if (PREFETCH) {{
                    {prefetch}
                }}
                body({at_i}, Store<STREAM ? STREAMED : WHOLE>(), 0);
            }}
            if (i < stop) body({at_stop}, Store<PAST>(), LANES - (stop - i));
        }}
        FENCE
    }}
}}
"""


def output_types(program: Program) -> list[str]:
    """The C types of the outputs."""
    return ["bool" if output.kind == "bool" else "float" for output in program.outputs]


def allocate(program: Program) -> list[str]:
    """Statements that make the outputs o0, o1, ... of the domain's shape."""
    kinds = ["torch.bool" if output.kind == "bool" else "torch.float32" for output in program.outputs]
    return [f"o{k} = torch.empty(shape, dtype={kind})" for k, kind in enumerate(kinds)]


def returned(program: Program) -> str:
    """The return statement: results in the reference's dtype."""
    parts = [f"o{k}" if output.kind == "bool" else rounded(f"o{k}") for k, output in enumerate(program.outputs)]
    return f"return ({', '.join(f'({part})' for part in parts)},)" if program.returns_tuple else f"return {parts[0]}"


def kernel(layout: Layout) -> str:
    """The C++ of an elementwise Program."""
    program, types = layout.program, output_types(layout.program)
    wanted = [output.step for output in program.outputs]
    ins, outs = layout.moving(), [(ctype, str(k)) for k, ctype in enumerate(types)]
    body_parameters = [f"const {c}* __restrict q{j}" for c, j in ins] + [f"{c}* __restrict d{k}" for c, k in outs]

    def at(place: str) -> str:
        return ", ".join([f"q{j} + {place}" for _, j in ins] + [f"o{k} + r * cols + {place}" for _, k in outs])

    pad = [f"{c} t{j}[LANES] = {{}}; memcpy(t{j}, q{j} + start, count * sizeof({c}));" for c, j in ins]
    pad += [f"{c} u{k}[LANES];" for c, k in outs]
    return _KERNEL.format(
        stream_stores=STREAM,
        outputs=", ".join(f"{ctype}* __restrict o{k}" for ctype, k in outs),
        parameters=", ".join(layout.parameters()),
        row_start=indent(layout.row_start(), 12),
        body_parameters=", ".join(body_parameters),
        statements=indent([layout.statement(index) for index in needed(program, wanted)], 16),
        streams=indent([f"stream(d{k}, v{step});" for k, step in enumerate(wanted)], 20),
        stores=indent([f"store(d{k}, v{step});" for k, step in enumerate(wanted)], 20),
        firsts=indent([f"store_first(d{k}, v{step}, part);" for k, step in enumerate(wanted)], 20),
        pasts=indent([f"store_past(d{k}, v{step}, part);" for k, step in enumerate(wanted)], 20),
        pad=indent(pad, 16),
        padded=", ".join([f"t{j}" for _, j in ins] + [f"u{k}" for _, k in outs]),
        unpad=indent([f"memcpy(o{k} + r * cols + start, u{k}, count * sizeof({c}));" for c, k in outs], 16),
        at_start=at("start"),
        at_i=at("i"),
        prefetch=indent([f"__builtin_prefetch(q{j} + i + PREFETCH);" for j in layout.matrices()], 20),
        at_stop=at("stop - LANES"),
    )


def write(match: Match) -> Parts:
    if not isinstance(match.bindings, Pointwise):
        raise Unmatched("not elementwise")
    program = match.bindings.program
    layout = Layout(program, uniform_suffix(program), mode="vector")
    names = ", ".join(f"o{k}" for k in range(len(program.outputs)))
    # Streaming aligns on the first output; the others must be aligned alike.
    streams = set(output_types(program)) == {"float"}
    return Parts(
        cpp=kernel(layout),
        inputs=layout.inputs(),
        body=[
            *layout.shape(),
            *layout.prepare(),
            *allocate(program),
            f"_LIB.kernel({names}, {', '.join(layout.arguments())}, rows, cols)",
            returned(program),
        ],
        tunables={
            "BLOCK": [1024, 4096, 16384],
            "GRAIN": [4096, 32768],
            "STREAM": [0, 1] if streams else [0],
            "PREFETCH": [0, 256, 1024, 2048],
        },
        defaults={"BLOCK": 4096, "GRAIN": 32768, "STREAM": int(streams), "PREFETCH": 1024},
    )


RECIPES = (
    Recipe(
        "pointwise",
        "pointwise",
        "One pass over memory in explicit vectors: every operand is read once, intermediate values stay in registers, "
        "results are streamed past the cache; exp, erf and tanh are polynomials that keep full float32 accuracy.",
        write,
    ),
)
