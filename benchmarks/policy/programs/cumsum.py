"""Cumulative sums of rows: how the chain of additions is broken up, and in which type it is summed."""

from __future__ import annotations

from benchmarks.policy.genome import ALGORITHM, Genome, Space
from benchmarks.policy.programs import skeleton
from benchmarks.policy.programs.skeleton import ARITHMETIC, SIMD, UNROLL

_SIGNATURE = r"""
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {"""

_BODIES = {
    "serial": r"""
    for (int64_t r = 0; r < rows; r++) {
        const float* p = x + r * n;
        float* q = y + r * n;
        ahead(p, n);
        ACC s = 0;
#pragma GCC unroll U
        for (int64_t i = 0; i < n; i++) { s += p[i]; q[i] = @VALUE@; }
    }
}
""",
    "interleaved": r"""
    int64_t r = 0;
    for (; r + WAYS <= rows; r += WAYS) {
        ACC s[WAYS] = {};
        for (int64_t j = 0; j < WAYS; j++) ahead(x + (r + j) * n, n);
        for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 8
            for (int64_t j = 0; j < WAYS; j++) { s[j] += x[(r + j) * n + i]; y[(r + j) * n + i] = s[j]; }
        }
    }
    for (; r < rows; r++) {
        ACC s = 0;
        for (int64_t i = 0; i < n; i++) { s += x[r * n + i]; y[r * n + i] = @VALUE@; }
    }
}
""",
    "local_then_shifted": r"""
    for (int64_t r = 0; r < rows; r++) {
        ACC before = 0;
        for (int64_t from = 0; from < n; from += BLOCK) {
            const int64_t count = n - from < BLOCK ? n - from : BLOCK;
            const float* p = x + r * n + from;
            float* q = y + r * n + from;
            ACC s = 0;
            for (int64_t i = 0; i < count; i++) { s += p[i]; q[i] = @VALUE@; }
            const float shift = (float)before;
            each(count, [&](auto k) { put(q, k, at(q, k) + shift); });
            before += s;
        }
    }
}
""",
    "offsets_first": r"""
    for (int64_t r = 0; r < rows; r++) {
        ahead(x + r * n, n);
        ACC before = 0;
        for (int64_t from = 0; from < n; from += BLOCK) {
            const int64_t count = n - from < BLOCK ? n - from : BLOCK;
            const float* p = x + r * n + from;
            float* q = y + r * n + from;
            const ACC own = total(count, [&](auto k) { return at(p, k); });
            ACC s = before;
#pragma GCC unroll U
            for (int64_t i = 0; i < count; i++) { s += p[i]; q[i] = @VALUE@; }
            before += own;
        }
    }
}
""",
    "doubling": r"""
    for (int64_t r = 0; r < rows; r++) {
        const float* p = x + r * n;
        float* q = y + r * n;
        ahead(p, n);
        ACC s = 0;
        int64_t i = 0;
        for (; i + 8 <= n; i += 8) {
            float a[8], b[8];
            for (int l = 0; l < 8; l++) a[l] = p[i + l];
            for (int l = 0; l < 8; l++) b[l] = a[l] + (l >= 1 ? a[l - 1] : 0.0f);
            for (int l = 0; l < 8; l++) a[l] = b[l] + (l >= 2 ? b[l - 2] : 0.0f);
            for (int l = 0; l < 8; l++) b[l] = a[l] + (l >= 4 ? a[l - 4] : 0.0f);
            for (int l = 0; l < 8; l++) q[i + l] = (float)(s + b[l]);
            s += b[7];
        }
        for (; i < n; i++) { s += p[i]; q[i] = @VALUE@; }
    }
}
""",
}

_WAYS = {"scalar": 2, "auto": 4, "lanes8": 8, "lanes16": 16}

ROW = 1000
PARAMS: dict[str, int | str] = {"rows": 160, "cols": ROW, "dtype": "float32"}


def write(genome: Genome) -> str:
    """The source of a genome."""
    text = _SIGNATURE + _BODIES[genome.gene(ALGORITHM)]
    text = text.replace("@VALUE@", "(float)(s - p[0])" if "exclusive" in genome.bugs else "(float)s")
    text = text.replace("(float)(s - p[0])", "(float)(s - x[r * n])")
    # The algorithms that have no loops of the skeleton make these mistakes by themselves.
    if "off_by_one" in genome.bugs:
        text = text.replace("i < n; i++) { s += p[i]", "i < n + 1; i++) { s += p[i]")
    if "no_tail" in genome.bugs:
        text = text.replace("for (; i < n; i++)", "if (0) for (; i < n; i++)").replace(
            "for (; r < rows", "if (0) for (; r < rows"
        )
    if "carry_lost" in genome.bugs:
        text = (
            text.replace("before += ", "before = ").replace("s += b[7]", "s = b[7]").replace("s[j] +=", "s[j] = 0.5f *")
        )
    return skeleton.module(
        genome,
        skeleton.loops(genome, double=genome.gene("sums") == "double")
        + f"\nconstexpr int64_t WAYS = {_WAYS[genome.gene('simd')]};\n"
        + text,
        arguments="x",
        call="x.numel() // x.shape[-1], x.shape[-1]",
        space=SPACE.tunables,
        fixed=ROW,
        init=_INIT,
    )


_INIT = """    def __init__(self, dim=-1):
        super().__init__()
        if dim != -1:
            raise ValueError("this kernel sums along the last dimension only")
        self.library = load_cpp(SOURCE, FLAGS)
"""

SPACE = Space(
    problem="cumsum",
    params=PARAMS,
    genes={
        ALGORITHM: ("serial", "local_then_shifted", "offsets_first", "doubling", "interleaved"),
        "simd": SIMD,
        "sums": ("float", "double"),
        "arithmetic": ARITHMETIC,
    },
    tunables={"UNROLL": UNROLL, "BLOCK": (32, 128, 512), "AHEAD": (0, 1, 2)},
    bugs=(*skeleton.BUGS, "exclusive", "carry_lost"),
    plans={
        "serial": "one addition after the other",
        "local_then_shifted": "sums of blocks, then each block shifted by what came before it",
        "offsets_first": "partial sums of pieces first, then each piece from its offset",
        "doubling": "prefix sums by doubling within a vector register: SIMD",
        "interleaved": "several rows at a time, so that their chains overlap: more work per thread",
    },
    write=write,
)
