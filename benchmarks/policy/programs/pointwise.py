"""Bias, GELU, scale and residual: how many walks over the matrix, in which order, and how GELU is computed."""

from __future__ import annotations

from benchmarks.policy.genome import ALGORITHM, Genome, Space
from benchmarks.policy.programs import skeleton
from benchmarks.policy.programs.skeleton import ARITHMETIC, GELU, SIMD, UNROLL

_SIGNATURE = r"""
extern "C" void run(const float* x, float* y, const float* z, const float* b, const float* w,
                    int64_t rows, int64_t n) {"""

_BODIES = {
    "fused": r"""
    for (int64_t r = 0; r < rows; r++) {
        const float *p = x + r * n, *t = z + r * n;
        float* q = y + r * n;
        ahead(p, n);
        ahead(t, n);
        each(n, [&](auto k) { put(q, k, gelu(at(p, k) @BIAS@) * at(w, k) + at(t, k)); });
    }
}
""",
    "staged": r"""
    for (int64_t r = 0; r < rows; r++) {
        ahead(x + r * n, n);
        each(n, [&](auto k) { put(y + r * n, k, gelu(at(x + r * n, k) @BIAS@)); });
    }
    for (int64_t r = 0; r < rows; r++) each(n, [&](auto k) { put(y + r * n, k, at(y + r * n, k) * at(w, k)); });
    for (int64_t r = 0; r < rows; r++)
        each(n, [&](auto k) { put(y + r * n, k, at(y + r * n, k) + at(z + r * n, k)); });
}
""",
    "row_staged": r"""
    for (int64_t r = 0; r < rows; r++) {
        const float *p = x + r * n, *t = z + r * n;
        float* q = y + r * n;
        ahead(p, n);
        ahead(t, n);
        each(n, [&](auto k) { put(q, k, at(p, k) @BIAS@); });
        each(n, [&](auto k) { put(q, k, gelu(at(q, k))); });
        each(n, [&](auto k) { put(q, k, at(q, k) * at(w, k) + at(t, k)); });
    }
}
""",
    "panels": r"""
    for (int64_t from = 0; from < n; from += BLOCK) {
        const int64_t count = n - from < BLOCK ? n - from : BLOCK;
        const float *c = b + from, *v = w + from;
        for (int64_t r = 0; r < rows; r++) {
            const float *p = x + r * n + from, *t = z + r * n + from;
            float* q = y + r * n + from;
            if (AHEAD) for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(p + AHEAD * n + i);
            each(count, [&](auto k) { put(q, k, gelu(at(p, k) @BIAS_PANEL@) * at(v, k) + at(t, k)); });
        }
    }
}
""",
    "columns": r"""
    for (int64_t i = 0; i < n; i++) {
        for (int64_t r = 0; r < rows; r++) y[r * n + i] = gelu(x[r * n + i] @BIAS_COLUMN@) * w[i] + z[r * n + i];
    }
}
""",
}

_INIT = """    def __init__(self, hidden, dtype="float32"):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(hidden, dtype=getattr(torch, dtype)))
        self.scale = nn.Parameter(torch.ones(hidden, dtype=getattr(torch, dtype)))
        self.library = load_cpp(SOURCE, FLAGS)
"""

ROW = 1000
PARAMS: dict[str, int | str] = {"rows": 160, "hidden": ROW, "dtype": "float32"}


def write(genome: Genome) -> str:
    """The source of a genome."""
    text = _SIGNATURE + _BODIES[genome.gene(ALGORITHM)]
    forgotten = "bias_forgotten" in genome.bugs
    for place, bias in (("@BIAS@", "+ at(b, k)"), ("@BIAS_PANEL@", "+ at(c, k)"), ("@BIAS_COLUMN@", "+ b[i]")):
        text = text.replace(place, "" if forgotten else bias)
    gelu = "approximate" if "approximate" in genome.bugs else genome.gene("gelu")
    return skeleton.module(
        genome,
        skeleton.loops(genome) + GELU[gelu] + text,
        arguments="x, residual",
        call="residual, self.bias, self.scale, x.numel() // x.shape[-1], x.shape[-1]",
        space=SPACE.tunables,
        fixed=ROW,
        init=_INIT,
    )


SPACE = Space(
    problem="bias_gelu_scale_residual",
    params=PARAMS,
    genes={
        ALGORITHM: ("staged", "row_staged", "columns", "fused", "panels"),
        "simd": SIMD,
        "gelu": ("libm", "rational"),
        "arithmetic": ARITHMETIC,
    },
    tunables={"UNROLL": UNROLL, "BLOCK": (64, 256, 1024), "AHEAD": (0, 1, 2)},
    bugs=(*skeleton.BUGS, "bias_forgotten", "approximate"),
    plans={
        "staged": "one stage after the other over the whole matrix, with partial results in the output",
        "row_staged": "one walk for each operation, row by row, so that a row stays in the cache",
        "columns": "column by column, so that bias and scale stay in registers",
        "fused": "all operations fused in one walk",
        "panels": "panels of columns, tiled so that bias and scale stay in the first cache",
    },
    write=write,
)
