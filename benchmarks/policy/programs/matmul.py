"""A linear layer and GELU: how the product is walked, what is packed, and when GELU is applied."""

from __future__ import annotations

from benchmarks.policy.genome import ALGORITHM, Genome, Space
from benchmarks.policy.programs import skeleton
from benchmarks.policy.programs.skeleton import ARITHMETIC, GELU, SIMD, UNROLL

_SIGNATURE = r"""
extern "C" void run(const float* x, float* y, const float* w, const float* b, int64_t cols, int64_t rows,
                    int64_t n) {"""

_TRANSPOSED = r"""
    float* t = (float*)malloc(n * cols * sizeof(float));
    for (int64_t o = 0; o < cols; o++)
        for (int64_t k = 0; k < n; k++) t[k * cols + o] = w[o * n + k];
"""

_BODIES = {
    "dots": r"""
    for (int64_t r = 0; r < rows; r++) {
        const float* p = x + r * n;
        ahead(p, n);
        for (int64_t o = 0; o < cols; o++)
            y[r * cols + o] = total(n, [&](auto k) { return at(p, k) * at(w + o * n, k); });
@ROW@
    }
@END@
}
""",
    "four_dots": r"""
    for (int64_t from = 0; from < cols; from += BLOCK) {
        const int64_t to = from + BLOCK < cols ? from + BLOCK : cols;
        for (int64_t r = 0; r < rows; r += 4) {
            const int64_t height = rows - r < 4 ? rows - r : 4;
            for (int64_t o = from; o < to; o++)
                for (int64_t j = 0; j < height; j++)
                    y[(r + j) * cols + o] = total(n, [&](auto k) { return at(x + (r + j) * n, k) * at(w + o * n, k); });
        }
    }
    for (int64_t r = 0; r < rows; r++) {
@ROW@
    }
@END@
}
""",
    "axpy": _TRANSPOSED
    + r"""
    for (int64_t r = 0; r < rows; r++) {
        float* q = y + r * cols;
        ahead(x + r * n, n);
        memset(q, 0, cols * sizeof(float));
        for (int64_t k = 0; k < n; k++) {
            const float v = x[r * n + k];
            each(cols, [&](auto o) { put(q, o, at(q, o) + at(t + k * cols, o) * v); });
        }
@ROW@
    }
    free(t);
@END@
}
""",
    "axpy_blocks": _TRANSPOSED
    + r"""
    memset(y, 0, rows * cols * sizeof(float));
    for (int64_t from = 0; from < n; from += BLOCK / 8) {
        const int64_t to = from + BLOCK / 8 < n ? from + BLOCK / 8 : n;
        for (int64_t r = 0; r < rows; r++) {
            float* q = y + r * cols;
            for (int64_t k = from; k < to; k++) {
                const float v = x[r * n + k];
                each(cols, [&](auto o) { put(q, o, at(q, o) + at(t + k * cols, o) * v); });
            }
        }
    }
    for (int64_t r = 0; r < rows; r++) {
@ROW@
    }
    free(t);
@END@
}
""",
    "register_tiles": _TRANSPOSED
    + r"""
    constexpr int64_t WIDE = 2 * (LANES > 1 ? LANES : 8);
    for (int64_t r = 0; r < rows; r += 4) {
        const int64_t height = rows - r < 4 ? rows - r : 4;
        for (int64_t o = 0; o < cols; o += WIDE) {
            const int64_t wide = cols - o < WIDE ? cols - o : WIDE;
            float sums[4 * WIDE] = {};
            if (height == 4 && wide == WIDE) {
                for (int64_t k = 0; k < n; k++) {
                    const float* c = t + k * cols + o;
                    const float v0 = x[r * n + k], v1 = x[(r + 1) * n + k];
                    const float v2 = x[(r + 2) * n + k], v3 = x[(r + 3) * n + k];
                    for (int64_t l = 0; l < WIDE; l++) {
                        sums[l] += v0 * c[l];
                        sums[WIDE + l] += v1 * c[l];
                        sums[2 * WIDE + l] += v2 * c[l];
                        sums[3 * WIDE + l] += v3 * c[l];
                    }
                }
            } else {
                for (int64_t j = 0; j < height; j++)
                    for (int64_t k = 0; k < n; k++)
                        for (int64_t l = 0; l < wide; l++)
                            sums[j * WIDE + l] += x[(r + j) * n + k] * t[k * cols + o + l];
            }
            for (int64_t j = 0; j < height; j++) memcpy(y + (r + j) * cols + o, sums + j * WIDE, wide * sizeof(float));
        }
    }
    for (int64_t r = 0; r < rows; r++) {
@ROW@
    }
    free(t);
@END@
}
""",
}

_EPILOGUE = "        each(cols, [&](auto k) { put(y + r * cols, k, gelu(at(y + r * cols, k) @BIAS@)); });"
_TWO_STAGES = r"""    for (int64_t r = 0; r < rows; r++)
        each(cols, [&](auto k) { put(y + r * cols, k, at(y + r * cols, k) @BIAS@); });
    for (int64_t r = 0; r < rows; r++)
        each(cols, [&](auto k) { put(y + r * cols, k, gelu(at(y + r * cols, k))); });"""

_INIT = """    def __init__(self, inner, outer, dtype="float32"):
        super().__init__()
        self.linear = nn.Linear(inner, outer, dtype=getattr(torch, dtype))
        self.library = load_cpp(SOURCE, FLAGS)
"""

ROW = 130
PARAMS: dict[str, int | str] = {"rows": 96, "inner": ROW, "outer": 250, "dtype": "float32"}


def write(genome: Genome) -> str:
    """The source of a genome."""
    fused = genome.gene("epilogue") == "fused"
    text = _SIGNATURE + _BODIES[genome.gene(ALGORITHM)]
    text = text.replace("@ROW@", _EPILOGUE if fused else "").replace("@END@", "" if fused else _TWO_STAGES)
    text = text.replace("@BIAS@", "" if "bias_forgotten" in genome.bugs else "+ at(b, k)")
    gelu = "approximate" if "approximate" in genome.bugs else genome.gene("gelu")
    return skeleton.module(
        genome,
        skeleton.loops(genome) + GELU[gelu] + text,
        arguments="x",
        call="self.linear.weight, self.linear.bias, self.linear.out_features, x.numel() // x.shape[-1], x.shape[-1]",
        space=SPACE.tunables,
        fixed=ROW,
        init=_INIT,
        output="x.new_empty(*x.shape[:-1], self.linear.out_features)",
    )


SPACE = Space(
    problem="matmul_bias_gelu",
    params=PARAMS,
    genes={
        ALGORITHM: ("dots", "axpy", "four_dots", "axpy_blocks", "register_tiles"),
        "simd": SIMD,
        "gelu": ("libm", "rational"),
        "epilogue": ("separate", "fused"),
        "arithmetic": ARITHMETIC,
    },
    tunables={"UNROLL": UNROLL, "BLOCK": (32, 64, 256), "AHEAD": (0, 1, 2)},
    bugs=(*skeleton.BUGS, "bias_forgotten", "approximate"),
    plans={
        "dots": "one dot product for each output",
        "axpy": "transpose the weight, then add scaled rows of it: coalesced, wide loads",
        "four_dots": "four rows at a time over blocks of outputs",
        "axpy_blocks": "split the inner dimension in pieces with partial sums in the output",
        "register_tiles": "tiles of four rows held in registers",
    },
    write=write,
)
