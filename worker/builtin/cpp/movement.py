"""Recipes that mostly move data: rotary embedding, transpose, table look-up."""

from __future__ import annotations

from worker.builtin.cpp import rows
from worker.builtin.cpp.layout import Layout, epilogue_code
from worker.builtin.cpp.products import TRANSPOSE
from worker.builtin.cpp.recipe import Parts, Recipe, common_dtype, dense, indent, rounded
from worker.builtin.expressions import Unmatched
from worker.builtin.families import Embedding, Match, Rope, Transpose

# Tensors are seen as [d0, d1, d2, width] with any strides but 1 in the last dimension, so that views need no copy.
_ROPE = """\
{toolkit}
extern "C" void kernel(float* __restrict out, const float* __restrict x_all, const float* __restrict cos_all,
                       const float* __restrict sin_all, int64_t d0, int64_t d1, int64_t d2, int64_t width,
                       int64_t x0, int64_t x1, int64_t x2, int64_t c0, int64_t c1, int64_t c2,
                       int64_t s0, int64_t s1, int64_t s2) {{
    const int64_t half = width / 2, cols = width;
    #pragma omp parallel num_threads(THREADS) if (d0 * d1 * d2 * width >= GRAIN)
    {{
        #pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < d0 * d1 * d2; r++) {{
            const int64_t i = r / (d1 * d2), j = r / d2 % d1, l = r % d2;
            const float* __restrict x = x_all + i * x0 + j * x1 + l * x2;
            const float* __restrict c = cos_all + i * c0 + j * c1 + l * c2;
            const float* __restrict s = sin_all + i * s0 + j * s1 + l * s2;
            float* __restrict y = out + r * cols;
            write_row(y, half, [&](auto k) {{ return at(x, k) * at(c, k) - at(x + half, k) * at(s, k); }});
            write_row(y + half, half, [&](auto k) {{
                return at(x + half, k) * at(c + half, k) + at(x, k) * at(s + half, k);
            }});
        }}
        FENCE
    }}
}}
"""

_ROPE_PYTHON = '''\
def _spread(t, shape):
    """A tensor broadcast to `shape` as [d0, d1, d2, width] with unit stride in the last dimension."""
    t = _f32(t).expand(shape)
    t = t.flatten(0, len(shape) - 4) if len(shape) > 4 else t.reshape((1,) * (4 - len(shape)) + tuple(shape))
    return t if t.stride(3) == 1 else t.contiguous()


def _rotate(x, cos, sin):
    dtype = _dtype(x, cos, sin)
    shape = x.shape
    if shape[-1] % 2:
        raise ValueError("the last dimension must be even")
    out = torch.empty(shape, dtype=torch.float32)
    x, cos, sin = _spread(x, shape), _spread(cos, shape), _spread(sin, shape)
    _LIB.kernel(out, x, cos, sin, *x.shape, *x.stride()[:3], *cos.stride()[:3], *sin.stride()[:3])
    return out if dtype is _F32 else out.to(dtype)
'''


def write_rope(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, Rope):
        raise Unmatched("not a rotary embedding")
    names = [f"x{k}" for k in range(len(found.xs))]
    calls = ", ".join(f"_rotate({name}, cos, sin)" for name in names)
    return Parts(
        cpp=_ROPE.format(toolkit=rows.WALK + rows.WRITE),
        inputs=[
            *((n, x.text) for n, x in zip(names, found.xs, strict=True)),
            ("cos", found.cos.text),
            ("sin", found.sin.text),
        ],
        body=[f"return ({calls},)" if found.returns_tuple else f"return {calls}"],
        tunables={"GRAIN": [4096, 32768], "STREAM": [0, 1]},
        defaults={"GRAIN": 32768, "STREAM": 0},
        python=_ROPE_PYTHON,
    )


_TRANSPOSE = """\
{transpose}
// out[..., j, ..., i] = in[..., i, ..., j]: i runs along out's last dimension, j along in's; the others are walked.
extern "C" void kernel(float* __restrict out, const float* __restrict in, {sizes}int64_t count_i, int64_t from_i,
                       int64_t count_j, int64_t to_j) {{
    const int64_t blocks_i = (count_i + TILE_I - 1) / TILE_I, blocks_j = (count_j + TILE_J - 1) / TILE_J;
    const int64_t outer = {outer};
    #pragma omp parallel for schedule(static) num_threads(THREADS) if (outer * count_i * count_j >= GRAIN)
    for (int64_t task = 0; task < outer * blocks_i * blocks_j; task++) {{
        int64_t rest = task;
        const int64_t first_i = rest % blocks_i * TILE_I;
        rest /= blocks_i;
        const int64_t first_j = rest % blocks_j * TILE_J;
        rest /= blocks_j;
        const float* from = in;
        float* to = out;
        {offsets}
        const int64_t stop_i = first_i + TILE_I < count_i ? first_i + TILE_I : count_i;
        const int64_t stop_j = first_j + TILE_J < count_j ? first_j + TILE_J : count_j;
        for (int64_t j = first_j; j < stop_j; j += LANES)
            for (int64_t i = first_i; i < stop_i; i += LANES) {{
                const int64_t height = stop_i - i < LANES ? stop_i - i : LANES;
                const int64_t width = stop_j - j < LANES ? stop_j - j : LANES;
                vf block[LANES];
                for (int64_t l = 0; l < LANES; l++) {{
                    block[l] = vf{{}};
                    if (l < height && width == LANES) block[l] = load(from + (i + l) * from_i + j);
                    else if (l < height) memcpy(&block[l], from + (i + l) * from_i + j, width * sizeof(float));
                }}
                transpose(block);
                for (int64_t l = 0; l < width; l++) {{
                    if (height == LANES) store(to + (j + l) * to_j + i, block[l]);
                    else store_first(to + (j + l) * to_j + i, block[l], height);
                }}
            }}
    }}
}}
"""

_COPY_ROWS = """\
extern "C" void kernel(float* __restrict out, const float* __restrict in, {sizes}int64_t cols) {{
    const int64_t outer = {outer};
    #pragma omp parallel for schedule(static) num_threads(THREADS) if (outer * cols >= GRAIN)
    for (int64_t task = 0; task < outer; task++) {{
        int64_t rest = task;
        const float* from = in;
        float* to = out;
        {offsets}
        memcpy(to, from, cols * sizeof(float));
    }}
}}
"""


def _walked(dims: list[int]) -> tuple[str, list[str], str, list[str]]:
    """For the walked output dimensions: (C++ parameters, Python arguments, their extents' product, offset
    statements)."""
    sizes = "".join(f"int64_t n{d}, int64_t f{d}, int64_t t{d}, " for d in dims)
    arguments = [text for d in dims for text in (f"shape[{d}]", f"view.stride({d})", f"out.stride({d})")]
    offsets = []
    for d in reversed(dims):
        offsets += [f"from += rest % n{d} * f{d}, to += rest % n{d} * t{d};", f"rest /= n{d};"]
    return sizes, arguments, " * ".join(f"n{d}" for d in dims) or "1", offsets


def write_transpose(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, Transpose) or found.x.kind != "float":
        raise Unmatched("not a transpose of floats")
    order = found.permutation
    rank = len(order)
    inner = order.index(rank - 1)  # the output dimension along which the input is contiguous
    keeps_rows = inner == rank - 1
    sizes, arguments, outer, offsets = _walked([d for d in range(rank - 1) if d != inner])
    body = [
        "dtype = x.dtype",
        f"view = _f32(x).contiguous().permute{order!r}",
        "shape = view.shape",
        "out = torch.empty(shape, dtype=torch.float32)",
    ]
    if keeps_rows:
        cpp = _COPY_ROWS.format(sizes=sizes, outer=outer, offsets=indent(offsets, 8))
        passed = [*arguments, "shape[-1]"]
        tunables: dict[str, list[int]] = {"GRAIN": [4096, 32768]}
        defaults = {"GRAIN": 32768}
    else:
        cpp = _TRANSPOSE.format(transpose=TRANSPOSE, sizes=sizes, outer=outer, offsets=indent(offsets, 8))
        passed = [*arguments, "shape[-1]", "view.stride(-1)", f"shape[{inner}]", f"out.stride({inner})"]
        tunables = {"TILE_I": [16, 64, 256], "TILE_J": [16, 64, 256], "GRAIN": [4096, 32768]}
        defaults = {"TILE_I": 64, "TILE_J": 64, "GRAIN": 32768}
    return Parts(
        cpp=cpp,
        inputs=[("x", found.x.text)],
        body=[*body, f"_LIB.kernel(out, view, {', '.join(passed)})", f"return {rounded('out')}"],
        tunables=tunables,
        defaults=defaults,
    )


_EMBEDDING = """\
{toolkit}
extern "C" void kernel(float* __restrict out, const float* __restrict table, const int64_t* __restrict indices,
int64_t* bad,
                       {parameters}int64_t rows, int64_t cols, int64_t entries) {{
    int64_t wrong = 0;
    #pragma omp parallel num_threads(THREADS) if (rows * cols >= GRAIN) reduction(+ : wrong)
    {{
        #pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++) {{
            const int64_t index = indices[r];
            if (index < 0 || index >= entries) {{
                wrong++;
                continue;
            }}
            const float* __restrict from = table + index * cols;
            if (AHEAD && r + AHEAD < rows) {{
                const int64_t next = indices[r + AHEAD];
                if (next >= 0 && next < entries)
                    for (int64_t c = 0; c < cols && c < 256; c += 16) __builtin_prefetch(table + next * cols + c);
            }}
            {epilogue}
            write_row(out + r * cols, cols, [&](auto k) {{ return {value}; }});
        }}
        FENCE
    }}
    *bad = wrong;
}}
"""


def write_embedding(match: Match) -> Parts:
    found = match.bindings
    if not isinstance(found, Embedding):
        raise Unmatched("not an embedding")
    layout = Layout(found.epilogue, 1, mode="walk") if found.epilogue is not None else None
    typed = ["table", *(layout.typed() if layout else [])]
    arguments = "".join(f"{a}, " for a in layout.arguments()) if layout else ""
    return Parts(
        cpp=_EMBEDDING.format(
            toolkit=rows.WALK + rows.WRITE,
            parameters="".join(f"{p}, " for p in layout.parameters()) if layout else "",
            epilogue=indent(epilogue_code(layout, "0"), 12) if layout else "",
            value="finish(k, at(from, k))" if layout else "at(from, k)",
        ),
        inputs=[("table", found.weight.text), ("indices", found.indices.text), *(layout.inputs() if layout else [])],
        body=[
            f"dtype = {common_dtype(typed)}",
            dense("table"),
            "indices = indices.to(torch.int64).contiguous()",
            "shape = (*indices.shape, table.shape[-1])",
            "rows, cols = indices.numel(), table.shape[-1]",
            *(layout.prepare() if layout else []),
            "out = torch.empty(shape, dtype=torch.float32)",
            "bad = torch.zeros((), dtype=torch.int64)",
            f"_LIB.kernel(out, table, indices, bad, {arguments}rows, cols, table.shape[0])",
            "if int(bad):",
            '    raise IndexError("index out of range in self")',
            f"return {rounded('out')}",
        ],
        tunables={"AHEAD": [0, 2, 4, 8], "GRAIN": [4096, 32768], "STREAM": [0, 1]},
        defaults={"AHEAD": 4, "GRAIN": 32768, "STREAM": 0},
    )


RECIPES = (
    Recipe(
        "rope",
        "rope",
        "Both halves of a row are turned in one walk, the tables are read through their strides, views need no copy.",
        write_rope,
    ),
    Recipe(
        "transpose",
        "transpose",
        "Blocks that fit the cache, transposed in registers by permutations; rows that stay contiguous are copied.",
        write_transpose,
    ),
    Recipe(
        "embedding",
        "embedding",
        "Rows of the table are asked for a few look-ups ahead, and what follows the look-up is applied on the way out.",
        write_embedding,
    ),
)
