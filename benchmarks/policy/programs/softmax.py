"""Softmax of rows: how often a row is read, what is kept, and how the exponential is computed."""

from __future__ import annotations

from benchmarks.policy.genome import ALGORITHM, Genome, Space
from benchmarks.policy.programs import skeleton
from benchmarks.policy.programs.skeleton import ARITHMETIC, EXP, SIMD, UNROLL

_ROWS = r"""
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        const float* p = x + r * n;
        float* q = y + r * n;
        ahead(p, n);
@BODY@
    }
}
"""

_TOP = "        const float m = top(n, [&](auto k) { return at(p, k); });\n"

_BODIES = {
    "three_pass": _TOP
    + r"""        const float s = total(n, [&](auto k) { return exponential(at(p, k) - m); });
        each(n, [&](auto k) { put(q, k, exponential(at(p, k) - m) @DIVIDE@); });""",
    "stored": _TOP
    + r"""        each(n, [&](auto k) { put(q, k, exponential(at(p, k) - m)); });
        const float s = total(n, [&](auto k) { return at(q, k); });
        each(n, [&](auto k) { put(q, k, at(q, k) @DIVIDE@); });""",
    "summed_while_stored": _TOP
    + r"""        const float s = total(n, [&](auto k) { return put(q, k, exponential(at(p, k) - m)); });
        each(n, [&](auto k) { put(q, k, at(q, k) @DIVIDE@); });""",
    "online": r"""        float m = -INFINITY, s = 0.0f;
        for (int64_t from = 0; from < n; from += BLOCK) {
            const float* b = p + from;
            const int64_t count = n - from < BLOCK ? n - from : BLOCK;
            const float t = top(count, [&](auto k) { return at(b, k); });
            if (t > m) { s *= expf(m - t); m = t; }
            s += total(count, [&](auto k) { return exponential(at(b, k) - m); });
        }
        each(n, [&](auto k) { put(q, k, exponential(at(p, k) - m) @DIVIDE@); });""",
}

_STAGED = r"""
extern "C" void run(const float* x, float* y, int64_t rows, int64_t n) {
    float* m = (float*)malloc(2 * rows * sizeof(float));
    float* s = m + rows;
    for (int64_t r = 0; r < rows; r++) m[r] = top(n, [&](auto k) { return at(x + r * n, k); });
    for (int64_t r = 0; r < rows; r++) {
        ahead(x + r * n, n);
        s[r] = total(n, [&](auto k) { return put(y + r * n, k, exponential(at(x + r * n, k) - m[r])); });
    }
    for (int64_t r = 0; r < rows; r++) each(n, [&](auto k) { put(y + r * n, k, at(y + r * n, k) @DIVIDE_STAGED@); });
    free(m);
}
"""

_INIT = """    def __init__(self):
        super().__init__()
        self.library = load_cpp(SOURCE, FLAGS)
"""

ROW = 1000
PARAMS: dict[str, int | str] = {"rows": 96, "cols": ROW, "dtype": "float32"}


def write(genome: Genome) -> str:
    """The source of a genome."""
    algorithm = genome.gene(ALGORITHM)
    text = _STAGED if algorithm == "staged" else _ROWS.replace("@BODY@", _BODIES[algorithm])
    reciprocal = genome.gene("division") == "reciprocal"
    text = text.replace("@DIVIDE_STAGED@", "* (1.0f / s[r])" if reciprocal else "/ s[r]")
    text = text.replace("@DIVIDE@", "* (1.0f / s)" if reciprocal else "/ s")
    return skeleton.module(
        genome,
        skeleton.loops(genome) + EXP[genome.gene("exp")] + text,
        arguments="x",
        call="x.numel() // x.shape[-1], x.shape[-1]",
        space=SPACE.tunables,
        fixed=ROW,
        init=_INIT,
    )


SPACE = Space(
    problem="softmax",
    params=PARAMS,
    genes={
        ALGORITHM: ("three_pass", "stored", "staged", "summed_while_stored", "online"),
        "simd": SIMD,
        "exp": ("libm", "polynomial"),
        "division": ("divide", "reciprocal"),
        "arithmetic": ARITHMETIC,
    },
    tunables={"UNROLL": UNROLL, "BLOCK": (64, 256, 1024), "AHEAD": (0, 1, 2)},
    bugs=(*skeleton.BUGS, "zero_maximum"),
    plans={
        "three_pass": "read each row three times: maximum, sum, result",
        "stored": "keep the exponentials in the output, then sum and scale in further walks",
        "staged": "two stages over the whole matrix with the rows' maxima and partial sums kept between them",
        "summed_while_stored": "fuse the sum into the walk that stores the exponentials",
        "online": "online maximum and sum in one pass over blocks of the row",
    },
    write=write,
)
