"""Elementwise Programs in CUDA: packs of 16 bytes, several in flight per thread before the first is used."""

from __future__ import annotations

from worker.builtin.cuda.printing import Packs, element_outputs, output_parameters
from worker.builtin.cuda.recipe import Parts, Recipe
from worker.builtin.expressions import Unmatched
from worker.builtin.families import Match, Pointwise
from worker.builtin.triton.pointwise import uniform_suffix
from worker.builtin.triton.recipe import indented, outputs

_KERNEL = """\
extern "C" __global__ void __launch_bounds__(THREADS) pointwise({parameters}, long long rows, long long cols) {{
    const INDEX across = cols / VEC, total = rows * across;
    const INDEX first = (INDEX)blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
{declared}
    #pragma unroll
    for (int u = 0; u < UNROLL; u++) {{
        const INDEX at = first + u * THREADS;
        if (at < total) {{
            const long long row = at / across, col = (long long)(at % across) * VEC;
{fetches}
        }}
    }}
    #pragma unroll
    for (int u = 0; u < UNROLL; u++) {{
        const INDEX at = first + u * THREADS;
        if (at >= total) break;
        const long long row = at / across, col = (long long)(at % across) * VEC;
{results}
        #pragma unroll
        for (int j = 0; j < VEC; j++) {{
{picked}
{statements}
        }}
{stores}
    }}
}}
"""


def write(match: Match) -> Parts:
    if not isinstance(match.bindings, Pointwise):
        raise Unmatched("not elementwise")
    program = match.bindings.program
    if program.rank < 1:
        raise Unmatched("a single number")
    tiles = Packs(program, uniform_suffix(program))
    wanted = [output.step for output in program.outputs]
    packs = tiles.packs_of(wanted)
    if not packs:
        raise Unmatched("nothing to read in packs")
    results = element_outputs(program)
    # Inside the second loop a pack is known by its plain name.
    kernel = _KERNEL.format(
        parameters=", ".join([*tiles.declared(), *output_parameters(program)]),
        declared=indented([f"Pack<T{j}> h{j}[UNROLL];" for j in packs], 4),
        fetches=indented([f"h{j}[u] = fetch({tiles.address(j)});" for j in packs], 12),
        results=indented([f"Pack<{kind}> r{k};" for k, _, kind in results], 8),
        picked=indented([f"const Pack<T{j}>& k{j} = h{j}[u];" for j in packs], 12),
        statements=indented([*tiles.statements(wanted), *(f"put(r{k}.v[j], v{step});" for k, step, _ in results)], 12),
        stores=indented([f"store(o{k} + row * cols + col, r{k});" for k, _, _ in results], 8),
    )
    allocate, names, returned = outputs(tiles)
    body = [
        *tiles.shape(),
        *allocate,
        *tiles.prepare(),
        f"vec = _vectors(cols, {', '.join([tiles.vectors(), *names])})",
        "total = rows * cols // vec",
        "if total == 0:",
        f"    {returned}",
        'index = "unsigned" if total < 2**31 else "long long"',
        f"library = _library({tiles.types()}",
        '    ("TO", _TYPES[dtype]), ("VEC", vec), ("INDEX", index), ("THREADS", THREADS), ("UNROLL", UNROLL)',
        ")",
        "grid = -(-total // (THREADS * UNROLL))",
        f"library.pointwise[(grid,), (THREADS,)]({', '.join([*tiles.arguments(), *names])}, rows, cols)",
        returned,
    ]
    return Parts(
        kernels=kernel,
        inputs=tiles.inputs(),
        body=body,
        tunables={"THREADS": [128, 256, 512], "UNROLL": [1, 2, 4, 8]},
        defaults={"THREADS": 256, "UNROLL": 2},
        helpers=tiles.python_helpers(),
    )


RECIPES = (
    Recipe(
        "pointwise_packs",
        "pointwise",
        "One pass over memory in packs of 16 bytes, several fetched by each thread before the first is used; "
        "everything in between stays in float32 registers.",
        write,
    ),
)
