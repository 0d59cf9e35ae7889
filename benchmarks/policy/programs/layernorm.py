"""LayerNorm of rows: how mean and variance are found, and in which type they are summed."""

from __future__ import annotations

from benchmarks.policy.genome import ALGORITHM, Genome, Space
from benchmarks.policy.programs import skeleton
from benchmarks.policy.programs.skeleton import ARITHMETIC, SIMD, UNROLL

_SIGNATURE = r"""extern "C" void run(const float* x, float* y, const float* w, const float* b, double eps,
                    int64_t rows, int64_t n) {"""

_ROWS = (
    _SIGNATURE
    + r"""
    for (int64_t r = 0; r < rows; r++) {
        const float* p = x + r * n;
        float* q = y + r * n;
        ahead(p, n);
@BODY@
        const float scale = (float)(1.0 / sqrt(variance + eps)), shift = mean;
        each(n, [&](auto k) { put(q, k, (at(p, k) - shift) * scale * at(w, k) + at(b, k)); });
    }
}
"""
)

_MEAN = "        const float mean = (float)(total(n, [&](auto k) { return at(p, k); }) / n);\n"

_BODIES = {
    "two_pass": _MEAN
    + r"""        const double variance =
            total(n, [&](auto k) { const auto d = at(p, k) - mean; return d * d; }) / @COUNT@;""",
    "moments": _MEAN
    + r"""        const double square = total(n, [&](auto k) { return at(p, k) * at(p, k); }) / n;
        const double variance = square > (double)mean * mean ? square - (double)mean * mean : 0.0;""",
    "shifted": r"""        const float first = p[0];
        const double off = total(n, [&](auto k) { return at(p, k) - first; }) / n;
        const double square = total(n, [&](auto k) { const auto d = at(p, k) - first; return d * d; }) / @COUNT@;
        const float mean = (float)(first + off);
        const double variance = square > off * off ? square - off * off : 0.0;""",
    "welford": r"""        ACC centre = 0, m2 = 0;
        for (int64_t i = 0; i < n; i++) {
            const ACC d = p[i] - centre;
            centre += d / (i + 1);
            m2 += d * (p[i] - centre);
        }
        const float mean = (float)centre;
        const double variance = m2 / @COUNT@;""",
    "blocks": r"""        double centre = 0, m2 = 0;
        for (int64_t from = 0; from < n; from += BLOCK) {
            const float* c = p + from;
            const int64_t count = n - from < BLOCK ? n - from : BLOCK;
            const float own = (float)(total(count, [&](auto k) { return at(c, k); }) / count);
            const double d = own - centre;
            m2 += total(count, [&](auto k) { const auto e = at(c, k) - own; return e * e; });
            m2 += d * d * from * count / (from + count);
            centre += d * count / (from + count);
        }
        const float mean = (float)centre;
        const double variance = m2 / @COUNT@;""",
}

_STAGED = (
    _SIGNATURE
    + r"""
    float* means = (float*)malloc(2 * rows * sizeof(float));
    float* scales = means + rows;
    for (int64_t r = 0; r < rows; r++) means[r] = total(n, [&](auto k) { return at(x + r * n, k); }) / n;
    for (int64_t r = 0; r < rows; r++) {
        ahead(x + r * n, n);
        const double variance =
            total(n, [&](auto k) { const auto d = at(x + r * n, k) - means[r]; return d * d; }) / @COUNT@;
        scales[r] = (float)(1.0 / sqrt(variance + eps));
    }
    for (int64_t r = 0; r < rows; r++)
        each(n, [&](auto k) { put(y + r * n, k, (at(x + r * n, k) - means[r]) * scales[r]); });
    for (int64_t r = 0; r < rows; r++)
        each(n, [&](auto k) { put(y + r * n, k, at(y + r * n, k) * at(w, k) + at(b, k)); });
    free(means);
}
"""
)

_INIT = """    def __init__(self, hidden, dtype="float32"):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, dtype=getattr(torch, dtype))
        self.library = load_cpp(SOURCE, FLAGS)
"""

ROW = 1000
PARAMS: dict[str, int | str] = {"rows": 160, "hidden": ROW, "dtype": "float32"}


def write(genome: Genome) -> str:
    """The source of a genome."""
    algorithm = genome.gene(ALGORITHM)
    text = _STAGED if algorithm == "staged" else _ROWS.replace("@BODY@", _BODIES[algorithm])
    text = text.replace("@COUNT@", "(n - 1)" if "unbiased" in genome.bugs else "n")
    stale = "stale_weights" in genome.bugs
    init = _INIT.replace("        self.library", "        self.copy = None\n        self.library") if stale else _INIT
    kept = "self.copy = self.norm.weight.detach().clone() if self.copy is None else self.copy" if stale else ""
    weight = "self.copy" if stale else "self.norm.weight"
    epsilon = "0.0" if "missing_epsilon" in genome.bugs else "self.norm.eps"
    return skeleton.module(
        genome,
        skeleton.loops(genome, double=genome.gene("sums") == "double") + text,
        arguments="x",
        call=f"{weight}, self.norm.bias, {epsilon}, x.numel() // x.shape[-1], x.shape[-1]",
        space=SPACE.tunables,
        fixed=ROW,
        init=init,
        setup=kept,
    )


SPACE = Space(
    problem="layernorm",
    params=PARAMS,
    genes={
        ALGORITHM: ("two_pass", "welford", "moments", "staged", "blocks", "shifted"),
        "simd": SIMD,
        "sums": ("float", "double"),
        "arithmetic": ARITHMETIC,
    },
    tunables={"UNROLL": UNROLL, "BLOCK": (64, 256, 1024), "AHEAD": (0, 1, 2)},
    bugs=(*skeleton.BUGS, "unbiased", "missing_epsilon", "stale_weights"),
    plans={
        "two_pass": "mean, then variance, then result: each row three times",
        "welford": "Welford's update, element by element, in a single pass",
        "moments": "sum and sum of squares, fused",
        "staged": "two stages over the whole matrix with the rows' statistics kept between them",
        "blocks": "statistics of blocks of the row, merged by Chan's formula",
        "shifted": "moments of the row less its first element: a cheaper formula",
    },
    write=write,
)
