"""Matrix products with an elementwise epilogue."""

from __future__ import annotations

from worker.builtin.cpp import rows
from worker.builtin.cpp.layout import Layout, epilogue_code
from worker.builtin.cpp.recipe import Parts, Recipe, common_dtype, dense, has_wide_vectors, indent, rounded
from worker.builtin.expressions import Unmatched
from worker.builtin.families import Match, Matmul

# Swaps the off-diagonal blocks of 1, 2, 4, ... lanes between pairs of rows: LANES * log2(LANES) permutations.
TRANSPOSE = """\
INLINE void transpose(vf* row) {
    #pragma GCC unroll 8
    for (int s = 1; s < LANES; s *= 2) {
        vi low, high;
        #pragma GCC unroll 16
        for (int l = 0; l < LANES; l++) {
            low[l] = l & s ? LANES + l - s : l;
            high[l] = l & s ? LANES + l : l + s;
        }
        #pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            if (i & s) continue;
            const vf a = row[i], b = row[i + s];
            row[i] = __builtin_shuffle(a, b, low);
            row[i + s] = __builtin_shuffle(a, b, high);
        }
    }
}
// to[j * to_stride + i] = from[i * from_stride + j] for i < count_i, j < count_j; the rest of the last vectors is zero.
INLINE void transpose_block(float* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t count_i,
                            int64_t count_j) {
    for (int64_t i = 0; i < count_i; i += LANES)
        for (int64_t j = 0; j < count_j; j += LANES) {
            vf block[LANES];
            const int64_t height = count_i - i < LANES ? count_i - i : LANES;
            const int64_t width = count_j - j < LANES ? count_j - j : LANES;
            for (int64_t l = 0; l < LANES; l++) {
                block[l] = vf{};
                if (l < height && width == LANES) block[l] = load(from + (i + l) * from_stride + j);
                else if (l < height) memcpy(&block[l], from + (i + l) * from_stride + j, width * sizeof(float));
            }
            transpose(block);
            for (int64_t l = 0; l < width; l++) store(to + (j + l) * to_stride + i, block[l]);
        }
}
"""

# R rows times NV vectors of columns in registers: b is packed as [k][NV * LANES].
TILE = """\
#define NR (NV * LANES)
template <int R> INLINE void tile(float (*out)[NR], const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                             int64_t depth) {
    vf sum[R][NV];
    #pragma GCC unroll 16
    for (int m = 0; m < R; m++)
        #pragma GCC unroll 8
        for (int v = 0; v < NV; v++) sum[m][v] = vf{};
    for (int64_t k = 0; k < depth; k++) {
        vf column[NV];
        #pragma GCC unroll 8
        for (int v = 0; v < NV; v++) column[v] = load(b + k * b_stride + v * LANES);
        #pragma GCC unroll 16
        for (int m = 0; m < R; m++) {
            const vf x = splat<vf>(a[m * a_stride + k]);
            #pragma GCC unroll 8
            for (int v = 0; v < NV; v++) sum[m][v] += x * column[v];
        }
    }
    #pragma GCC unroll 16
    for (int m = 0; m < R; m++)
        #pragma GCC unroll 8
        for (int v = 0; v < NV; v++) store(out[m] + v * LANES, sum[m][v]);
}
template <int R> INLINE void tile_of(int64_t count, float (*out)[NR], const float* a, int64_t a_stride, const float* b,
                                     int64_t b_stride, int64_t depth) {
    if (count == R) tile<R>(out, a, a_stride, b, b_stride, depth);
    else if constexpr (R > 1) tile_of<R - 1>(count, out, a, a_stride, b, b_stride, depth);
}
"""

_KERNEL = """\
{toolkit}
extern "C" void kernel(float* __restrict out, const float* __restrict a_all, const float* __restrict b_all,
                       {parameters}int64_t batch, int64_t m, int64_t n, int64_t depth) {{
    const int64_t panels = (n + NR - 1) / NR, blocks = (m + MC - 1) / MC, cols = n;
    (void)cols;
    static thread_local Room kept;
    float* const packed = kept.of<float>(panels * NR * (KC < depth ? KC : depth));
    #pragma omp parallel num_threads(THREADS) if (batch * m * n * depth >= GRAIN)
    for (int64_t g = 0; g < batch; g++) {{
        const float* const a = a_all + g * m * depth;
        const float* const b = b_all + g * depth * n;
        for (int64_t base = 0; base < depth || base == 0; base += KC) {{
            const int64_t span = depth - base < KC ? depth - base : KC;
            const bool opening = base == 0, closing = base + span >= depth;
            #pragma omp for schedule(static)
            for (int64_t panel = 0; panel < panels; panel++) {{
                float* to = packed + panel * NR * span;
                const int64_t first = panel * NR, count = n - first < NR ? n - first : NR;
                {pack}
            }}
            #pragma omp for schedule(static) collapse(2)
            for (int64_t block = 0; block < blocks; block++)
                for (int64_t panel = 0; panel < panels; panel++) {{
                    const int64_t end = block * MC + MC < m ? block * MC + MC : m;
                    const int64_t first = panel * NR, count = n - first < NR ? n - first : NR;
                    for (int64_t i = block * MC; i < end; i += MR) {{
                        const int64_t height = end - i < MR ? end - i : MR;
                        alignas(64) float done[MR][NR];
                        tile_of<MR>(height, done, a + i * depth + base, depth, packed + panel * NR * span, NR, span);
                        for (int64_t h = 0; h < height; h++) {{
                            const int64_t r = g * m + i + h;
                            float* const to = out + r * n + first;
                            float* const sums = done[h];
                            if (!opening) walk(count, [&](auto k) {{ put(sums, k, at(sums, k) + at(to, k)); }});
                            if (!closing) {{
                                memcpy(to, sums, count * sizeof(float));
                                continue;
                            }}
                            {finish}
                        }}
                    }}
                }}
        }}
    }}
}}
"""

# Whole vectors, then single elements: nothing is done twice.
WALK_ALL = """\
template <class Do> INLINE void walk(int64_t count, Do action) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) action(Many{i});
    for (; i < count; i++) action(One{i});
}
"""

_PACK = {
    True: """\
if (count < NR) memset(to, 0, span * NR * sizeof(float));
                transpose_block(to, NR, b + first * depth + base, depth, count, span);""",
    False: """\
for (int64_t k = 0; k < span; k++) {
                    memcpy(to + k * NR, b + (base + k) * n + first, count * sizeof(float));
                    for (int64_t c = count; c < NR; c++) to[k * NR + c] = 0.0f;
                }""",
}


def write(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, Matmul):
        raise Unmatched("not a matrix product")
    if found.epilogue is not None and found.epilogue.outputs[0].kind != "float":
        raise Unmatched("an epilogue that is not of floats")
    layout = Layout(found.epilogue, 1, mode="walk") if found.epilogue is not None else None
    if layout is None:
        finish, parameters = ["memcpy(to, sums, count * sizeof(float));"], []
    else:
        last = "walk(count, [&](auto k) { put(to, k, finish(k, at(sums, k))); });"
        finish, parameters = [*epilogue_code(layout, "first"), last], layout.parameters()
    wide = has_wide_vectors()
    return Parts(
        cpp=_KERNEL.format(
            toolkit=rows.WALK + WALK_ALL + rows.ROOM + TRANSPOSE + TILE,
            parameters="".join(f"{p}, " for p in parameters),
            pack=_PACK[found.b_transposed],
            finish=indent(finish, 28),
        ),
        inputs=[("a", found.a.text), ("b", found.b.text), *(layout.inputs() if layout else [])],
        body=_body(found, layout),
        tunables={
            "MR": [4, 6, 8, 12] if wide else [2, 4, 6],
            "NV": [1, 2, 3, 4] if wide else [1, 2, 3],
            "KC": [128, 256, 512, 1024],
            "MC": [24, 48, 96, 192],
            "GRAIN": [32768, 262144],
        },
        defaults={"MR": 8 if wide else 4, "NV": 3 if wide else 2, "KC": 512, "MC": 96, "GRAIN": 32768},
        constraints=[f"MR * NV <= {28 if wide else 12}"],
    )


def _body(found: Matmul, layout: Layout | None) -> list[str]:
    n = "b.shape[-2]" if found.b_transposed else "b.shape[-1]"
    inner = "b.shape[-1]" if found.b_transposed else "b.shape[-2]"
    lines = [
        f"dtype = {common_dtype(['a', 'b', *(layout.typed() if layout else [])])}",
        dense("a"),
        dense("b"),
        f"n, depth = {n}, {inner}",
        "if a.shape[-1] != depth:",
        '    raise ValueError("the matrices do not fit")',
        "shape = (*a.shape[:-1], n)",
    ]
    if found.batched:
        lines += ["m = a.shape[-2]", "batch = math.prod(a.shape[:-2])"]
    else:
        lines += ["m = math.prod(a.shape[:-1])", "batch = 1"]
    arguments = []
    if layout is not None:
        lines += ["rows, cols = batch * m, n", *layout.prepare()]
        arguments = layout.arguments()
    passed = ", ".join(["out", "a", "b", *arguments, "batch", "m", "n", "depth"])
    return [
        *lines,
        "out = torch.empty(shape, dtype=torch.float32)",
        f"_LIB.kernel({passed})",
        f"return {rounded('out')}",
    ]


RECIPES = (
    Recipe(
        "matmul",
        "matmul",
        "Tiles of rows by vectors of columns in registers over packed panels of the second matrix; what follows is "
        "done to a tile while it is in the first-level cache.",
        write,
    ),
)
